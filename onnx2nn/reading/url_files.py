"""Files at any URL that fsspec knows: `s3://`, `https://`, `gs://`, `memory://` and others.

Copies lie in the cache folder, and are fetched again when the file's size, time or entity tag changes.
"""

from __future__ import annotations

import hashlib
import importlib
import itertools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote, unquote

from onnx2nn.errors import MissingDependencyError, ModelFileError, Onnx2nnError, first_line
from onnx2nn.ground.atomic_files import made_folder, replacing
from onnx2nn.ground.cache_folder import cache_folder
from onnx2nn.ground.download_bar import download_bar
from onnx2nn.ground.extras import require

_CHUNK = 1 << 20
"""Bytes that are read at a time."""

_VERSIONS = ("ETag", "etag", "e_tag", "md5", "sha256", "LastModified", "last_modified", "mtime", "updated", "created")
"""What file systems of fsspec call that which changes with a file."""


class UrlFiles:
    """A model's file at a URL, and the files beside it.

    Args:
        url: of the model's file. What follows a `?` belongs to this file alone, and is not shown.

    Raises:
        MissingDependencyError: fsspec, or its package for this scheme, is not installed.
        ModelFileError: the scheme is unknown, or the URL names no file.

    Attributes:
        local: the path of the model's file where the URL names one of this machine, else None.
    """

    def __init__(self, url: str):
        fsspec = require("fsspec", extra="fsspec", purpose="Reading from URLs")
        importlib.import_module("fsspec.implementations.local")
        self.shown = url.partition("?")[0]
        try:
            self._system, path = fsspec.core.url_to_fs(url)
            self._system.invalidate_cache()  # listings of an earlier look
        except ImportError as error:
            scheme = url.partition(":")[0]
            raise MissingDependencyError(f"Reading from {scheme}:// needs a package: {first_line(error)}") from error
        except Exception as error:  # each file system has errors of its own
            raise ModelFileError(f"{self.shown}: {first_line(error)}") from error
        self.local = path if isinstance(self._system, fsspec.implementations.local.LocalFileSystem) else None
        self._web = path.startswith(("http://", "https://"))
        self._path = path
        self._around, _, name = (path.partition("?")[0] if self._web else path).rpartition("/")
        self.name = unquote(name) if self._web else name
        if self.shown.endswith("/") or not self.name or self.name in (".", "..") or {"/", "\\", "\0"} & set(self.name):
            raise ModelFileError(f"{self.shown} names no file. Give the URL of an .onnx file.")
        place = hashlib.sha256(repr((type(self._system).__name__, url)).encode()).hexdigest()[:40]
        self._folder = cache_folder() / "files" / place

    def size(self, name: str) -> int | None:
        """Returns the number of bytes of a file, None where the server does not say.

        Raises:
            ModelFileError: there is no such file, or the server does not answer.
        """
        size = self._info(name).get("size")
        return None if size is None else int(size)

    def fetch(self, name: str, count: Callable[[int], None]) -> str:
        """Returns the path of a file's copy, which appears complete or not at all.

        Args:
            name: of the file, its steps separated by `/`.
            count: takes the number of bytes as they come; what it raises ends the download.

        Raises:
            ModelFileError: it cannot be fetched.
        """
        info = self._info(name)
        version = _version(info)
        target = self._folder.joinpath(*name.split("/"))
        note = self._folder / ".versions" / hashlib.sha256(name.encode()).hexdigest()[:40]
        if version and target.is_file() and note.is_file() and note.read_text(encoding="utf-8") == version:
            return str(target)
        with made_folder(target.parent), made_folder(note.parent):
            with replacing(target) as temporary:
                self._download(name, temporary, info.get("size"), count)
            with replacing(note) as temporary:
                temporary.write_text(version, encoding="utf-8")
        return str(target)

    def _info(self, name: str) -> dict[str, Any]:
        try:
            info: dict[str, Any] = self._system.info(self._place(name))
        except FileNotFoundError as error:
            if reason := _refusal(error):
                raise ModelFileError(f"{self.shown}: {name} cannot be found: {reason}") from error
            raise ModelFileError(f"{self.shown}: there is no {name}. Check the URL.") from error
        except Exception as error:  # each file system has errors of its own
            raise ModelFileError(f"{self.shown}: {name} cannot be found: {_text(error)}") from error
        if info.get("type") == "directory":
            raise ModelFileError(f"{self.shown}: {name} is a folder. Give the URL of an .onnx file.")
        if name != self.name:
            self._check_links(name, info)
        elif info.get("type") == "other":
            raise ModelFileError(f"{self.shown}: {name} is not a regular file. Give the URL of an .onnx file.")
        return info

    def _check_links(self, name: str, info: dict[str, Any]) -> None:
        """Refuses external data that are no plain file, or behind a link, as `DataFolder` does.

        Raises:
            ModelFileError: they are.
        """
        around = list(itertools.accumulate(name.split("/")[:-1], "{}/{}".format)) if "islink" in info else []
        found = [info, *(self._system.info(self._place(step)) for step in around)]
        if info.get("type", "file") != "file" or info.get("nlink", 1) != 1 or any(i.get("islink") for i in found):
            raise ModelFileError(
                f"{self.shown}: its data file {name} is no regular file, is a link, or lies behind one: it is refused "
                "as unsafe, as links may lead out of the model's folder. Copy the file into the folder."
            )

    def _place(self, name: str) -> str:
        """Returns the path of a file in the file system; in a URL no character of a name has a meaning."""
        if name == self.name:
            return str(self._path)
        return f"{self._around}/{quote(name) if self._web else name}"

    def _download(self, name: str, target: Path, size: int | None, count: Callable[[int], None]) -> None:
        done = 0
        try:
            # Files of the web are streamed with a block size of 0, which other file systems do not know.
            with (
                self._system.open(self._place(name), "rb", **({"block_size": 0} if self._web else {})) as source,
                target.open("wb") as copy,
                download_bar(name, size) as advance,
            ):
                for chunk in _chunks(source):
                    done += len(chunk)
                    count(len(chunk))
                    if size is not None and done > size:
                        break
                    copy.write(chunk)
                    advance(len(chunk))
        except Onnx2nnError:
            raise
        except Exception as error:  # each file system has errors of its own
            raise ModelFileError(
                f"{self.shown}: the download of {name} broke off after {done} bytes: {_text(error)}. Try again."
            ) from error
        if size is not None and done != size:
            found = f"more than the {size}" if done > size else f"{done} of the {size}"
            raise ModelFileError(f"{self.shown}: {name} came with {found} bytes that were announced. Try again.")


def _version(info: dict[str, Any]) -> str:
    """Returns what changes with a file, `""` where the file system says nothing."""
    found = {key: str(info[key]) for key in _VERSIONS if info.get(key) is not None}
    return repr({"size": info.get("size"), **found}) if found else ""


def _chunks(source: Any) -> Iterator[bytes]:
    while chunk := source.read(_CHUNK):
        yield chunk


def _refusal(error: FileNotFoundError) -> str | None:
    """Returns what else a server said; fsspec makes a missing file of it, as of one that does not answer.

    Its URL is left out, which may be signed.
    """
    cause: Any = error.__cause__
    status = getattr(cause, "status", None)
    if cause is None or isinstance(cause, FileNotFoundError) or status in (404, 410):
        return None
    return _text(cause) if status is None else f"{status} {cause.message}"


def _text(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}" if str(error) else type(error).__name__
