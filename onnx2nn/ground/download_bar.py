"""A bar on a terminal while a file is downloaded; nothing where stderr is none, or rich is not installed."""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Iterator

from onnx2nn.errors import shown_name


@contextlib.contextmanager
def download_bar(name: str, size: int | None) -> Iterator[Callable[[int], None]]:
    """Yields a function that takes the number of bytes that came.

    Args:
        name: of the file.
        size: its bytes, None where they are not known.
    """
    if sys.stderr.isatty():
        with contextlib.suppress(ImportError):
            from rich.console import Console
            from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TimeRemainingColumn

            columns = (TextColumn("{task.description}", markup=False), BarColumn(), DownloadColumn())
            bar = Progress(*columns, TimeRemainingColumn(), console=Console(stderr=True), transient=True)
            with bar:
                task = bar.add_task(shown_name(name), total=size)
                yield lambda count: bar.advance(task, count)
            return
    yield lambda count: None
