// The page: navigation, keys, theme, and the view that the address names.
import { el, heading, link, visible } from "./dom.js";
import { address, route } from "./route.js";
import { openSource } from "./source.js";
import { curves } from "./charts.js";
import { groups } from "./groups.js";
import { group } from "./group.js";
import { forensics } from "./forensics.js";
import { setup } from "./setup.js";
import { compare } from "./compare.js";

const VIEWS = { curves, groups, group, forensics, setup, compare };
const KEYS = [
  ["1 … 5", "pages"],
  ["/", "search"],
  ["j, k", "next, previous group (or row of the list)"],
  ["Enter", "open the row"],
  ["b, w", "best, worst attempt"],
  ["c", "best and worst side by side"],
  ["t", "light or dark"],
  ["?", "this list"],
  ["Esc", "close, or leave a field"],
];
const EVERY = 5000; // milliseconds between two questions for news

let leave = () => {};
let shown = 0;

function navigation(source) {
  const runs = source.page.runs;
  const pages = [
    ["curves", "Curves"],
    ["groups", "Groups"],
    ["forensics", "Forensics"],
    ["setup", "Setup"],
    ...(runs.length > 1 ? [["compare", "Compare"]] : []),
  ];
  const now = route();
  const run = now.parameters.run ?? 0;
  const perRun = ["groups", "forensics"];
  return [
    el(
      "ul",
      {},
      pages.map(([page, title]) =>
        el(
          "li",
          {},
          el(
            "a",
            {
              href: address(page, perRun.includes(page) && run ? { run } : {}),
              "aria-current":
                now.page === page || (now.page === "group" && page === "groups") ? "page" : null,
            },
            title,
          ),
        ),
      ),
    ),
    runs.length > 1 && [...perRun, "group"].includes(now.page)
      ? el(
          "label",
          { class: "field run" },
          el("span", {}, "Run"),
          el(
            "select",
            {
              on: {
                change: (event) => {
                  location.hash = address(now.page === "group" ? "groups" : now.page, {
                    run: event.target.value,
                  });
                },
              },
            },
            runs.map((facts) =>
              el(
                "option",
                { value: facts.id, selected: String(facts.id) === String(run) },
                facts.name,
              ),
            ),
          ),
        )
      : "",
  ];
}

async function show(source) {
  const { page, parameters } = route();
  const main = document.querySelector("main");
  const mine = ++shown;
  leave();
  leave = () => {};
  document.querySelector("#pages").replaceChildren(...navigation(source).filter(Boolean));
  const title = source.page.runs.map((facts) => facts.name).join(", ");
  document.title = visible(`${page} · ${title}`);
  const target = document.createElement("div");
  main.replaceChildren(target);
  try {
    const view = VIEWS[page];
    const end = view
      ? await view(target, source, parameters)
      : target.replaceChildren(heading("Not found"), link(address("curves"), "Curves"));
    if (mine !== shown) end?.();
    else leave = end ?? leave;
  } catch (error) {
    target.replaceChildren(
      heading("This could not be shown"),
      el("p", { class: "empty", role: "alert" }, String(error.message ?? error)),
    );
    throw error;
  } finally {
    main.removeAttribute("aria-busy");
  }
  if (mine === shown && !parameters.attempt) window.scrollTo(0, 0);
}

function theme() {
  const root = document.documentElement;
  const dark = root.dataset.theme
    ? root.dataset.theme === "dark"
    : matchMedia("(prefers-color-scheme: dark)").matches;
  root.dataset.theme = dark ? "light" : "dark";
}

/** Move along the rows of the list, or to the neighbouring group. */
function move(forward) {
  const neighbour = document.querySelector(forward ? "#next" : "#previous");
  if (neighbour) return neighbour.click();
  const rows = [...document.querySelectorAll("table.groups tbody a")];
  const at = rows.indexOf(document.activeElement);
  rows[Math.max(0, Math.min(rows.length - 1, at + (forward ? 1 : -1)))]?.focus();
  return undefined;
}

const totalOf = (article) => {
  const value = Number(article.querySelector(".total").textContent.replaceAll(",", ""));
  return Number.isNaN(value) ? null : value;
};

function pointAt(best) {
  const scored = [...document.querySelectorAll("article.attempt")].filter(
    (one) => totalOf(one) !== null,
  );
  scored.sort((a, b) => (best ? totalOf(b) - totalOf(a) : totalOf(a) - totalOf(b)));
  scored[0]?.scrollIntoView({ block: "start" });
  scored[0]?.focus({ preventScroll: true });
}

function pressed(event, source) {
  if (event.ctrlKey || event.metaKey || event.altKey) return;
  if (event.target.closest("input, select, textarea")) {
    if (event.key === "Escape") event.target.blur();
    return;
  }
  const pages = ["curves", "groups", "forensics", "setup", "compare"];
  const actions = {
    "/": () => document.querySelector("#search")?.focus(),
    "?": () => document.querySelector("dialog").showModal(),
    j: () => move(true),
    k: () => move(false),
    b: () => pointAt(true),
    w: () => pointAt(false),
    c: () => {
      const select = document.querySelector("select[name=view]");
      if (!select) return;
      select.value = select.value === "all" ? "ends" : "all";
      select.dispatchEvent(new Event("change"));
    },
    t: () => {
      theme();
      if (route().page === "curves") show(source);
    },
  };
  const page = pages[Number(event.key) - 1];
  if (page && (page !== "compare" || source.page.runs.length > 1)) location.hash = address(page);
  else if (actions[event.key]) {
    event.preventDefault();
    actions[event.key]();
  }
}

function frame(source) {
  const { runs, made, version, served } = source.page;
  const dialog = el(
    "dialog",
    { "aria-label": "Keys" },
    el("h2", {}, "Keys"),
    el(
      "dl",
      { class: "facts" },
      KEYS.map(([key, meaning]) => [el("dt", {}, el("kbd", {}, key)), el("dd", {}, meaning)]),
    ),
    el("button", { type: "button", on: { click: () => dialog.close() } }, "Close"),
  );
  // The data stay in the body, below what is shown.
  document.body.prepend(
    el(
      "a",
      {
        class: "skip",
        href: "#main",
        on: {
          click: (event) => {
            event.preventDefault();
            document.querySelector("main h1")?.focus();
          },
        },
      },
      "Skip to the content",
    ),
    el(
      "header",
      { class: "top" },
      el(
        "p",
        { class: "name" },
        runs.map((facts) => facts.name).join(" · "),
        served ? el("span", { class: "badge good", id: "live" }, "live") : "",
      ),
      el("nav", { id: "pages", "aria-label": "Pages" }),
      el(
        "div",
        {},
        el(
          "button",
          {
            type: "button",
            title: "Keys (?)",
            "aria-label": "Keys",
            on: { click: () => dialog.showModal() },
          },
          "?",
        ),
        el(
          "button",
          {
            type: "button",
            title: "Light or dark (t)",
            "aria-label": "Light or dark",
            on: {
              click: () => {
                theme();
                if (route().page === "curves") show(source);
              },
            },
          },
          "◐",
        ),
      ),
    ),
    el("main", { id: "main", "aria-busy": true }),
    el("footer", {}, `grpo-core ${version}, ${served ? "read" : "written"} ${made}`),
    dialog,
  );
}

/** Ask for news, and draw the view again where that disturbs nobody. */
async function watch(source) {
  const live = document.querySelector("#live");
  try {
    const before = JSON.stringify(source.page.runs.map((facts) => facts.revision));
    await source.refresh();
    const changed = before !== JSON.stringify(source.page.runs.map((facts) => facts.revision));
    live.textContent = source.page.runs.every((facts) => facts.finished) ? "finished" : "live";
    live.className = "badge good";
    const reading =
      ["group", "forensics", "setup"].includes(route().page) ||
      document.activeElement?.closest("input, select") ||
      document.querySelector("dialog").open ||
      scrollY > 200;
    if (changed && !reading) await show(source);
  } catch (error) {
    live.textContent = error.gone ? "server gone" : visible(error.message);
    live.className = "badge bad";
  }
  setTimeout(() => watch(source), EVERY);
}

/** Return the source of the data; without one, the page says why, and nothing else runs. */
async function opened() {
  try {
    return await openSource();
  } catch (error) {
    document.body.prepend(
      el(
        "main",
        { id: "main" },
        heading("This could not be shown"),
        el("p", { class: "empty", role: "alert" }, String(error.message ?? error)),
      ),
    );
    throw error;
  }
}

const source = await opened();
frame(source);
await new Promise((painted) => {
  requestAnimationFrame(() => setTimeout(painted));
});
addEventListener("hashchange", () => show(source));
addEventListener("keydown", (event) => pressed(event, source));
await show(source);
performance.mark("shown");
if (source.live) setTimeout(() => watch(source), EVERY);
