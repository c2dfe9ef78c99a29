"""What the commands print: progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterator
from typing import Any


class Terminal:
    """Prints to stdout; long steps are shown by rich where stdout is a terminal and rich is installed."""

    def __init__(self) -> None:
        self._console: Any = None
        if sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Show that `text` is being done, and how long it took."""
        if self._console is None:
            self.line(f"{text} ...")
            yield
            return
        start = time.monotonic()
        with self._console.status(_literal(text)):
            yield
        self.line(f"{text}: {time.monotonic() - start:.1f} s", style="dim")

    def line(self, text: str, *, style: str | None = None) -> None:
        """Print a line."""
        if self._console is None:
            print(text, flush=True)
        else:
            self._console.print(text, style=style)

    def verdict(self, text: str, *, good: bool) -> None:
        """Print the closing line of a comparison."""
        self.line(text, style="bold green" if good else "bold red")


def _literal(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # names in the text may look like rich's markup
