"""Models at URLs: the file and its external data are fetched to a folder, in which they are read like any others.

The names of external data come from the file. All of them are checked before the first one is fetched.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from contextlib import closing
from typing import Any, Protocol

import onnx
from google.protobuf.message import DecodeError

from onnx2nn.errors import LimitError, ModelFileError
from onnx2nn.ground.limits import Account
from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.data_folder import location_parts
from onnx2nn.reading.external_tensors import external_tensors
from onnx2nn.reading.protobuf_wire import skeleton
from onnx2nn.reading.text_formats import is_text, parsed_text

_URL = re.compile(r"(?:[A-Za-z][A-Za-z0-9+.-]+::)*[A-Za-z][A-Za-z0-9+.-]+://.*", re.DOTALL)
"""A URL, also one of fsspec's chains: `zip://model.onnx::https://...`. One letter is a drive of Windows."""


class RemoteFiles(Protocol):
    """A model's file at a URL, and the files beside it.

    Attributes:
        shown: the URL, for messages.
        name: the model's file.
    """

    shown: str
    name: str

    def size(self, name: str) -> int | None:
        """Returns the number of bytes of a file, None where only its end will tell.

        Raises:
            ModelFileError: there is no such file, or the server does not answer.
        """

    def fetch(self, name: str, count: Callable[[int], None]) -> str:
        """Returns the path of a file's copy, which appears complete or not at all.

        Args:
            name: of the file, its steps separated by `/`.
            count: takes the number of bytes as they come, where the size was not known; what it raises ends the
                download.

        Raises:
            ModelFileError: it cannot be fetched.
        """


def is_url(source: object) -> bool:
    """Returns whether a source of a model is a URL."""
    return isinstance(source, str) and _URL.fullmatch(source) is not None


def local_source(source: Any, account: Account, *, with_data: bool = True) -> Any:
    """Returns the path of a copy of the model where `source` is a URL, else `source` itself.

    Args:
        source: a source of a model. `hf://ORGANISATION/REPOSITORY[@REVISION]/PATH` is a file on Hugging Face's hub; of
            other URLs fsspec knows the file system, and `file://` is a path.
        account: bounds the bytes of all files together.
        with_data: whether external data are fetched too.

    Raises:
        LimitError: the files are larger than `Limits.download_bytes`.
        MissingDependencyError: the package for such URLs is not installed.
        ModelFileError: there is no such file, it cannot be fetched, or a name of external data is unsafe.
    """
    if not is_url(source):
        return source
    from onnx2nn.reading.hub_files import HubFiles  # few models are at URLs
    from onnx2nn.reading.url_files import UrlFiles

    files: RemoteFiles = HubFiles(source) if source.startswith("hf://") else UrlFiles(source)
    if isinstance(files, UrlFiles) and files.local is not None:
        return files.local  # read by the rules of a path, without a copy
    (path,) = _fetched(files, [files.name], account)
    if with_data:
        around = files.name.rpartition("/")[0]
        try:
            steps = [location_parts(location) for location in _locations(path, account)]
        except ModelFileError as error:
            raise error.of_file(files.shown) from error
        _fetched(files, ["/".join([*([around] if around else []), *parts]) for parts in steps], account)
    return path


def _fetched(files: RemoteFiles, names: list[str], account: Account) -> list[str]:
    """Returns the paths of files, of which none is fetched if all together are too large."""

    def count(size: int) -> None:
        account.download(size, f"{files.shown}: the model's files have")

    sizes = {name: files.size(name) for name in dict.fromkeys(names)}
    count(sum(size or 0 for size in sizes.values()))
    return [files.fetch(name, count if size is None else _known) for name, size in sizes.items()]


def _known(size: int) -> None:
    """Counts nothing, for a file whose size is counted already."""


def _locations(path: str, account: Account) -> list[str]:
    """Returns what the tensors of a file name as their data files, each once; nothing of a file that is no model."""
    try:
        with closing(FileSource(path)) as source:
            if is_text(path):
                proto = parsed_text(source, account)
            else:
                proto = onnx.ModelProto.FromString(skeleton(source)[0])
    except LimitError:
        raise
    except (ModelFileError, DecodeError):
        return []  # the reader says what the file is
    found: dict[str, None] = {}
    for tensor in external_tensors(proto):
        found |= {entry.value: None for entry in tensor.external_data if entry.key == "location"}
    return list(found)
