"""External data: the paths that a tensor may name, and how the files are opened.

A file is opened from a handle of the model's folder, component by component, and no component may be a link. Then the
open file itself is checked. Nothing is decided by a path that is looked up a second time.
"""

from __future__ import annotations

import contextlib
import os
import re
import stat
import sys
from collections.abc import Sequence

from onnx2nn.errors import ModelFileError
from onnx2nn.reading.byte_sources import FileSource

_HANDLES = os.open in os.supports_dir_fd and hasattr(os, "O_NOFOLLOW")
"""Whether the system opens files from a handle of their folder; Windows does not."""

_DEVICES = re.compile(r"(CON|PRN|AUX|NUL|CONIN\$|CONOUT\$|(COM|LPT)[0-9\u00b9\u00b2\u00b3])[ ]*(\.|$)", re.IGNORECASE)
"""Names that are devices in every folder of Windows, whatever their ending."""

_BLOB = re.compile(r"((?:\.\.[/\\])+)blobs[/\\]([0-9a-f]{40}|[0-9a-f]{64})")
"""A link in a snapshot of Hugging Face's cache: the files of a repository are named after their SHA-1 or SHA-256."""

_SHARED = re.compile(r"\.\.[/\\]\.\.[/\\]blobs[/\\](([0-9a-f]{2})[/\\]\2[0-9a-f]{62})")
"""A link from a repository's blob to one that repositories of the cache share: `CACHE/blobs/DI/DIGEST`."""

_REPOSITORY = re.compile(r"(models|datasets|spaces)--.+")
"""The folder of a repository in the cache."""

_NAME_SURROGATE = 0x20000000
"""The bit of a reparse tag of Windows that marks links and junctions, but not files that a cloud holds."""


def location_parts(location: str, system: str = sys.platform) -> list[str]:
    """Returns the steps of the path in a tensor's `location`, which lead down from the model's folder.

    Args:
        location: the path, by the standard relative and POSIX.
        system: as `sys.platform`; Windows and macOS give further paths a meaning.

    Raises:
        ModelFileError: the path is not relative, or a step of it leads elsewhere.
    """
    windows = system in ("win32", "cygwin")
    everywhere = re.split(r"[/\\]", location)
    parts = [part for part in (everywhere if windows else location.split("/")) if part not in ("", ".")]
    safe = (
        bool(parts)
        and "\0" not in location
        and everywhere[0] != ""  # absolute, or the share of a server
        and ":" not in everywhere[0]  # a drive
        and ".." not in everywhere
        and not (windows and any(map(_is_special_in_windows, parts)))
        and not (system == "darwin" and any(part.lower() == "..namedfork" for part in parts))
    )
    if not safe:
        raise ModelFileError(
            f"{location!r} is named as its data file. ONNX allows only relative paths inside the model's folder: "
            "the file is refused as unsafe."
        )
    return parts


def _is_special_in_windows(part: str) -> bool:
    """Returns whether Windows reads a step as a device, a stream of a file, a pattern, or as another step."""
    return part[-1] in ". " or _DEVICES.match(part) is not None or re.search(r'[\x00-\x1f<>:"|?*]', part) is not None


class DataFolder:
    """The folder of a model's external data.

    A file must be a regular file with one name. In a snapshot of Hugging Face's cache, `REPO/snapshots/COMMIT/...`, it
    may be a link to `REPO/blobs/DIGEST`, and that one to `blobs/DI/DIGEST` beside `REPO`, where the same rules hold.

    Args:
        path: the folder; links on the way to it are the caller's.
        follow_links: whether the file may be reached by links, wherever they lead, and have several names.
    """

    def __init__(self, path: str, *, follow_links: bool = False):
        self.path = path
        self._follow_links = follow_links

    def open(self, location: str) -> FileSource:
        """Opens the file that a tensor names as its `location`.

        Raises:
            ModelFileError: the path leads out of the folder, or to nothing that can be read.
        """
        parts = location_parts(location)
        path = os.path.join(self.path, *parts)
        try:
            if self._follow_links:
                return FileSource(path)
            return self._opened(parts, path)
        except FileNotFoundError:
            raise ModelFileError(
                f"its data file {path} does not exist. Put the model's data file beside it, under exactly this name."
            ) from None
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"cannot open its data file {path}: {reason}. Check its permissions.") from error

    def _opened(self, parts: Sequence[str], path: str) -> FileSource:
        try:
            source = FileSource.of(_open_by_handles(self.path, parts) if _HANDLES else _open(self.path, parts), path)
        except _LinkError:
            blob = _blob(self.path, parts)
            if blob is None:
                raise ModelFileError(
                    f"its data file {path} is a link or lies behind one: it is refused as unsafe, as links may lead "
                    "out of the model's folder. Copy the file into the folder, or give follow_links=True if you trust "
                    "who made the link."
                ) from None
            return DataFolder(blob[0])._opened(
                ["blobs", *re.split(r"[/\\]", blob[1])], os.path.join(blob[0], "blobs", blob[1])
            )
        if source.links != 1:
            raise ModelFileError(
                f"its data file {path} has {source.links} names (hard links): it is refused as unsafe, as another one "
                "may lie outside of the model's folder. Copy the file, or give follow_links=True if you trust who "
                "made the links."
            )
        return source


class _LinkError(Exception):
    """A step of a path is a link."""


def _open_by_handles(folder: str, parts: Sequence[str]) -> int:
    """Returns a descriptor of the file `parts` below `folder`.

    Raises:
        _LinkError: a step is a link.
        OSError: as `os.open` raises it.
    """
    inside = os.O_DIRECTORY | os.O_CLOEXEC | getattr(os, "O_PATH", os.O_RDONLY)
    handle = os.open(folder, inside)
    try:
        for part in parts[:-1]:
            _refuse_link(os.stat(part, dir_fd=handle, follow_symlinks=False))
            below = os.open(part, inside | os.O_NOFOLLOW, dir_fd=handle)
            os.close(handle)
            handle = below
        # The status is for the message, and spares a device from being opened; what counts is O_NOFOLLOW.
        status = os.stat(parts[-1], dir_fd=handle, follow_symlinks=False)
        _refuse_link(status)
        FileSource.check_kind(status, os.path.join(folder, *parts))
        return os.open(parts[-1], FileSource.FLAGS | os.O_NOFOLLOW, dir_fd=handle)
    finally:
        os.close(handle)


def _open(folder: str, parts: Sequence[str]) -> int:
    """As `_open_by_handles`, where no handles are: the steps are checked before and after the file is opened."""
    steps = [os.path.join(folder, *parts[: end + 1]) for end in range(len(parts))]
    for step in steps:
        _refuse_link(os.lstat(step))
    descriptor = os.open(steps[-1], FileSource.FLAGS)
    try:
        for step in steps:
            status = os.lstat(step)
            _refuse_link(status)
        if not os.path.samestat(status, os.fstat(descriptor)):
            raise _LinkError
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def _refuse_link(status: os.stat_result) -> None:
    if stat.S_ISLNK(status.st_mode) or getattr(status, "st_reparse_tag", 0) & _NAME_SURROGATE:
        raise _LinkError


def _blob(folder: str, parts: Sequence[str]) -> tuple[str, str] | None:
    """Returns the folder around `blobs`, and the path there, to which a file in Hugging Face's cache is a link."""
    around = os.path.join(folder, *parts[:-1])
    with contextlib.suppress(OSError):
        target = os.readlink(os.path.join(around, parts[-1]))
        steps = os.path.realpath(around).split(os.sep)
        link, shared = _BLOB.fullmatch(target), _SHARED.fullmatch(target)
        if link is not None:
            up = len(link[1]) // 3
            repository, below = steps[:-up], steps[-up:]
            if len(below) > 1 and below[0] == "snapshots" and re.fullmatch("[0-9a-f]{40}", below[1]):
                return os.sep.join(repository), link[2]
        elif shared is not None and steps[-1] == "blobs" and _REPOSITORY.fullmatch(steps[-2]):
            return os.sep.join(steps[:-2]), shared[1]
    return None
