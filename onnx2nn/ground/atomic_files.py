"""Writing files so that a failure leaves either the old file or none, never half of one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from onnx2nn.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Give a temporary name beside `path`; rename it to `path` on success, delete it on any error or interrupt.

    The temporary name keeps the ending, by which some writers choose their format.

    What a link leads to is replaced, the link stays.

    Raises:
        InputError: the folder is missing or cannot be written, or `path` is a folder or a device.
    """
    target = _target(path)
    temporary = _temporary_name(target)
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Find out before the long work whether `path` can be written; leaves nothing behind.

    Raises:
        InputError: the folder is missing or cannot be written, or `path` is a folder or a device.
    """
    target = _target(path)
    if target.is_dir():
        raise InputError(f"cannot write {target}: it is a folder; name a file in it")
    if not target.parent.is_dir():
        raise InputError(f"cannot write {target}: there is no folder {target.parent}; create it first")
    probe = _temporary_name(target)
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"cannot write {target}: {error.strerror or error}") from error


def _target(path: str | os.PathLike[str]) -> Path:
    """Returns what is replaced by writing to `path`."""
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if target.exists() and not target.is_file() and not target.is_dir():  # /dev/null would be a file from then on
        raise InputError(f"cannot write {target}: it is no regular file")
    return target


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.stem[:100]}.{secrets.token_hex(6)}.tmp{target.suffix}")
