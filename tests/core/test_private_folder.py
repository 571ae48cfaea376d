"""Folders that no other user can enter, fill or replace, and those in which processes meet."""

import fcntl
import os
import stat
import tempfile
import time
from pathlib import Path

import pytest

from grpo_core.calls.meeting_folder import meeting_folder
from grpo_core.calls.private_folder import make_private_folder
from grpo_core.protocol.errors import ConfigError

AS_ROOT = pytest.mark.skipif(os.geteuid() != 0, reason="only root can give folders to others")


def make(*parents: Path | str, most_bytes: int | None = None) -> Path:
    words = {"what_for": "a test needs", "remedy": "set TMPDIR"}
    return make_private_folder("grpo-test-", map(str, parents), **words, most_bytes=most_bytes)


@pytest.fixture
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder for temporary files."""
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    return tmp_path


def test_a_private_folder_is_open_to_its_user_alone_whatever_the_umask(tmp_path: Path) -> None:
    before = os.umask(0)
    try:
        folder = make(tmp_path)
    finally:
        os.umask(before)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert folder != make(tmp_path)


@AS_ROOT
def test_a_parent_of_another_user_is_passed_over_also_further_up(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    inner = theirs / "inner"
    inner.mkdir(parents=True)
    mine.mkdir()
    os.chown(theirs, 1001, 1001)
    link = tmp_path / "link"
    link.symlink_to(inner)
    assert make(theirs, inner, link, mine).parent == mine
    with pytest.raises(ConfigError, match=r"a test needs .*theirs belongs to another user.*TMPDIR"):
        make(theirs)


def test_a_parent_that_all_may_write_needs_the_sticky_bit(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o777)
    with pytest.raises(ConfigError, match="has no sticky bit"):
        make(shared)
    shared.chmod(0o1777)
    assert make(shared).parent == shared


@AS_ROOT
def test_a_link_of_another_user_is_followed_once_and_cannot_be_turned_later(tmp_path: Path) -> None:
    theirs, mine = tmp_path / "theirs", tmp_path / "mine"
    theirs.mkdir()
    mine.mkdir()
    (theirs / "link").symlink_to(mine)
    os.chown(theirs, 1001, 1001)
    folder = make(theirs / "link")
    assert folder.parent == mine


def test_a_parent_that_is_missing_a_file_or_too_long_for_sockets_is_passed_over(
    tmp_path: Path,
) -> None:
    (tmp_path / "file").touch()
    long = tmp_path / ("x" * 60)
    long.mkdir()
    bad = (tmp_path / "missing", tmp_path / "file", "x" * 300)
    assert make(*bad, tmp_path).parent == tmp_path
    assert make(long, tmp_path, most_bytes=len(str(tmp_path)) + 20).parent == tmp_path
    assert list(long.iterdir()) == []
    with pytest.raises(ConfigError, match="is longer than 20 bytes"):
        make(long, most_bytes=20)


def test_the_folder_of_a_meeting_holds_a_secret_and_is_removed_with_all_in_it(
    temporary: Path,
) -> None:
    with meeting_folder(3) as meeting:
        assert meeting.path.parent == temporary
        assert len(meeting.secret.read_bytes()) == 32
        assert meeting.arrivals.read_bytes() == bytes(3)
        assert {stat.S_IMODE(path.stat().st_mode) for path in meeting.path.iterdir()} == {0o600}
        meeting.store.touch()
        with meeting_folder(3) as other:
            assert other.secret.read_bytes() != meeting.secret.read_bytes()
    assert list(temporary.iterdir()) == []


def test_folders_of_commands_that_were_killed_are_removed_and_those_in_use_are_not(
    temporary: Path,
) -> None:
    folders = [temporary / f"grpo-meeting-{name}" for name in ("killed", "used", "new")]
    for folder in folders:
        folder.mkdir(mode=0o700)
        (folder / "store").touch()
    for folder in folders[:2]:
        os.utime(folder, (time.time() - 3600,) * 2)
    elsewhere = temporary / "elsewhere"
    elsewhere.mkdir()
    (temporary / "grpo-meeting-link").symlink_to(elsewhere)
    lock = os.open(folders[1], os.O_RDONLY)
    fcntl.flock(lock, fcntl.LOCK_EX)
    with meeting_folder(2):
        assert [folder.exists() for folder in folders] == [False, True, True]
        assert elsewhere.exists()
    os.close(lock)


def test_a_folder_without_locks_is_passed_over(
    temporary: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As on some network file systems."""
    locks = fcntl.flock

    def flock(descriptor: int, operation: int) -> None:
        if os.readlink(f"/proc/self/fd/{descriptor}").startswith(str(temporary)):
            raise OSError(38, "Function not implemented")
        locks(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with meeting_folder(2) as meeting:
        assert not meeting.path.is_relative_to(temporary)
    assert not meeting.path.exists()
    assert list(temporary.iterdir()) == []
