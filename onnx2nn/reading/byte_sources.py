"""Random access to bytes: of the caller, or of an open file."""

from __future__ import annotations

import mmap
import os
import stat
import threading
import weakref
from collections.abc import Sequence
from typing import Protocol

import numpy as np

from onnx2nn.errors import ModelFileError

_MAPPED = 1 << 14
"""Bytes from which an array is mapped; smaller ones share their pages with others."""

_READS_AT = hasattr(os, "pread") and hasattr(os, "preadv")
"""Whether the system reads at an offset by one call, without a position that threads share; Windows does not."""


class ByteSource(Protocol):
    """Random access to the bytes of a model or of its external data."""

    size: int

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""

    def read_array(self, offset: int, length: int, unit: int = 1) -> np.ndarray:
        """Returns the bytes, of elements of `unit` bytes, as a new, writable uint8 array (length,)."""

    def close(self) -> None:
        """Lets go of the bytes; nothing can be read afterwards."""


class MemorySource:
    """Bytes that the caller already holds."""

    def __init__(self, data: bytes | bytearray | memoryview):
        self._data = memoryview(data)
        self.size = self._data.nbytes

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""
        return bytes(self._data[offset : offset + length])

    def read_array(self, offset: int, length: int, unit: int = 1) -> np.ndarray:
        """Returns a copy as a writable uint8 array (length,)."""
        return np.frombuffer(self._data, np.uint8, length, offset).copy() if length else np.empty(0, np.uint8)

    def close(self) -> None:
        """Lets go of the bytes; nothing can be read afterwards."""
        self._data.release()


class FileSource:
    """A regular file, held open until `close` is called or its tensors are gone.

    It is read, not mapped, unless asked: mapped pages count as resident memory in addition to their copy, and a mapped
    file that shrinks kills the process. The open file stays the file that was checked, even if its name is reused.

    Attributes:
        mapped: whether large arrays are views of the mapped file, which are written to copies of its pages.
        aligned: whether those are read that do not start at a multiple of their element's size.
    """

    mapped = False
    aligned = False
    _map: mmap.mmap | None = None

    # Without O_NONBLOCK, opening a FIFO waits for a writer.
    FLAGS = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0)
    """With which a file is opened."""

    def __init__(self, path: str):
        """Opens the file.

        Raises:
            ModelFileError: the file does not exist, cannot be opened, or is no regular file.
        """
        try:
            descriptor = os.open(path, self.FLAGS)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise ModelFileError(f"Cannot open {path}: {reason}. Check the path and its permissions.") from error
        self._take(descriptor, path)

    @classmethod
    def of(cls, descriptor: int, path: str) -> FileSource:
        """Returns the source of an open file, which it closes.

        Args:
            descriptor: of the file.
            path: for messages.

        Raises:
            ModelFileError: it is no regular file.
        """
        source = cls.__new__(cls)
        source._take(descriptor, path)
        return source

    def _take(self, descriptor: int, path: str) -> None:
        status = os.fstat(descriptor)
        try:
            self.check_kind(status, path)
        except ModelFileError:
            os.close(descriptor)
            raise
        self._file = open(descriptor, "rb", buffering=0)  # noqa: SIM115, closed by `close`
        self._closing = weakref.finalize(self, self._file.close)
        self._lock = threading.Lock()
        self.path = path
        self.size = status.st_size
        self.links = status.st_nlink
        self.identity = status.st_dev, status.st_ino

    @staticmethod
    def check_kind(status: os.stat_result, path: str) -> None:
        """Checks that the status is that of a regular file.

        Raises:
            ModelFileError: it is not.
        """
        if not stat.S_ISREG(status.st_mode):
            kind = "a directory" if stat.S_ISDIR(status.st_mode) else "not a regular file"
            raise ModelFileError(f"{path} is {kind}. Give the path of an .onnx file.")

    def close(self) -> None:
        """Closes the file; nothing can be read afterwards."""
        self._closing()

    def read_into(self, arrays: Sequence[np.ndarray], offset: int) -> bool:
        """Fills uint8 arrays with the bytes from `offset`, in one system call; returns whether the file has them all.

        Raises:
            OSError: the system could not read.
        """
        return os.preadv(self._file.fileno(), arrays, offset) == sum(array.nbytes for array in arrays)  # type: ignore[arg-type]  # an array is a buffer

    def read(self, offset: int, length: int) -> bytes:
        """Returns exactly `length` bytes from `offset`."""
        if _READS_AT:
            try:
                data = os.pread(self._file.fileno(), length, offset)
            except OSError:
                data = b""
            if len(data) == length:
                return data
        return self.read_array(offset, length).tobytes()

    def read_array(self, offset: int, length: int, unit: int = 1) -> np.ndarray:
        """Returns the bytes, of elements of `unit` bytes, as a new, writable uint8 array (length,).

        Raises:
            ModelFileError: the file is shorter than it was, or cannot be read.
        """
        if self.mapped and length >= _MAPPED and not (self.aligned and offset % unit):
            return self._mapped_array(offset, length)
        array = np.empty(length, np.uint8)
        self.fill(array, offset)
        return array

    def fill(self, array: np.ndarray, offset: int) -> None:
        """Fills a contiguous uint8 array with the bytes from `offset`.

        Raises:
            ModelFileError: the file is shorter than it was, or cannot be read.
        """
        view = memoryview(array)  # type: ignore[arg-type]  # an array is a buffer
        done = 0
        while done < view.nbytes:
            try:
                count = self._read_some(view[done:], offset + done)
            except OSError as error:
                raise ModelFileError(f"Cannot read {self.path}: {error.strerror or error}.") from error
            if not count:
                raise ModelFileError(
                    f"{self.path} became shorter while it was read. Read it again when it is complete."
                )
            done += count

    def _read_some(self, view: memoryview, offset: int) -> int:
        """Fills the start of a buffer with the bytes from `offset`; returns how many, 0 at the end of the file."""
        if _READS_AT:
            return os.preadv(self._file.fileno(), [view], offset)
        with self._lock:  # the file has one position
            self._file.seek(offset)
            return self._file.readinto(view) or 0

    def unmap(self) -> None:
        """Reads arrays again; what is mapped stays so while arrays are views of it."""
        self.mapped, self._map = False, None

    def offset_of(self, address: int, length: int) -> int | None:
        """Returns the offset of the bytes that are mapped to memory at `address`, None where others are there."""
        if self._map is None:
            return None
        offset = address - np.frombuffer(self._map, np.uint8).ctypes.data
        return int(offset) if 0 <= offset <= self.size - length else None

    def _mapped_array(self, offset: int, length: int) -> np.ndarray:
        with self._lock:
            if self._map is None:
                try:
                    self._map = mmap.mmap(self._file.fileno(), self.size, access=mmap.ACCESS_COPY)
                except (OSError, ValueError) as error:  # ValueError: the file is shorter than it was
                    raise ModelFileError(f"Cannot map {self.path}: {error}.") from error
        return np.frombuffer(self._map, np.uint8, length, offset)
