"""Read and write run folders, and draw the tasks of a run."""

from __future__ import annotations

from grpo_core.runs.atomic import sync_folders, whole_folder, write_whole
from grpo_core.runs.attempts import ATTEMPTS, attempt_line
from grpo_core.runs.documents import read_document
from grpo_core.runs.files import lines_of, names_in, open_to_read, read_whole, sync_file
from grpo_core.runs.folder import RunFolder
from grpo_core.runs.hold import hold
from grpo_core.runs.lines import (
    JsonObject,
    Kind,
    append_line,
    finite,
    kind_of,
    parse_line,
    read_lines,
    unreadable,
    writing,
)
from grpo_core.runs.log import READ_ERRORS, LineLog
from grpo_core.runs.members import Part, checksum, lines_from, read
from grpo_core.runs.model_card import model_card
from grpo_core.runs.observer import Observer
from grpo_core.runs.older_turns import split_older_turns
from grpo_core.runs.saved_rollouts import saved_rollout
from grpo_core.runs.seal import FORMAT, DamagedError, check_format, read_sealed, seal
from grpo_core.runs.shapes import is_attempt, is_task
from grpo_core.runs.trust import Layer, checked_config, remember
from grpo_core.train.rollout.tasks import draw_number, epoch_order
from grpo_core.train.run.resume import refuse_changed_environments

__all__ = [
    "ATTEMPTS",
    "DamagedError",
    "FORMAT",
    "JsonObject",
    "Kind",
    "Layer",
    "LineLog",
    "Observer",
    "Part",
    "READ_ERRORS",
    "RunFolder",
    "append_line",
    "attempt_line",
    "check_format",
    "checked_config",
    "checksum",
    "draw_number",
    "epoch_order",
    "finite",
    "hold",
    "is_attempt",
    "is_task",
    "kind_of",
    "lines_from",
    "lines_of",
    "model_card",
    "names_in",
    "open_to_read",
    "parse_line",
    "read",
    "read_document",
    "read_lines",
    "read_sealed",
    "read_whole",
    "refuse_changed_environments",
    "remember",
    "saved_rollout",
    "seal",
    "split_older_turns",
    "sync_file",
    "sync_folders",
    "unreadable",
    "whole_folder",
    "write_whole",
    "writing",
]
