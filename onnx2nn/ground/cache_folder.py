"""The folder of compiled packages and of files from URLs: `$ONNX2NN_CACHE`, else `onnx2nn` in the user's cache folder.

A package is machine code that a process loads, so that the folder belongs to the user alone. It may be deleted at any
time.
"""

from __future__ import annotations

import os
from pathlib import Path

from onnx2nn.errors import InputError


def cache_folder() -> Path:
    """Returns the folder, which exists afterwards and is the user's.

    Raises:
        InputError: it cannot be made, or other users can write it.
    """
    given = os.environ.get("ONNX2NN_CACHE")
    base = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    found = Path(given) if given else base / "onnx2nn"
    try:
        found.mkdir(mode=0o700, parents=True, exist_ok=True)
        status = found.stat()
    except OSError as error:
        raise InputError(f"Cannot make the cache {found}: {error.strerror}. Set ONNX2NN_CACHE to a folder.") from error
    if os.name == "posix" and (status.st_uid != os.getuid() or status.st_mode & 0o022):
        raise InputError(f"Other users can write the cache {found}, whose code is run. Set ONNX2NN_CACHE to another.")
    return found
