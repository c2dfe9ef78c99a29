"""The files that safetensors' writer makes: their permissions and its errors."""

from __future__ import annotations

import contextlib
import stat
from collections.abc import Iterator
from pathlib import Path

from onnx2nn.errors import first_line


@contextlib.contextmanager
def written_by_safetensors(path: Path) -> Iterator[None]:
    """Gives the file that safetensors writes to `path` the permissions of any new file.

    Its own are for the user alone (0600), so that a server or a colleague could not read a saved model.

    Raises:
        OSError: the file could not be written; the writer's own errors about it are raised as this.
    """
    from safetensors import SafetensorError

    path.touch()
    mode = stat.S_IMODE(path.stat().st_mode)
    try:
        yield
    except SafetensorError as error:
        if "I/O error" in str(error):
            raise OSError(first_line(error)) from error
        raise
    path.chmod(mode)
