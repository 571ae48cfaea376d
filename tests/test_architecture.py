"""The direction of imports: who may know of whom, read from the sources and from what interpreters really load."""

import ast
import graphlib
import json
import os
import re
import subprocess
import sys
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

import grpo_core
from grpo_core.plugins.host import PluginHost

ROOT = Path(__file__).parents[1]
SOURCE_ROOTS = [ROOT / name for name in ("environments", "plugins", "sandbox")]
BUNDLED = {
    package.name: package
    for root in SOURCE_ROOTS
    if root.is_dir()
    for package in root.iterdir()
    if (package / "__init__.py").exists()
}

ORDER = """
    protocol
    words
    calls
    extract
    guards
    rubric
    __init__
    plugins
    config
    figures
    runs
    display
    verify
    programs
    engine
    engine/models
    engine/compute
    engine/ranks
    engine/policy
    train
    train/algorithm
    train/rollout
    train/update
    train/actor
    train/run
    train/grpo
    train/sft
    train/build
    train/looking
    train/trainer
    testing
    cli
    api
"""
"""The rooms (folders) and faces (files beside them) of the core: each imports only from those above it."""
RANK = {name: number for number, name in enumerate(ORDER.split())}

PUBLIC_MODULES = {
    "grpo_core.api.calls",
    "grpo_core.api.figures",
    "grpo_core.api.plugins",
    "grpo_core.api.protocol",
    "grpo_core.api.runs",
    "grpo_core.api.settings",
    "grpo_core.api.training",
    "grpo_core.api.verify",
    # What the commands of any package share:
    "grpo_core.cli.environment",  # of one environment: its options, opening it, printing tasks
    "grpo_core.cli.given",
    "grpo_core.cli.imports",
    "grpo_core.cli.launching",  # processes of the command, and the signals that they get
    "grpo_core.cli.measuring",
    "grpo_core.cli.options",
    "grpo_core.cli.output",
    "grpo_core.cli.progress",
    "grpo_core.cli.rows",  # --data and --reward
    "grpo_core.cli.run",  # its options, for what makes several runs
    "grpo_core.cli.run_config",
    "grpo_core.cli.summary_table",
    "grpo_core.extract",
    "grpo_core.guards",
    "grpo_core.programs",
    "grpo_core.rubric",
    "grpo_core.testing",
    "grpo_core.words",
    "grpo_core.words.unasked",  # names of what was not asked
    "grpo_core.words.hostile_texts",  # what no verifier should pay
    "grpo_core.figures.statistics",  # quantiles of tests that a listener makes
    "grpo_core.config.user_files",  # files that users write
    "grpo_core.protocol.hookspecs",  # the hooks, whose docstrings a page has
    "grpo_core.protocol.events",  # what a listener hears and answers
    "grpo_core.protocol.consent",  # settings of a plugin that runs others
    "grpo_core.protocol.sampler",  # what a sampler is asked and answers
    "grpo_core.protocol.scalars",  # a number that a reward function of a user's returned
    "grpo_core.protocol.tools",  # for a reply of one's own that answers calls
    "grpo_core.protocol.ties",  # changes of a reward that are more than rounding
    "grpo_core.protocol.endpoint",  # what an endpoint is asked and answers
    "grpo_core.protocol.executor",  # what a place of verification is asked and answers
    "grpo_core.plugins.versions",  # a check before an import inside a function
    "grpo_core.plugins.services",  # a sampler that runs those of other plugins
    "grpo_core.engine.models.chat",  # chat templates
    "grpo_core.engine.models.loading",  # what libraries raise while they load a model
    "grpo_core.engine.models.pieces",  # tokens of pieces of a text, and texts of drawn tokens
    "grpo_core.verify.workers.local",  # the far end of an executor
    "grpo_core.calls.child",  # a server that must end with the run
    "grpo_core.calls.folders",  # its folder, removed whatever is in it
    "grpo_core.calls.private_folder",  # and made so that no other user can enter it
    "grpo_core.calls.api_client",  # a call of an OpenAI-compatible endpoint
    "grpo_core.calls.api_settings",  # its address and key
    "grpo_core.calls.api_requests",  # its bound of new tokens
    "grpo_core.calls.json_limits",  # JSON of a stranger, before it is parsed
    "grpo_core.calls.web_callers",  # which requests to a server of this machine web pages sent
}
TRAINING_PACKAGES = {"torch", "transformers", "peft", "accelerate", "bitsandbytes", "safetensors"}


def modules(package: Path) -> Iterator[tuple[str, Path]]:
    """Dotted name and file of every module of a package."""
    for path in sorted(package.rglob("*.py")):
        parts = path.relative_to(package.parent).with_suffix("").parts
        yield ".".join(parts[:-1] if parts[-1] == "__init__" else parts), path


@cache
def syntax_nodes(path: Path) -> tuple[ast.AST, ...]:
    """All nodes of a file's syntax tree; a file is parsed once, as many tests look at all of them."""
    return tuple(ast.walk(ast.parse(path.read_text(encoding="utf-8"))))


def dotted(node: ast.AST) -> str:
    """Return a name with its attributes, such as "a.b"; what is no name stands as "?"."""
    if isinstance(node, ast.Attribute):
        return f"{dotted(node.value)}.{node.attr}"
    return node.id if isinstance(node, ast.Name) else "?"


@cache
def imports(path: Path) -> frozenset[str]:
    """Everything a file imports anywhere in it, as "module" or "module.name"."""
    found = set()
    for node in syntax_nodes(path):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}: write imports in full"
            found |= {f"{node.module}.{alias.name}" for alias in node.names}
    return frozenset(found)


CORE = dict(modules(ROOT / "grpo_core"))
BUNDLED_MODULES = {m: p for package in BUNDLED.values() for m, p in modules(package)}
EVERYTHING = CORE | BUNDLED_MODULES
AROUND = ("grpo_evals", "grpo_kit", "grpo_report", "grpo_trl")
"""The packages of commands and tools around the core, which print and read as it does."""
SPEAKING = CORE | {m: p for m, p in BUNDLED_MODULES.items() if m.partition(".")[0] in AROUND}


def core_module(name: str) -> str | None:
    """The module of the core that `name` is, or is a name of."""
    if name.partition(".")[0] != "grpo_core":
        return None
    return name if name in CORE else name.rpartition(".")[0]


def room(module: str) -> str:
    """Return the room or face that a module belongs to, as the folders have it; a room of the engine or of train has a name of its own."""
    parts = module.split(".")[1:]
    return "/".join(parts[: 2 if parts[:1] in (["engine"], ["train"]) else 1]) or "__init__"


def tops(path: Path) -> set[str]:
    return {name.partition(".")[0] for name in imports(path)}


def arrows() -> Iterator[tuple[str, str]]:
    """Yield each module of the core with each module of the core that it imports."""
    for importer, path in CORE.items():
        for imported in filter(None, map(core_module, imports(path))):
            yield importer, imported


def calls() -> Iterator[tuple[str, ast.Call]]:
    """Yield the calls of every module."""
    for module, path in EVERYTHING.items():
        for node in syntax_nodes(path):
            if isinstance(node, ast.Call):
                yield module, node


def test_the_order_names_every_room_and_no_other() -> None:
    assert {room(module) for module in CORE} == set(RANK)
    assert len(RANK) <= 33


def test_a_room_imports_only_from_rooms_above_it() -> None:
    violations = [
        f"{importer} imports {imported}"
        for importer, imported in arrows()
        if RANK[room(imported)] > RANK[room(importer)]
        and importer != "grpo_core"  # which names types of what it loads late
    ]
    assert violations == []


def test_the_core_has_no_import_cycles() -> None:
    graph = {
        importer: {m for m in map(core_module, imports(path)) if m and m != importer}
        for importer, path in CORE.items()
    }
    assert list(graphlib.TopologicalSorter(graph).static_order())


def test_the_core_imports_no_bundled_package() -> None:
    assert {
        f"{module} imports {top}"
        for module, path in CORE.items()
        for top in tops(path) & BUNDLED.keys()
    } == set()


OWN_WORDS = {
    *("alarms", "sandbox", "judge", "dataset", "terminal", "endpoint", "http", "recipes", "kit"),
    *("grpo", "auto", "rloo", "cispo", "passk", "maxk"),
}
"""Names of bundled plugins and components that are words of the core: kinds, defaults and algorithms."""
NAMED = {
    ("grpo_core.cli.doctor", "docker"),  # the programs that it looks for
    ("grpo_core.cli.doctor", "bubblewrap"),
}
"""What the core may name all the same, and why."""


def test_the_core_names_no_bundled_plugin_and_nothing_that_one_offers() -> None:
    """Only as an example in a help text or docstring; what is special about a component, its Spec or class declares."""
    host = PluginHost()
    ours = [name for name, plugin in host.plugins.items() if plugin.distribution == "grpo-core"]
    names = {spec.name for name in ours for specs in host.offers(name).values() for spec in specs}
    names = (names | {*ours}) - OWN_WORDS
    assert {"fillin", "llm", "docker", "besiege-small", "besiege/car", "dapo"} <= names
    constants = {
        (module, node.value)
        for module, path in CORE.items()
        for node in syntax_nodes(path)
        if isinstance(node, ast.Constant) and node.value in names
    }
    assert constants == NAMED


def test_bundled_packages_import_only_public_names_of_the_core() -> None:
    public = {f"grpo_core.{name}" for name in grpo_core.__all__} | {"grpo_core"} | PUBLIC_MODULES
    violations = {
        f"{module} imports {name}"
        for module, path in BUNDLED_MODULES.items()
        for name in imports(path)
        if name.partition(".")[0] == "grpo_core"
        and name not in public
        and name.rpartition(".")[0] not in PUBLIC_MODULES
    }
    assert violations == set()


def test_bundled_packages_do_not_import_each_other() -> None:
    violations = {
        f"{module} imports {top}"
        for module, path in BUNDLED_MODULES.items()
        for top in tops(path) & (BUNDLED.keys() - {module.partition(".")[0]})
    }
    assert violations == set()


def test_only_the_engine_the_trainer_and_plugins_import_torch_and_its_kin() -> None:
    outside = {
        module: path
        for module, path in CORE.items()
        if not room(module).startswith(("engine", "train"))
    }
    for package in BUNDLED.values():
        if package.parent.name != "plugins":
            outside |= dict(modules(package))
    assert {
        f"{module} imports {top}"
        for module, path in outside.items()
        for top in tops(path) & TRAINING_PACKAGES
    } == set()


@pytest.mark.sampled(2)
@pytest.mark.parametrize(
    ("owner", "package"),
    [
        ("grpo_sandbox", "docker"),
        ("grpo_vllm", "vllm"),
        ("grpo_ray", "ray"),
        ("grpo_mcp", "mcp"),
        ("grpo_mcp", "mcp_types"),
    ],
)
def test_a_foreign_package_is_imported_by_its_own_plugin_only(owner: str, package: str) -> None:
    using = {module for module, path in EVERYTHING.items() if package in tops(path)}
    assert {module for module in using if module.partition(".")[0] != owner} == set()


def test_whether_code_of_a_model_may_run_is_said_wherever_one_is_loaded() -> None:
    """transformers would ask on the terminal; peft and the classes of one architecture know no such argument."""
    loading = [
        (module, node)
        for module, node in calls()
        if isinstance(node.func, ast.Attribute)
        and node.func.attr in ("from_pretrained", "from_config")
        and "peft." not in dotted(node.func)
    ]
    assert len(loading) >= 7
    unsaid = {
        f"{module}: {ast.unparse(call.func)}"
        for module, call in loading
        if not {"trust_remote_code", None} & {keyword.arg for keyword in call.keywords}
    }
    assert unsaid == set()


LOADERS = {
    *("pickle.load", "pickle.loads", "pickle.Unpickler"),
    *("torch.load", "numpy.load", "joblib.load"),
}


def test_nothing_is_unpickled_but_tensors() -> None:
    """Of torch.load only `weights_only=True`, of pickle only copies and the names of its errors."""
    loading = [
        (module, name, ast.unparse(node))
        for module, node in calls()
        if (name := dotted(node.func)) in LOADERS
    ]
    assert [call for _, name, call in loading if name == "torch.load"]
    assert [
        (module, call)
        for module, name, call in loading
        if "weights_only=True" not in call
        if not call.startswith("pickle.loads(pickle.dumps(")  # a copy of an object of this process
    ] == []


DRAWING = re.compile(
    r"^(?:np\.|numpy\.)?random\.(?:random|uniform|sample|choices?|rand\w*|shuffle|permutation|getrandbits"
    r"|gauss|normal\w*|betavariate|expovariate|triangular|seed)$"
)
SEEDING = {
    ("grpo_kit.process.process_state", "random.seed"),  # of another process
    ("grpo_kit.tasks.tasks", "random.seed"),  # to find tasks that depend on it
    ("grpo_env_dataset.testing_program", "random.seed"),  # runs in a sandbox
    ("grpo_env_reasoning_gym.items", "random.seed"),  # restored afterwards
    ("grpo_env_reasoning_gym.items", "np.random.seed"),
}


def test_the_global_random_generators_are_left_to_the_verifiers_that_use_them() -> None:
    """What else draws from them makes a run depend on what happened beside it."""
    assert {
        (module, name) for module, node in calls() if DRAWING.match(name := dotted(node.func))
    } == SEEDING
    assert not [
        m for m, path in EVERYTHING.items() if imports(path) & {"random.shuffle", "random.random"}
    ]


PRINTERS = {
    "grpo_core.cli.output": "the functions that all output of the command line goes through",
    "grpo_core.calls.streams": "the streams under which everything else runs",
    "grpo_core.calls.console": "the console, which renders only what is printable",
}
FOREIGN_PRINTS = {
    ("grpo_core.cli.app", "sys.stdout"),  # its encoding's error handler
    ("grpo_core.cli.app", "sys.stderr"),
    ("grpo_core.calls.isolation", "sys.stderr"),  # where prints of plugins are sent
    ("grpo_kit.process.process_state", "sys.stdout"),  # whether a verdict replaces it
    ("grpo_kit.process.process_state", "sys.stderr"),
    ("grpo_core.engine.models.progress", "sys.stderr"),  # given to the console
}
"""What else may name a stream, and why."""
WRITERS = {
    *("print", "Console", "click.echo", "sys.stdout", "sys.stderr"),
    *("typer.echo", "typer.secho", "typer.style", "typer.progressbar"),
}


def test_only_one_file_prints() -> None:
    found = {
        (module, name)
        for module, path in SPEAKING.items()
        if module not in PRINTERS
        for node in syntax_nodes(path)
        if isinstance(node, (ast.Name, ast.Attribute)) and (name := dotted(node)) in WRITERS
    }
    assert found - FOREIGN_PRINTS == set(), "print by a function of grpo_core.cli.output"
    assert FOREIGN_PRINTS - found == set()


def test_only_one_file_makes_a_console_of_rich() -> None:
    assert {
        module for module, path in SPEAKING.items() if "rich.console.Console" in imports(path)
    } == {"grpo_core.calls.console"}
    bars = re.compile(r"TextColumn\((?!.*markup=False)")
    assert [
        path for path in SPEAKING.values() if bars.search(path.read_text(encoding="utf-8"))
    ] == []


def test_a_command_imports_inside_functions_only_what_needs_the_extra_train() -> None:
    inside = {
        f"{module} imports {ast.unparse(node)}"
        for module, path in SPEAKING.items()
        if room(module) == "cli" or ".commands" in module
        for function in syntax_nodes(path)
        if isinstance(function, ast.FunctionDef | ast.AsyncFunctionDef)
        for node in ast.walk(function)
        if isinstance(node, ast.Import | ast.ImportFrom)
    } - {
        "grpo_core.cli.commands imports from rich.markup import escape",
        "grpo_core.cli.plugin_commands imports import importlib.metadata",
    }  # for a quick help
    assert inside
    needing = re.compile(r"imports from grpo_core\.(engine\.|train\.|api\.training)")
    assert [text for text in inside if not needing.search(text)] == []


def loaded_after(code: str, *arguments: str, path: list[Path]) -> set[str]:
    """The modules of a fresh interpreter after `code`."""
    script = f"import json, sys\ntry:\n    {code}\nfinally:\n    json.dump(sorted(sys.modules), sys.stderr)"
    env = {**os.environ, "PYTHONPATH": os.pathsep.join(map(str, path))}
    result = subprocess.run(
        [sys.executable, "-c", script, *arguments],
        capture_output=True,
        text=True,
        env=env,
        timeout=60,
        check=True,
    )
    return set(json.loads(result.stderr))


@pytest.fixture
def source_tree(tmp_path: Path) -> list[Path]:
    """A search path on which the sources are installed with the entry points of pyproject.toml."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    info = tmp_path / "grpo_core-0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: grpo-core\nVersion: 0\n")
    lines = [
        line
        for group, entries in project["entry-points"].items()
        for line in (f"[{group}]", *(f"{name} = {target}" for name, target in entries.items()))
    ]
    (info / "entry_points.txt").write_text("\n".join(lines))
    return [tmp_path, ROOT, *SOURCE_ROOTS]


@pytest.mark.parametrize(
    ("code", "arguments", "module", "others"),
    [
        (
            "import grpo_core",
            "",
            "grpo_core.protocol.environment",
            "torch docker transformers pydantic asyncio typer rich",
        ),
        (
            "from grpo_core import Environment, Trainer",
            "",
            "grpo_core.train.trainer",
            "torch transformers peft",
        ),
        (
            "from grpo_core.cli import main; main()",
            "--help",
            "grpo_core.cli.app",
            f"torch docker transformers pydantic {' '.join(BUNDLED)}",
        ),
        (
            "from grpo_core.cli import main; main()",
            "envs",
            "grpo_env_arithmetic",
            "grpo_env_arithmetic.env torch docker transformers",
        ),
    ],
    ids=["the SDK", "an environment beside its training", "help", "the list of environments"],
)
def test_only_what_is_used_is_loaded(
    code: str, arguments: str, module: str, others: str, source_tree: list[Path]
) -> None:
    loaded = loaded_after(code, *arguments.split(), path=source_tree)
    assert module in loaded
    assert loaded & {*others.split()} == set()


UNPICKLING = re.compile(
    r"(?:^|\.)(?:\w*(?:gather|scatter|broadcast|send|recv)_object(?:_list)?"
    r"|use_gather_object|shelve|marshal|dill|cloudpickle|joblib|Unpickler)(?:\.|$)"
    r"|^(?:torch\.distributed\.(?:checkpoint|rpc)|multiprocessing)(?:\.|$)"
    r"|(?:^|\.)pickle\.loads?$|^torch\.(?:load|package)$"
)
"""Names of what unpickles, of torch, accelerate, the standard library and others."""
UNPICKLERS = {
    ("grpo_kit.tasks.tasks", "pickle.loads"),  # of a task that it has pickled itself
    ("grpo_core.train.run.checkpoint", "torch.load"),  # of tensors only, as asked below
}


def test_nothing_that_comes_from_another_process_is_unpickled() -> None:
    """Processes, workers and servers exchange JSON and tensors."""
    found = {
        (module, name)
        for module, path in EVERYTHING.items()
        for node in syntax_nodes(path)
        if isinstance(node, (ast.Name, ast.Attribute, ast.Import, ast.ImportFrom))
        for name in (
            [f"{node.module}.{alias.name}" for alias in node.names]
            if isinstance(node, ast.ImportFrom)
            else [alias.name for alias in node.names]
            if isinstance(node, ast.Import)
            else [dotted(node)]
        )
        if UNPICKLING.search(name)
    }
    assert found == UNPICKLERS


OPENING = re.compile(
    r"\.(?:open\(\s*\"|write_text\(|write_bytes\(|read_text\(|read_bytes\()|(?<!def )(?<![\w.])open\("
    r"|gzip\.open|sqlite3\.connect"
)
OPENS_OTHER_FILES = {
    "grpo_report.indexes.index_file": "an index in the user's own cache",
    "grpo_core.runs.store": "a cache that a setting names",
    "grpo_report.html.page": "files of this package",
    "grpo_core.train.run.opening": "the user's file of examples",
    "grpo_core.train.run.metrics": "the kernel's numbers about this process",
    "grpo_core.runs.starting": "the kernel's numbers about processes",
}


def test_files_of_a_run_folder_are_opened_by_one_module() -> None:
    """Else a link, a pipe or a line without end in a stranger's folder would be followed, waited for or read."""
    rooms = ("grpo_core.runs.", "grpo_core.train.run.", "grpo_report.", "grpo_evals.")
    opening = {
        name: OPENING.findall(path.read_text(encoding="utf-8"))
        for name, path in EVERYTHING.items()
        if name.startswith(rooms) and name != "grpo_core.runs.files"
    }
    assert {name for name, places in opening.items() if places} == set(OPENS_OTHER_FILES)
