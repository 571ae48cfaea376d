"""Provide the rich console that prints tables, progress bars and everything beyond plain lines."""

from __future__ import annotations

from collections.abc import Iterable
from typing import IO, Any

from rich.console import Console, ConsoleOptions, RenderableType
from rich.segment import Segment
from rich.text import Text

from grpo_core.calls.printable import printable
from grpo_core.calls.streams import beneath, writing_output


class PrintableConsole(Console):
    """Treats strings as plain text and renders only text that has passed through `printable`.

    Markup, emoji names and highlighting are off, whatever a caller asks for: `[bold]` or `:bug:`
    in a name stay letters. It writes to the stream beneath a PrintableStream, with colours.
    """

    def __init__(
        self, *, stderr: bool = False, quiet: bool = False, file: IO[str] | None = None
    ) -> None:
        super().__init__(
            stderr=stderr, quiet=quiet, file=file, markup=False, emoji=False, highlight=False
        )

    def print(self, *objects: Any, **options: Any) -> None:
        """Print; raise OutputError if the stream cannot be written."""
        with writing_output():
            super().print(*objects, **options)

    def on_broken_pipe(self) -> None:
        """Raise the BrokenPipeError that is being handled, where rich would end the program."""
        raise

    @property
    def file(self) -> IO[str]:
        """Return the stream that is written to.

        It is the one given to the constructor, else the one beneath sys.stdout or sys.stderr.
        """
        stream = super().file
        while (inner := beneath(getattr(stream, "rich_proxied_file", stream))) is not stream:
            stream = inner
        return stream

    @file.setter
    def file(self, new_file: IO[str]) -> None:
        self._file = new_file

    def render_str(self, text: str, **options: Any) -> Text:
        """Return a plain string, such as a table's cell, as text in which nothing is markup."""
        plain = {"emoji": False, "markup": False, "highlight": False}
        return super().render_str(printable(text), **(options | plain))

    def render(
        self, renderable: RenderableType, options: ConsoleOptions | None = None
    ) -> Iterable[Segment]:
        """Render; make text printable that did not pass through `render_str`, and drop links."""
        for text, style, control in super().render(renderable, options):
            if control:  # rich itself makes these, to move the cursor of a progress bar
                yield Segment(text, style, control)
            else:
                yield Segment(
                    printable(text), style.update_link(None) if style and style.link else style
                )
