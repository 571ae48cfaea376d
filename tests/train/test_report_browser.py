"""The page of a run in a real Chromium: every page, filter and group, hostile texts, keys, themes."""

import json
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import pytest

from grpo_core.runs.folder import RunFolder
from grpo_report.html.opened import OpenRun
from grpo_report.html.single import write_single_file

from ..commandline import words
from .report_runs import LONG, add_hostile_groups, add_rollouts, group, trained_run, verdict
from .short_runs import tiny_settings
from .test_report import serving

CHROMIUM = next(
    filter(None, map(shutil.which, ("chromium", "chromium-browser", "google-chrome"))), None
)
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="there is no chromium on the PATH"),
    pytest.mark.xdist_group("chromium"),
]
OPTIONS = ("--no-sandbox", "--disable-gpu", "--disable-background-networking")
READY = "main:not([aria-busy]) h1"
HOSTILE = "#/group?run=0&at=7/train/0"
FILTERS = (
    *("split=train", "split=eval", "environment=letters", "task=900", "steps_from=2&steps_to=4"),
    *("reward_from=0.2&reward_to=0.6", "tokens_from=8", "part=share&part_from=0.3", "passed=yes"),
    *("passed=no&order=reward", "truncated=yes", "duplicate=yes&order=tokens&descending=no"),
    *("error=yes", "text=LOREM", "text=window.ran&order=spread"),
    "reward_from=0.1&text=letters&truncated=yes&page=0",
)
CHARTS = words("reward pass entropy alive parts audit kl length errors time memory")
"""Of which the first four, which tell soonest whether a run learns, come first."""


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> RunFolder:
    folder = tmp_path_factory.mktemp("report")
    made = trained_run(tiny_settings(folder), folder / "run", steps=3)
    add_hostile_groups(made, step=7)
    return made


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    from playwright.sync_api import sync_playwright

    with sync_playwright() as playwright:
        started = playwright.chromium.launch(executable_path=CHROMIUM, args=[*OPTIONS])
        yield started
        started.close()


@pytest.fixture(scope="module")
def opened(run: RunFolder) -> Iterator[list[OpenRun]]:
    both = [OpenRun(run.path, name=name) for name in ("run", "again")]
    yield both
    for one in both:
        one.close()


@pytest.fixture(scope="module")
def single(run: RunFolder, opened: list[OpenRun]) -> str:
    path = run.path.parent / "report.html"
    write_single_file(path, opened)
    return path.as_uri()


@pytest.fixture(scope="module")
def served(opened: list[OpenRun]) -> Iterator[str]:
    with serving(*opened) as server:
        yield server.url


@contextmanager
def watched(browser: Any, **options: Any) -> Iterator[Any]:
    """Yield a page; anything in its console, and every request for another place, is a failure."""
    context = browser.new_context(**options)
    page = context.new_page()
    faults: list[str] = []

    def asked_for(url: str) -> None:
        if not url.startswith(("file:", "http://127.0.0.1", "data:", "blob:")):
            faults.append(url)

    page.on("console", lambda message: faults.append(f"{message.type}: {message.text}"))
    page.on("pageerror", lambda error: faults.append(str(error)))
    page.on("dialog", lambda dialog: faults.append(f"dialog {dialog.message}"))
    page.on("request", lambda request: asked_for(request.url))
    yield page
    assert faults == []
    assert page.evaluate("window.ran") is None
    context.close()


def shown(page: Any, url: str, fragment: str) -> None:
    """Open a view, and wait until it is there."""
    page.goto("about:blank")
    page.goto(url + fragment)
    page.wait_for_selector(READY)
    page.wait_for_function(
        "() => ![...document.querySelectorAll('[role=status]')].some(n => /…$|%$/.test(n.textContent))"
    )


@pytest.mark.slow
@pytest.mark.parametrize("source", ["single", pytest.param("served", marks=pytest.mark.heavy)])
def test_every_page_filter_and_group_shows_without_an_error(browser, source, request):
    url = request.getfixturevalue(source)
    with watched(browser) as page:
        shown(page, url, "#/curves")
        for chart in page.query_selector_all("figure.chart"):
            chart.scroll_into_view_if_needed()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every(n => n.querySelector('canvas'))"
        )
        charts = [node.get_attribute("id") for node in page.query_selector_all("figure.chart")]
        assert charts[:4] == [f"chart-{name}" for name in CHARTS[:4]]
        assert {*charts} >= {f"chart-{name}" for name in CHARTS}
        for name in ("forensics", "setup", "compare"):
            shown(page, url, f"#/{name}")
            assert len(page.inner_text("main")) > 100, name
        for filters in FILTERS:
            shown(page, url, f"#/groups?run=0&{filters}")
            assert page.query_selector("table.groups, .empty"), filters
        shown(page, url, "#/groups?run=0")
        page.click("table.groups tbody tr:last-child a")
        # Of three steps, the hostile ones, and of four evaluations.
        assert looked_through(page) == 3 * 4 + 2 + 4 * 3


def looked_through(page: Any) -> int:
    """Show each group before this one in each way; return how many there are with it."""
    seen = 0
    while True:
        page.wait_for_selector("article.attempt")
        page.wait_for_selector("nav.pager a")  # then the neighbours are known
        seen += 1
        for view in ("ends", "all"):
            page.select_option("select[name=view]", view)
        for measure in ("logprobs", "ratios", "entropies"):
            if page.query_selector(f"select[name=measure] option[value={measure}]"):
                page.select_option("select[name=measure]", measure)
                page.wait_for_selector(".token", state="attached")
        previous = page.query_selector("#previous")
        if previous is None:
            return seen
        title = page.inner_text("h1")
        previous.click()
        changed = "(old) => (document.querySelector('h1')?.innerText ?? old) !== old"
        page.wait_for_function(changed, arg=title)


def test_what_a_model_or_a_verifier_wrote_stays_text(browser, single):
    with watched(browser) as page:
        shown(page, single, HOSTILE)
        page.wait_for_selector("article.attempt")
        text = page.inner_text("main")
        for piece in (
            "<script>window.ran = 'script'</script>",
            'onerror="window.ran',
            r"nul \x00 rtl \u202egnp.exe\u202c zero\u200bwidth surrogate \ud800",
            "👩\u200d👩\u200d👧 🏳️\u200d🌈 पक्\u200dष bell \\x07",
            "outside the run folder",
        ):
            assert piece in text, piece
        obeyed = "main script, main svg:not(.range), main a[href^=javascript]"
        assert page.locator(obeyed).count() == 0
        images = page.locator("main img")
        assert images.count() == 1
        assert images.first.evaluate("n => n.decode().then(() => n.naturalWidth)") == 1
        page.get_by_role("button", name="Show the other 1,0").click()
        long = page.locator("article#attempt-3 .said pre").inner_text()
        assert long.endswith("THE END")
        assert len(long) == len(LONG)


AXES = {
    "reward": "from 0 to 1", "parts": "from 0 to 1", "kl": "from 0 to 1", "errors": "from 0 to 1",
    "pass": "from 0 to 1", "truncated": "from 0 to 1", "audit": "from 0 to 1", "time": "from 0.001 to 10",
    "alarms": "from 0 to 1", "alarms-reference_logprob": "from -4.63 to -3.94", "gradient": "from 0.08 to 0.32",
}  # fmt: skip
"""Of a run without a signal, in which one gradient is enormous."""


def test_axes_fit_their_unit_and_the_first_page_says_what_is_dead(browser, tmp_path):
    folder = trained_run(tiny_settings(tmp_path), tmp_path / "run", steps=3)
    metrics = folder.path / "metrics.jsonl"
    *_, last = (line for line in map(json.loads, metrics.open()) if "loss" in line)
    zero = ("reward/", "kl", "verify/error_rate", "groups/mixed", "pass_rate")
    quiet = {name: 0.0 if name.startswith(zero) else value for name, value in last.items()}
    lines = [
        {name: value for name, value in quiet.items() if not name.startswith(("time/", "env/"))}
        | {"step": step, "time/verify": 1e-6 * (step % 2), "time/update": 2.0 + step % 3}
        | {"alarms/reference_logprob": -4 - step % 2 / 2, "alarms/active": float(step > 20)}
        | {
            "env/found": step % 2,
            "env/moves": 20 + step % 7,
            "completion_length/clipped": 0.9 + step % 2 / 10,
        }
        | {"grad_norm": 900.0 if step == 30 else 0.1 + step % 3 / 10}
        for step in range(1, 41)
    ]
    metrics.write_text("".join(json.dumps(line) + "\n" for line in lines))
    with (folder.path / "log.txt").open("a") as log:
        log.write("warning, step 1: every attempt got the same reward\n")
    folder.rollouts(60, group(0, "word " * 2000, ["a", "b"], [verdict(0.01), verdict(0.05)]))
    opened = OpenRun(folder.path, name="run")
    write_single_file(tmp_path / "report.html", [opened])
    opened.close()
    with watched(browser, viewport={"width": 1400, "height": 900}) as page:
        url = (tmp_path / "report.html").as_uri()
        shown(page, url, "#/curves")
        for chart in page.query_selector_all("figure.chart"):
            chart.scroll_into_view_if_needed()
        page.wait_for_function(
            "() => [...document.querySelectorAll('.plot')].every(n => n.querySelector('canvas'))"
        )
        found = {
            name: page.locator(f"#chart-{name} canvas").get_attribute("aria-label") for name in AXES
        }
        assert {name: axis.rpartition(" axis ")[2] for name, axis in found.items()} == AXES
        assert "not in the mean: 900 at step 30" in page.inner_text("#chart-gradient figcaption")
        assert page.inner_text("#chart-audit-moves .u-legend").split()[-1] not in ("–", "--")
        notices = page.inner_text(".notices")
        assert "In the last 10 steps 100 % of the groups were dead" in notices
        assert "every attempt got the same reward" in notices
        shown(page, url, "#/group?run=0&at=60/train/0")
        assert "Prompt of 10,000 characters" in page.inner_text("details.prompt summary")
        assert page.locator("article.attempt").first.bounding_box()["y"] < 900


@pytest.mark.slow
def test_the_file_and_the_server_list_the_same_groups(browser, single, served):
    lists: dict[str, list[str]] = {"single": [], "served": []}
    for name, url in (("single", single), ("served", served)):
        with watched(browser) as page:
            for filters in FILTERS:
                shown(page, url, f"#/groups?run=0&{filters}")
                lists[name].append(page.inner_text(".count") + page.inner_text(".results"))
    assert lists["single"] == lists["served"]
    assert len(set(lists["single"])) > len(FILTERS) // 2  # the filters do filter


def test_keys_lead_everywhere_and_the_first_stop_skips_the_navigation(browser, single):
    with watched(browser) as page:

        def press(*keys: str) -> str:
            """Press keys, and return the name of the element that has the focus afterwards."""
            for key in keys:
                page.keyboard.press(key)
            return str(
                page.evaluate("document.activeElement.id || document.activeElement.className")
            )

        shown(page, single, "#/curves")
        assert press("Tab") == "skip"
        press("2")
        page.wait_for_selector("table.groups")
        assert press("/") == "search"
        page.keyboard.type("window.ran")
        press("Enter")
        page.wait_for_function(
            "() => document.querySelector('.count').textContent.startsWith('2 groups')"
        )
        press("Escape", "j", "j", "Enter")
        page.wait_for_selector("article.attempt")
        assert press("b") == "attempt-0"
        assert press("w") == "attempt-1"
        press("c")
        assert page.locator("article.attempt").count() == 2
        press("?")
        assert page.locator("dialog").is_visible()
        press("Escape")
        assert not page.locator("dialog").is_visible()


@pytest.mark.slow
@pytest.mark.parametrize("scheme", ["light", pytest.param("dark", marks=pytest.mark.slow)])
def test_everything_has_a_name_and_enough_contrast_and_fits_a_phone(browser, single, scheme):
    size = {"width": 390, "height": 844}
    pages = ("#/curves", "#/groups?run=0", HOSTILE, "#/forensics", "#/setup", "#/compare")
    with watched(browser, color_scheme=scheme, viewport=size) as page:
        for fragment in pages:
            shown(page, single, fragment)
            assert page.evaluate(UNNAMED) == [], fragment
            assert page.evaluate(FAINT) == [], fragment
            assert page.evaluate("document.documentElement.scrollWidth") <= size["width"], fragment
            assert page.locator("h1").count() == 1


UNNAMED = """() => [...document.querySelectorAll("button, input, select, a, img, [role=region]")]
  .filter(n => !(n.getAttribute("aria-label") || n.getAttribute("alt") || n.textContent.trim()
    || n.labels?.length))
  .map(n => n.outerHTML.slice(0, 100))"""
"""What a screen reader could not name; an option is the text of a select, so labels are asked for."""
FAINT = """() => {
  const parse = (text) => (text.match(/[\\d.]+/g) ?? []).map(Number);
  const light = (rgb) => { const [r, g, b] = rgb.map(v => { v /= 255;
    return v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4; });
    return 0.2126 * r + 0.7152 * g + 0.0722 * b; };
  const behind = (n) => { for (; n; n = n.parentElement) { const c = parse(getComputedStyle(n).backgroundColor);
    if (c.length === 3 || c[3] === 1) return c.slice(0, 3); } return [255, 255, 255]; };
  return [...document.querySelectorAll("body *")].filter(n => n.checkVisibility() && !n.disabled
      && [...n.childNodes].some(c => c.nodeType === 3 && c.textContent.trim()))
    .map(n => { const [a, b] = [light(parse(getComputedStyle(n).color).slice(0, 3)), light(behind(n))];
      return [(Math.max(a, b) + 0.05) / (Math.min(a, b) + 0.05), n.className, n.textContent.slice(0, 30)]; })
    .filter(([ratio]) => ratio < 4.5);
}"""
"""Texts with a contrast below that of WCAG AA."""


@pytest.mark.heavy
def test_the_served_page_shows_new_groups_by_itself_and_says_when_the_server_is_gone(
    browser, run, opened
):
    with serving(opened[0]) as server:
        context = browser.new_context()
        page = context.new_page()
        shown(page, server.url, "#/groups?run=0&steps_from=50")
        assert "No group matches" in page.inner_text("main")
        page.evaluate("document.activeElement.blur()")
        run.rollouts(
            50, replace(group(3, "a new prompt", ["new"], [verdict(1.0)]), advantages=[0.0])
        )
        page.wait_for_selector("table.groups", timeout=20_000)
        page.route("**/api/**", lambda route: route.abort())
        page.wait_for_selector("#live.bad", timeout=20_000)
        assert page.inner_text("#live") == "server gone"
        page.unroute("**/api/**")
        damaged = {"status": 400, "json": {"error": "alarms.jsonl is damaged"}}
        page.route("**/api/**", lambda route: route.fulfill(**damaged))
        page.wait_for_function(
            "() => document.querySelector('#live').textContent === 'alarms.jsonl is damaged'"
        )
        page.reload()
        page.wait_for_selector("main [role=alert]")
        assert page.inner_text("main [role=alert]") == "alarms.jsonl is damaged"
        context.close()


@pytest.mark.heavy
def test_a_run_of_150_steps_with_10000_rollouts_is_painted_within_a_second(
    browser, settings, tmp_path
):
    folder = trained_run(settings, tmp_path / "run", steps=150)
    add_rollouts(folder, 10_000 - 150 * 24, step=151)
    opened = OpenRun(folder.path, name="run")
    assert opened.index.count().rollouts >= 10_000
    size = write_single_file(tmp_path / "report.html", [opened])
    opened.close()
    assert size < 20_000_000
    with watched(browser) as page:
        shown(page, (tmp_path / "report.html").as_uri(), "#/curves")
        page.wait_for_selector("figure canvas")
        painted = page.evaluate(
            "performance.getEntriesByName('first-contentful-paint')[0].startTime"
        )
        drawn = page.evaluate("performance.getEntriesByName('shown')[0].startTime")
        print(f"first paint {painted:.0f} ms, first page complete {drawn:.0f} ms, {size:,} bytes")
        assert painted < 1000
