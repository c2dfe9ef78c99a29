"""Writes files so that a failure leaves the old file or none, never a part of the new one."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, cast

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


@contextlib.contextmanager
def made_folder(path: str | os.PathLike[str]) -> Iterator[Path]:
    """Makes a folder, and the folders around it; on any error or interrupt those that it made are removed, if empty.

    Raises:
        InputError: the folder cannot be made.
    """
    target = Path(path)
    missing = [step for step in (target, *target.parents) if not step.exists()]
    try:
        target.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror or error}") from error
    try:
        yield target
    except BaseException:
        with contextlib.suppress(OSError):
            for step in missing:
                step.rmdir()
        raise


@contextlib.contextmanager
def enduring(path: Path) -> Iterator[BinaryIO]:
    """Yields a new file for writers in C++ that end the process where a write fails, as torch's do.

    A failure, or an interrupt that arrives in a write, is raised at the end; the writer is told that all went well.

    Raises:
        OSError: as a write raised it.
    """
    with _EnduringFile(path, "w") as file:
        yield cast(BinaryIO, file)
        if file.error is not None:
            raise file.error


class _EnduringFile(io.FileIO):
    """A file whose `write` never fails; `error` is what it met first."""

    error: BaseException | None = None

    def write(self, data: Any) -> int:
        """Writes all bytes, unless a write failed before; returns their number."""
        view = memoryview(data).cast("B")
        done = 0
        try:
            while self.error is None and done < len(view):
                done += self.write_some(view[done:])
        except BaseException as error:  # an interrupt too: it would pass through the writer's C++
            self.error = error
        return len(view)

    def write_some(self, data: memoryview) -> int:
        """Writes some bytes; returns their number.

        Raises:
            OSError: none can be written.
        """
        return super().write(data)


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
    _write_nothing(target, _temporary_name(target))


def check_folder_writable(path: str | os.PathLike[str]) -> None:
    """Checks before long work that the folder `path`, which need not exist, can be written; leaves nothing behind.

    Raises:
        InputError: the folder cannot be made or written, or `path` is a file.
    """
    target = Path(path)
    existing = next(step for step in (target, *target.absolute().parents) if step.exists())
    if not existing.is_dir():
        raise InputError(f"Cannot write {target}: {existing} is no folder. Name another path.")
    _write_nothing(target, _temporary_name(existing / "folder"))


def _write_nothing(target: Path, probe: Path) -> None:
    """Makes an empty file and removes it; where that fails, `target` is named."""
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
    return target.with_name(f".{target.stem[:100]}.{os.urandom(6).hex()}.tmp{target.suffix}")
