"""The output of the commands: progress on a terminal, plain lines in a pipe."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from onnx2nn.errors import shown, shown_name
from onnx2nn.ground.progress import listening


class Terminal:
    """Prints to stdout; long steps are shown by rich where stdout is a terminal and rich is installed.

    Args:
        silent: print nothing, for a command whose output is meant for a program.
    """

    def __init__(self, *, silent: bool = False) -> None:
        self._console: Any = None
        self._silent = silent
        if not silent and sys.stdout.isatty():
            with contextlib.suppress(ImportError):
                from rich.console import Console

                self._console = Console(highlight=False, markup=False, emoji=False, soft_wrap=True)

    @contextlib.contextmanager
    def step(self, text: str) -> Iterator[None]:
        """Shows a step while it runs, with a bar where it tells how far it is, and how long it took."""
        if self._console is None:
            self.line(f"{text} ...")
            yield
            return
        start = time.monotonic()
        from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

        columns = (TextColumn("{task.description}", markup=False), BarColumn(), TimeElapsedColumn())
        with Progress(SpinnerColumn(), *columns, console=self._console, transient=True) as bar:
            task = bar.add_task(shown_name(text), total=None)
            with listening(lambda done, total: bar.update(task, completed=done, total=total)):
                yield
        self.line(f"{text}: {time.monotonic() - start:.1f} s", style="dim")

    def line(self, text: str, *, style: str | None = None) -> None:
        """Prints a line."""
        if self._silent:
            return
        if self._console is None:
            print(shown(text, None), flush=True)
        else:
            self._console.print(shown(text, None), style=style)

    def table(
        self, head: Sequence[str], rows: Sequence[Sequence[str]], *, numeric: Iterable[int], bad: Sequence[bool]
    ) -> None:
        """Prints rows in columns.

        Args:
            head: names of the columns.
            rows: cells of each row.
            numeric: columns whose cells are aligned to the right.
            bad: for each row whether it is highlighted.
        """
        right = set(numeric)
        rows = [[shown_name(cell) for cell in row] for row in rows]
        if self._console is None:
            widths = [max(map(len, column)) for column in zip(head, *rows, strict=True)]
            for row in (head, *rows):
                cells = [
                    cell.rjust(width) if index in right else cell.ljust(width)
                    for index, (cell, width) in enumerate(zip(row, widths, strict=True))
                ]
                self.line("  ".join(cells).rstrip())
            return
        from rich.table import Table

        table = Table(box=None, pad_edge=False)
        for index, name in enumerate(head):
            table.add_column(name, justify="right" if index in right else "left", no_wrap=index in right)
        for row, wrong in zip(rows, bad, strict=True):
            table.add_row(*map(_literal, row), style="bold red" if wrong else None)
        self._console.print(table)

    def verdict(self, text: str, *, good: bool) -> None:
        """Prints the closing line of a comparison."""
        self.line(text, style="bold green" if good else "bold red")


def _literal(text: str) -> Any:
    from rich.text import Text

    return Text(text)  # names in the text may look like rich's markup
