"""Where the image of the Docker back end comes from, and what is said when it cannot be made."""

import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from grpo_core import ConfigError
from grpo_core.cli.app import app
from grpo_sandbox import image


@pytest.mark.parametrize(
    ("text", "mirror"),
    [
        ("deb http://mirror.example/debian bookworm main\n", "http://mirror.example/debian"),
        ("# deb http://old.example/debian x\ndeb [signed-by=/k.gpg] https://mirror.example/debian/ bookworm main\n", "https://mirror.example/debian"),
        ("Types: deb\nURIs: http://mirror.example/debian\nSuites: bookworm\n", "http://mirror.example/debian"),
        ("deb https://packages.example/other stable main\n", None),
    ],
)  # fmt: skip
def test_the_mirror_is_that_of_apt(
    text: str, mirror: str | None, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "sources.list.d").mkdir()
    (tmp_path / "sources.list.d" / "debian.sources").write_text(text)
    monkeypatch.setattr(image, "SOURCES", (tmp_path / "sources.list", tmp_path / "sources.list.d"))
    assert image.apt_mirror() == mirror


def test_without_debootstrap_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(ConfigError, match="apt install debootstrap"):
        image.from_debian(None, "tag", print)


def test_a_sandbox_that_needs_no_image_says_so() -> None:
    done = CliRunner().invoke(app, ["sandbox", "build", "--name", "bubblewrap"])
    assert done.exit_code == 2
    assert "has nothing to build" in done.output


def test_without_the_package_one_line_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "docker", None)
    done = CliRunner().invoke(app, ["sandbox", "build", "--name", "docker"])
    assert isinstance(done.exception, SystemExit), done.exception
    assert done.exit_code == 2
    assert "pip install 'grpo-core[sandbox]'" in done.output


def test_without_a_daemon_build_says_what_to_start(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    pytest.importorskip("docker")
    monkeypatch.setenv("DOCKER_HOST", f"unix://{tmp_path / 'nobody.sock'}")
    done = CliRunner().invoke(app, ["sandbox", "build"])
    assert done.exit_code == 2
    assert "start its daemon" in done.output
