"""Errors of safetensors' writer."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

from onnx2nn.errors import first_line


@contextlib.contextmanager
def failing_as_files() -> Iterator[None]:
    """Raises the errors of safetensors that are the system's as those.

    Raises:
        OSError: a file could not be written.
    """
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        if "I/O error" in str(error):
            raise OSError(first_line(error)) from error
        raise
