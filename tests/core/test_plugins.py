"""How plugins are found, loaded and kept apart."""

import sys
from pathlib import Path

import pytest

from grpo_core import MissingExtraError, PluginError, UnknownNameError
from grpo_core.plugins.host import PluginHost

from .distributions import OFFERS_ONE, install, install_plugin

HOOK = "from grpo_core import Spec, hookimpl\n\n@hookimpl\n"
BROKEN = {
    "raises": ("raise ValueError('no luck')", "ValueError: no luck"),
    "exits": ("import sys; sys.exit(3)", "called sys.exit(3)"),
    "interrupts": ("raise KeyboardInterrupt", "KeyboardInterrupt"),
    "recurses": ("def f(): f()\nf()", "RecursionError"),
    "typo": ("def f(:\n    pass", "SyntaxError"),
    "lacks": ("import a_package_nobody_has", "the package 'a_package_nobody_has' is not installed"),
    "silent": ("x = 1", "implements no hook"),
    "misspelt": (HOOK + "def grpo_enviroments(): return []", "grpo_enviroments"),
    "argument": (HOOK + "def grpo_environments(surprise): return []", "surprise"),
    "none": (
        HOOK + "def grpo_environments(): pass",
        "grpo_environments() returned None; return a list of Spec",
    ),
    "strings": (
        HOOK + "def grpo_environments(): return ['strings']",
        "grpo_environments() returned ['strings']; return a list of Spec",
    ),
    "hook": (HOOK + "def grpo_judges(): raise OSError('in a hook')", "OSError: in a hook"),
    "squatter": (
        HOOK + "def grpo_environments(): return [Spec('good/hard', 'x:Y')]",
        "offers 'good/hard'; what stands before a slash is the entry point's name: 'squatter/...'",
    ),
    "stutters": (
        HOOK + "def grpo_environments(): return [Spec('stutters', 'x:Y')] * 2",
        "offers 'stutters' twice",
    ),
}


def names_of(host: PluginHost) -> list[str]:
    return [offer.spec.name for offer in host.specs("environment")]


def test_making_a_host_reads_metadata_and_imports_no_plugin(site: Path) -> None:
    install_plugin(site, "good")
    host = PluginHost()
    assert host.plugins["good"].distribution == "grpo-env-good"
    assert host.plugins["good"].version == "1.0"
    assert "plugin_good" not in sys.modules


def test_get_imports_the_one_plugin_that_the_first_part_of_the_name_says(site: Path) -> None:
    two = "def grpo_environments(): return [Spec('good', 'x:Y'), Spec('good/hard', 'x:Hard')]"
    install_plugin(site, "good", HOOK + two)
    install_plugin(site, "other")
    assert PluginHost().get("environment", "good/hard").target == "x:Hard"
    assert "plugin_good" in sys.modules
    assert "plugin_other" not in sys.modules


def test_an_unknown_name_gets_the_nearest_installed_one_without_an_import(site: Path) -> None:
    install_plugin(site, "fizzbuzz")
    with pytest.raises(
        UnknownNameError,
        match=r"environment 'fizbuz' is not known; did you mean 'fizzbuzz'\? `grpo envs` lists",
    ):
        PluginHost().get("environment", "fizbuz/hard")
    assert "plugin_fizzbuzz" not in sys.modules


def test_an_unknown_variant_is_answered_with_what_the_plugin_offers(site: Path) -> None:
    install_plugin(site, "good")
    with pytest.raises(
        UnknownNameError, match=r"'good/hard' is not known.*The plugin 'good' offers 'good'"
    ):
        PluginHost().get("environment", "good/hard")
    with pytest.raises(UnknownNameError, match="The plugin 'good' offers no judge"):
        PluginHost().get("judge", "good")


PACK = (
    HOOK
    + "def grpo_environments(): return [Spec('alpha', 'x:Alpha'), Spec('beta', 'x:Beta')]\n"
    + "@hookimpl\ndef grpo_judges(): return [Spec('alpha', 'x:Judge')]"
)


def test_a_name_of_a_bundled_component_is_found_before_any_plugin_of_others_is_imported(
    site: Path,
) -> None:
    install_plugin(site, "aaa", PACK)
    host = PluginHost()
    for kind, name, plugin in (
        ("recipe", "dapo", "recipes"),
        ("recipe", "fill-in", "fillin"),
        ("sandbox", "docker", "sandbox"),
        ("judge", "llm", "judge"),
        ("environment", "besiege/car", "besiege"),
    ):
        assert host.find(kind, name).plugin.name == plugin
    assert "plugin_aaa" not in sys.modules


def test_a_broken_plugin_is_passed_over_and_mentioned_only_if_the_name_is_not_found(
    site: Path,
) -> None:
    install_plugin(site, "aaa", "raise ValueError('no luck')")
    install_plugin(site, "pack", PACK)
    assert PluginHost().get("environment", "beta").target == "x:Beta"
    with pytest.raises(
        UnknownNameError,
        match=r"did you mean 'beta'\? Switched off or broken are 'aaa'\. `grpo envs`",
    ):
        PluginHost().get("environment", "betta")


def test_a_broken_plugin_that_bears_the_name_of_a_bundled_component_does_not_hide_it(
    site: Path,
) -> None:
    install_plugin(site, "docker", "raise ValueError('no luck')")
    assert PluginHost().find("sandbox", "docker").plugin.distribution == "grpo-core"
    with pytest.raises(PluginError, match="no luck"):
        PluginHost().get("environment", "docker")


def test_of_two_components_with_one_name_the_first_is_used_and_the_other_reported(
    site: Path,
) -> None:
    install_plugin(site, "pack", PACK)
    install_plugin(site, "rival", PACK)
    install_plugin(
        site,
        "tracks",
        HOOK + "def grpo_recipes(): return [Spec('dapo', 'x:Y'), Spec('slow', 'x:Z')]",
    )
    host = PluginHost()
    assert host.find("environment", "alpha").plugin.name == "pack"
    assert host.find("recipe", "dapo").plugin.distribution == "grpo-core"
    assert host.find("recipe", "slow").plugin.name == "tracks"
    for kind in ("environment", "judge", "recipe"):
        for offer in host.specs(kind):
            assert offer == host.find(kind, offer.spec.name)
    assert len(host.failures) == 4
    by_rival, _, _, by_tracks = map(str, host.failures)
    assert (
        "it offers the environment 'alpha', but this name belongs to the plugin 'pack' of "
        "grpo-env-pack 1.0; to use this environment instead, set GRPO_DISABLE_PLUGINS=pack"
    ) in by_rival
    assert (
        "the recipe 'dapo', but this name belongs to the plugin 'recipes' of grpo-core" in by_tracks
    )
    assert PluginHost(disabled="pack").find("environment", "alpha").plugin.name == "rival"


def test_a_component_belongs_to_the_plugin_that_bears_its_name(site: Path) -> None:
    install_plugin(site, "alpha", HOOK + "def grpo_environments(): return [Spec('alpha', 'x:Own')]")
    install_plugin(site, "aaa", PACK)
    host = PluginHost()
    assert host.get("environment", "alpha").target == "x:Own"
    assert "plugin_aaa" not in sys.modules
    host.specs("environment")
    (failure,) = host.failures
    assert failure.plugin.name == "aaa"


def test_a_target_may_be_a_toml_file_of_a_package(site: Path) -> None:
    hook = HOOK + "def grpo_recipes(): return [Spec(n, f'plugin_pack:{n}.toml') for n in 'abc']"
    install(site, "pack", entry_points={"pack": "plugin_pack"})
    (site / "plugin_pack").mkdir()
    (site / "plugin_pack" / "__init__.py").write_text(hook)
    (site / "plugin_pack" / "a.toml").write_text("[kl]\nbeta = 0.5\n")
    (site / "plugin_pack" / "b.toml").write_text("[kl\n")
    host = PluginHost()
    assert host.load("recipe", "a") == {"kl": {"beta": 0.5}}
    for name in ("b", "c"):
        with pytest.raises(PluginError, match=f"'{name}.toml' of 'plugin_pack' cannot be read"):
            host.load("recipe", name)


@pytest.mark.parametrize("name", BROKEN)
def test_a_broken_plugin_is_named_with_its_reason_and_breaks_no_other(
    site: Path, name: str
) -> None:
    source, reason = BROKEN[name]
    install_plugin(site, name, source)
    install_plugin(site, "good")
    host = PluginHost()
    assert "good" in names_of(host)
    assert name not in names_of(host)
    (failure,) = [failure for failure in host.failures if failure.plugin.name == name]
    assert reason in failure.reason
    assert f"GRPO_DISABLE_PLUGINS={name}" in failure.fix
    with pytest.raises(PluginError) as error:
        host.get("environment", name)
    assert failure.reason in str(error.value)


def test_a_plugin_that_failed_is_not_imported_again(site: Path) -> None:
    install_plugin(
        site, "once", "import sys\nsys.once = getattr(sys, 'once', 0) + 1\nraise ValueError"
    )
    host = PluginHost()
    host.specs("environment")
    host.specs("judge")
    assert vars(sys).pop("once") == 1


def test_ctrl_c_of_the_user_while_a_plugin_loads_passes_through(site: Path) -> None:
    install_plugin(
        site, "slow", "import os, signal, time\nos.kill(os.getpid(), signal.SIGINT)\ntime.sleep(30)"
    )
    with pytest.raises(KeyboardInterrupt):
        PluginHost().get("environment", "slow")


def test_what_a_plugin_prints_while_it_loads_goes_to_stderr(
    site: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = OFFERS_ONE.format(name="chatty", target="x:Y")
    install_plugin(site, "chatty", f"print('hello from import')\n{source}")
    PluginHost().get("environment", "chatty")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert "hello from import" in captured.err


def test_of_two_plugins_with_one_name_the_second_fails_and_is_not_renamed(site: Path) -> None:
    for distribution in ("a-first", "b-second"):
        module = distribution.replace("-", "_")
        source = OFFERS_ONE.format(name="twin", target=f"{module}:X")
        install(site, distribution, entry_points={"twin": module}, modules={module: source})
    host = PluginHost()
    assert host.get("environment", "twin").target == "a_first:X"
    (failure,) = host.failures
    assert failure.plugin.distribution == "b-second"
    assert "the name is taken by a-first 1.0" in failure.reason
    assert "pip uninstall b-second" in failure.fix


def test_no_stranger_takes_the_name_of_a_bundled_plugin(site: Path) -> None:
    install(site, "a-stranger", entry_points={"bundled": "plugin_stranger"})
    install(site, "grpo-core", entry_points={"bundled": "plugin_ours"})
    assert PluginHost().plugins["bundled"].distribution == "grpo-core"


def test_metadata_that_cannot_be_read_hides_no_other_plugin(site: Path) -> None:
    install(site, "garbled", entry_points={})
    (site / "garbled-1.0.dist-info" / "entry_points.txt").write_text(
        "[grpo]\nthis line has no equals sign\n"
    )
    install_plugin(site, "good")
    host = PluginHost()
    assert "good" in host.plugins
    (failure,) = host.failures
    assert "garbled" in failure.plugin.distribution
    assert "metadata cannot be read" in failure.reason


def test_a_distribution_that_is_on_the_path_twice_counts_once(site: Path) -> None:
    (site / "older").mkdir()
    install(site / "older", "grpo-env-good", entry_points={"good": "plugin_good"}, version="0.9")
    sys.path.append(str(site / "older"))
    install_plugin(site, "good")
    host = PluginHost()
    assert host.failures == ()
    assert host.plugins["good"].version == "1.0"


def test_disabled_plugins_are_not_imported_and_say_so(
    site: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_plugin(site, "good")
    install_plugin(site, "bad", "raise ValueError")
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "all")
    assert PluginHost().specs("environment") == []
    monkeypatch.setenv("GRPO_DISABLE_PLUGINS", "bad, unknown")
    host = PluginHost()
    assert "good" in names_of(host)
    assert host.failures == ()
    with pytest.raises(PluginError, match="'bad' is switched off by GRPO_DISABLE_PLUGINS"):
        host.get("environment", "bad")


@pytest.mark.parametrize(
    ("source", "error", "said"),
    [
        (
            "raise RuntimeError('broken weights')",
            PluginError,
            r"plugin 'good' \(grpo-env-good 1.0\) cannot be used: RuntimeError: broken weights .*; try `pip install",
        ),
        ("import a_package_nobody_has", MissingExtraError, r"pip install 'grpo-core\[besiege\]'"),
    ],
    ids=["it fails", "it lacks its extra"],
)
def test_a_target_that_cannot_be_imported_says_why_and_what_to_install(
    site: Path, source: str, error: type[Exception], said: str
) -> None:
    spec = "Spec('good', 'plugin_target:Thing', extra='besiege')"
    install_plugin(site, "good", f"{HOOK}def grpo_environments(): return [{spec}]")
    (site / "plugin_target.py").write_text(source)
    with pytest.raises(error, match=said):
        PluginHost().load("environment", "good")
