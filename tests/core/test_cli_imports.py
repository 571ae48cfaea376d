"""The imports that take seconds: what they leave of Python's search for garbage."""

import subprocess
import sys

BLOCK = """
import gc, sys
from grpo_core.cli.imports import needs_training
from grpo_core.protocol.errors import MissingExtraError

gc.{before}()
try:
    with needs_training("this command"):
        during = gc.isenabled()
        import {module}
except MissingExtraError as error:
    print(error)
print(during, gc.isenabled(), gc.get_freeze_count() > 1000)
with needs_training("again"):
    pass
kept = gc.get_freeze_count()
sys.modules["torch"] = sys
with needs_training("again"):
    print(gc.isenabled())
print(gc.get_freeze_count() <= kept)  # some of what was kept may be freed
"""


def said(module: str, before: str = "enable") -> list[str]:
    code = BLOCK.format(module=module, before=before)
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    return done.stdout.splitlines()


def test_garbage_is_searched_for_after_the_imports_but_not_among_what_they_made() -> None:
    """Once torch is there, nothing is kept any more: what exists by then is the user's."""
    assert said("decimal") == ["False True True", "True", "True"]


def test_a_package_that_is_missing_is_named_and_the_search_goes_on() -> None:
    first, *rest = said("no_such_package")
    assert "no_such_package" in first
    assert "this command" in first
    assert rest == ["False True True", "True", "True"]


def test_a_user_who_has_switched_the_search_off_keeps_it_off() -> None:
    assert said("decimal", before="disable") == ["False False True", "False", "True"]
