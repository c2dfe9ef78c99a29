"""Writes files so that a failure leaves the old file or none, never a part of the new one."""

from __future__ import annotations

import contextlib
import os
import secrets
from collections.abc import Iterator
from pathlib import Path

from onnx2nn.errors import InputError


@contextlib.contextmanager
def replacing(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Yields a temporary name beside `path`; renames it to `path` on success, deletes it on any error or interrupt.

    The temporary name keeps the ending, by which some writers choose their format. Where `path` is a link, the file
    that it leads to is replaced and the link stays.

    Raises:
        InputError: the folder is missing or cannot be written, or `path` is a folder or a device.
    """
    target = _target(path)
    temporary = _temporary_name(target)
    try:
        yield temporary
        os.replace(temporary, target)
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror or error}") from error
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink()


def check_writable(path: str | os.PathLike[str]) -> None:
    """Checks before long work that `path` can be written; leaves no file behind.

    Raises:
        InputError: the folder is missing or cannot be written, or `path` is a folder or a device.
    """
    target = _target(path)
    if target.is_dir():
        raise InputError(f"Cannot write {target}: it is a folder. Name a file in it.")
    if not target.parent.is_dir():
        raise InputError(f"Cannot write {target}: there is no folder {target.parent}. Create it first.")
    probe = _temporary_name(target)
    try:
        probe.touch(exist_ok=False)
        probe.unlink()
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror or error}") from error


def _target(path: str | os.PathLike[str]) -> Path:
    """Returns the file that is replaced by writing to `path`, at the end of links."""
    target = Path(path)
    if target.is_symlink():
        target = Path(os.path.realpath(target))
    if (
        target.exists() and not target.is_file() and not target.is_dir()
    ):  # replacing /dev/null would make it a regular file
        raise InputError(f"Cannot write {target}: it is no regular file. Name another path.")
    return target


def _temporary_name(target: Path) -> Path:
    return target.with_name(f".{target.stem[:100]}.{secrets.token_hex(6)}.tmp{target.suffix}")
