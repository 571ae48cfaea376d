"""The chat templates of real models: those that lie here, and those that TRL has."""

import importlib.util
from pathlib import Path

TRL = importlib.util.find_spec("trl")
assert TRL is not None
assert TRL.submodule_search_locations is not None
FOLDERS = (
    Path(__file__).parent / "chat_templates",
    Path(TRL.submodule_search_locations[0]) / "chat_templates",
)
TEMPLATES = {path.stem: path for folder in FOLDERS for path in sorted(folder.glob("*.jinja"))}
"""By name."""
