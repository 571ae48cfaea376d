"""The executor `ray` with Ray itself: two nodes on this machine, verdicts, failures, and what it costs.

GRPO_RAY_PYTHON names the Python of an environment with grpo-core and Ray; `.ci/full` makes one. `-s` prints what was
measured.
"""

import json
import os
import signal
import subprocess
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import psutil
import pytest

from grpo_core.runs.lines import read_lines

from ..core.distributions import grpo, install
from ..sandbox.engines import engine_of_its_own

PYTHON = os.environ.get("GRPO_RAY_PYTHON", "")
GSM8K = os.environ.get("GRPO_GSM8K", "")
BENCHMARK = Path(__file__).parents[2] / "examples" / "benchmarks" / "ray_verification.py"
GRPO = [PYTHON, "-c", "from grpo_core.cli import main; main()"]
pytestmark = [
    pytest.mark.heavy,
    pytest.mark.skipif(
        not PYTHON, reason="GRPO_RAY_PYTHON names no Python of an environment with Ray"
    ),
]


def measured(
    *arguments: str,
    docker_host: str | None = None,
    answer: Callable[[], None] = lambda: None,
) -> list[dict[str, Any]]:
    """The results of the benchmark, which has to keep its bars; `answer` is called when it waits for a line."""
    environment = {**os.environ, **({"DOCKER_HOST": docker_host} if docker_host else {})}
    command = [PYTHON, str(BENCHMARK), *arguments]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        watchdog = threading.Timer(1500, process.kill)
        watchdog.start()
        assert process.stdin is not None
        assert process.stdout is not None
        results = []
        for line in process.stdout:
            print(line, end="")
            assert line.startswith("{"), f"Ray writes to the user's terminal: {line}"
            results.append(json.loads(line))
            if "send a line" in results[-1]["what"]:
                answer()
                process.stdin.write("\n")
                process.stdin.flush()
        watchdog.cancel()
    assert process.returncode == 0, results
    return results


WITHOUT_CLUSTER = {name: text for name, text in os.environ.items() if name != "RAY_ADDRESS"}


def members() -> list[str]:
    return [
        "--environments", "arithmetic,fizzbuzz" + (",gsm8k" if GSM8K else ""), "--gsm8k", GSM8K,
    ]  # fmt: skip


def test_verdicts_of_two_nodes_are_those_of_this_machine_row_by_row() -> None:
    results = measured("equal", *members(), "--rows", "500")
    assert [row["rows"] for row in results] == [500] * (3 if GSM8K else 2)
    assert {row["differing"] + row["errors"] for row in results} == {0}
    assert min(row["kinds_of_rewards"] for row in results) >= 2


def test_an_actor_a_raylet_and_docker_fail_and_nothing_gets_a_reward_for_it() -> None:
    with engine_of_its_own(with_image=True) as engine:

        def restart() -> None:
            engine.stop()
            time.sleep(3)
            engine.start()

        rows = ("--rows", "60")
        results = measured("faults", *members(), *rows, docker_host=engine.host, answer=restart)
    rounds = [row for row in results if row["what"] == "faults"]
    assert [row["event"].split()[-2:] for row in rounds[1:-1]] == [
        ["is", "killed"], ["is", "killed"], ["is", "restarted"],
    ]  # fmt: skip
    assert all(row["wrong_rewards"] == 0 and row["counted"] == row["errors"] for row in rounds)
    assert rounds[0]["errors"] == rounds[-1]["errors"] == 0
    assert sum(row["retried"] for row in rounds) > 0


def test_a_verdict_costs_little_more_than_on_this_machine() -> None:
    (row,) = measured("overhead")
    assert row["overhead_p50_ms"] < 5


def test_slow_verdicts_scale_with_actors() -> None:
    results = measured("scale")
    assert [row["actors"] for row in results] == [1, 2, 4, 8, 16]
    assert min(row["of_linear"] for row in results) >= 0.9


def test_episodes_stay_in_their_actor_and_are_replayed_when_it_is_killed() -> None:
    core = str(Path(__file__).parents[1] / "core")  # where the actors find the module of games
    path = os.pathsep.join(filter(None, [core, os.environ.get("PYTHONPATH", "")]))
    done = subprocess.run(
        [PYTHON, str(Path(__file__).parent / "ray_episodes.py")],
        capture_output=True,
        text=True,
        timeout=300,
        env={**os.environ, "PYTHONPATH": path},
        check=False,
    )
    assert done.returncode == 0, done.stderr
    results = [json.loads(line) for line in done.stdout.splitlines()]
    assert len(results) == 2
    for result in results:
        assert result["answers"] == [f"a{number},b{number}" for number in range(20)]
        assert result["replies"] == ["2: no"] * 4
        assert result["after"] == ["x,y"] * 4


RUN = [
    "run", "--env=arithmetic", "--steps=2", "--set=prompts_per_step=2", "--set=group_size=4",
    "--set=eval.tasks=2", "--set=model.dtype=float32", "--set=verify.executor.name=ray",
    "--set=verify.executor.settings.actors=2", "--set=verify.executor.settings.num_cpus=0.5",
]  # fmt: skip


def processes_of_ray() -> set[int]:
    return {
        process.pid
        for process in psutil.process_iter(["name"])
        if process.info["name"] in ("raylet", "gcs_server")
    }


def test_a_run_starts_and_ends_a_cluster_and_ray_says_nothing(tmp_path: Path) -> None:
    before = processes_of_ray()
    done = subprocess.run(
        [*GRPO, *RUN, f"--model={tiny(tmp_path)}", f"--out={tmp_path / 'run'}"],
        capture_output=True, text=True, env=WITHOUT_CLUSTER, timeout=300, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert "ray" not in (done.stdout + done.stderr).lower().replace("array", "")
    assert processes_of_ray() <= before


OWN = """
import json, os, psutil, ray
from grpo_ray.cluster import Cluster
cluster = Cluster(None)
cluster.join()
ray.get(ray.remote(lambda: 1).remote())
token = os.environ["RAY_AUTH_TOKEN"]
processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
private = os.path.dirname(ray._private.worker._global_node.get_temp_dir_path())
print(json.dumps({
    "names": sorted({process.name() for process in processes}),
    "addresses": sorted({
        connection.laddr.ip.removeprefix("::ffff:")
        for process in processes
        for connection in process.net_connections("inet")
        if connection.status == psutil.CONN_LISTEN
    }),
    "shows_token": any(token in " ".join(process.cmdline()) for process in processes),
    "mode": os.stat(private).st_mode & 0o777,
}))
cluster.leave()
cluster.join()
print(json.dumps({"again": ray.get(ray.remote(lambda: 2).remote()), "same": private ==
    os.path.dirname(ray._private.worker._global_node.get_temp_dir_path())}))
cluster.leave()
print(json.dumps({"left": os.path.exists(private), "mode": os.environ.get("RAY_AUTH_MODE")}))
"""


def test_a_cluster_of_a_run_belongs_to_the_run_alone(tmp_path: Path) -> None:
    """Nothing listens on other addresses, no file of Ray's is at a place that can be foreseen, and it can start again."""
    known = [Path("/tmp/ray"), tmp_path / ".ray"]
    there = [path.exists() for path in known]
    environment = {
        name: text
        for name, text in os.environ.items()
        if not name.startswith("RAY_") and name != "TMPDIR"
    }
    done = subprocess.run(
        [PYTHON, "-c", OWN], capture_output=True, text=True, timeout=300, check=False,
        env={**environment, "HOME": str(tmp_path)},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    running, again, left = map(json.loads, done.stdout.splitlines())
    assert {"gcs_server", "raylet"} <= set(running["names"])
    assert running["addresses"] == ["127.0.0.1"]
    assert not running["shows_token"]
    assert running["mode"] == 0o700
    assert again == {"again": 2, "same": False}
    assert left == {"left": False, "mode": None}
    assert [path.exists() for path in known] == there


def tiny(folder: Path) -> Path:
    """A folder with a model that takes no time, made with the Python of this process."""
    from ..train.tiny import save_tiny

    return save_tiny(folder / "model")


@contextmanager
def cluster(second_path: str = "") -> Iterator[dict[str, str]]:
    """The environment variables for a cluster with two nodes; the second has a PYTHONPATH of its own."""
    script = (
        "import json, os, sys; sys.path.insert(0, sys.argv[1]); from raylets import two_raylets\n"
        "with two_raylets(cpus=2, second_path=sys.argv[2]) as nodes:\n"
        "    token = {name: text for name, text in os.environ.items() if name.startswith('RAY_')}\n"
        "    print(json.dumps({**token, 'RAY_ADDRESS': nodes.address}), flush=True)\n"
        "    sys.stdin.readline()"
    )
    with subprocess.Popen(
        [PYTHON, "-c", script, str(BENCHMARK.parent), second_path],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdin is not None
        try:
            yield {**os.environ, **json.loads(process.stdout.readline())}
        finally:
            process.stdin.write("\n")
            process.stdin.close()
            process.wait(60)


def command(environment: dict[str, str], *arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*GRPO, *arguments], capture_output=True, text=True, env=environment, timeout=300, check=False
    )  # fmt: skip


def test_doctor_looks_at_each_node_and_a_run_joins_the_cluster(tmp_path: Path) -> None:
    with cluster() as environment:
        lines = [
            row
            for row in json.loads(command(environment, "doctor", "--json").stdout)
            if row["topic"] == "executor ray"
        ]
        assert [row["status"] for row in lines] == ["ok", "ok"]
        assert all("2 CPU, 0 GPU, python 3." in row["found"] for row in lines)
        before = processes_of_ray()
        done = command(environment, *RUN, f"--model={tiny(tmp_path)}", f"--out={tmp_path / 'run'}")
        assert done.returncode == 0, done.stderr
        assert processes_of_ray() == before


def test_a_node_with_another_version_is_refused_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "other").mkdir()
    (tmp_path / "other" / "sitecustomize.py").write_text(
        "import importlib.metadata as metadata\n"
        "genuine = metadata.version\n"
        "metadata.version = lambda name: '9.9' if name == 'grpo-core' else genuine(name)\n"
    )
    with cluster(str(tmp_path / "other")) as environment:
        done = command(environment, *RUN, f"--model={tiny(tmp_path)}", f"--out={tmp_path / 'run'}")
        looked = command(environment, "doctor")
    assert done.returncode == 2, done.stderr
    last = done.stderr.splitlines()[-1]
    assert "has grpo-core 9.9 instead of " in last
    assert "install the same versions on all nodes" in last
    assert "Traceback" not in done.stderr
    assert looked.returncode == 1
    assert "9.9" in looked.stdout


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        (["address=127.0.0.1:1"], "the Ray cluster at 127.0.0.1:1 cannot be used"),
        (["address=ray://127.0.0.1:1"], "is that of a Ray client server"),
        (["resources.docker=1"], "no node of the Ray cluster has what an actor of"),
        (["environments.arithmetic.cpus=1"], "environments.arithmetic.cpus"),
    ],
)
def test_what_cannot_work_is_one_line(tmp_path: Path, settings: list[str], message: str) -> None:
    changed = [f"--set=verify.executor.settings.{text}" for text in settings]
    done = command(
        WITHOUT_CLUSTER, *RUN, *changed, f"--model={tiny(tmp_path)}", f"--out={tmp_path / 'run'}"
    )
    assert done.returncode == 2, done.stderr
    assert message in done.stderr.splitlines()[-1]
    assert "Traceback" not in done.stderr


NOTING = """
import os
from grpo_sampler_my_engine.sampler import MyEngineSampler


class Noting(MyEngineSampler):
    'Writes down which process draws.'

    async def generate(self, request):
        with open(os.environ["GRPO_TEST_NOTES"], "a") as notes:
            notes.write(f"{os.getpid()} {self._version}\\n")
        return await super().generate(request)
"""
PLUGIN = """
from grpo_core import Spec, hookimpl


@hookimpl
def grpo_samplers():
    return [Spec("noting", "noting:Noting", summary=".")]
"""


def test_two_actors_draw_the_rollouts_of_a_run_and_one_of_them_may_die(tmp_path: Path) -> None:
    project = tmp_path / "project"
    assert grpo("new", "sampler", "my-engine", "--out", str(project)).exit_code == 0
    (tmp_path / "noting.py").write_text(NOTING)
    modules = {"plugin_noting": PLUGIN}
    install(tmp_path, "grpo-noting", entry_points={"noting": "plugin_noting"}, modules=modules)
    notes = tmp_path / "notes"
    environment = WITHOUT_CLUSTER | {
        "PYTHONPATH": f"{project}{os.pathsep}{tmp_path}",
        "GRPO_TEST_NOTES": str(notes),
    }
    sampler = ["sampler=noting", "actors=2", "num_cpus=0.5"]
    arguments = [
        *RUN, "--steps=4", f"--model={tiny(tmp_path)}", f"--out={tmp_path / 'run'}",
        "--set=sampler.name=ray", "--set=sampling.max_new_tokens=8", "--set=optimizer.lr=0.02",
        *(f"--set=sampler.settings.{text}" for text in sampler),
    ]  # fmt: skip
    with subprocess.Popen(
        [*GRPO, *arguments], env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True,
    ) as process:  # fmt: skip
        deadline = time.monotonic() + 240
        while not (notes.exists() and " 1" in notes.read_text()):
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline
            time.sleep(0.05)
        victim = int(notes.read_text().split()[0])
        os.kill(victim, signal.SIGKILL)
        output, _ = process.communicate(timeout=300)
    assert process.returncode == 0, output
    drew = [tuple(map(int, line.split())) for line in notes.read_text().splitlines()]
    pids = {pid for pid, _ in drew}
    assert victim in pids
    assert len(pids) >= 2  # and the one that replaces the lost one, if it comes in time
    assert {version for _, version in drew} == {0, 1, 2, 3, 4}
    lines = [line for line in read_lines(tmp_path / "run" / "metrics.jsonl") if "loss" in line]
    assert [line["step"] for line in lines] == [1, 2, 3, 4]
    assert max(line["sampling/logprob_gap"] for line in lines) < 1e-4


LETTERS = f"{Path(__file__).parents[1] / 'train' / 'letters.py'}:Letters"


def test_two_actors_with_the_built_in_engine_make_the_run_that_one_process_makes(
    tmp_path: Path,
) -> None:
    model, runs = tiny(tmp_path), []
    ray = ("name=ray", "settings.actors=2", "settings.num_cpus=0.5")
    for name, sampler in (("alone", []), ("actors", [f"--set=sampler.{text}" for text in ray])):
        out = tmp_path / name
        arguments = [f"--env={LETTERS}", "--steps=4", f"--model={model}", f"--out={out}"]
        arguments += ["--dtype=float32", "--set=eval.tasks=2", "--set=optimizer.lr=0.01", *sampler]
        command = [*GRPO, "run", *arguments]
        subprocess.run(command, env=WITHOUT_CLUSTER, check=True, timeout=300)
        runs.append([line for line in read_lines(out / "metrics.jsonl") if "loss" in line])
    assert len(runs[0]) == len(runs[1]) == 4
    for alone, actors in zip(*runs, strict=True):
        for metric in ("reward/mean", "loss", "grad_norm", "length/mean"):
            assert actors.get(metric) == pytest.approx(alone.get(metric), rel=1e-3, abs=1e-6)
    assert len({line["loss"] for line in runs[0]}) == 4
