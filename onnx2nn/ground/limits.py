"""The limits within which a model is read and imported, and the account that one import keeps of them."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator
from dataclasses import dataclass

from onnx2nn.errors import LONGEST_MESSAGE, InputError, LimitError


@dataclass(frozen=True, kw_only=True)
class Limits:
    """The limits of one import; raise one for a trusted file that exceeds it.

    They bound the memory and the time that a file can cost beyond its own size: weights that are stored in the file, or
    in external data, count for none of them. `docs/untrusted_files.md` lists them.

    Attributes:
        nodes: number of nodes in the file, in all its graphs and functions.
        expansion: nodes that the import visits for each node of the file. A function counts for each of its calls, a
            loop's body for each time that it is unrolled or imported again. The first 5000 nodes are free.
        subgraph_depth: levels of subgraphs inside each other (an If in an If is 2).
        function_depth: levels of functions that call each other.
        rank: number of dimensions of a tensor (NumPy 1.x ends at 32).
        text_bytes: bytes of a file in one of the text formats, which are parsed in memory at once.
        constant_bytes: bytes of tensors that are in no file: sparse tensors made dense, and constants that the import
            computes. A model has 16 bytes more for each byte of its stored tensors.
        folding_seconds: computing time of constants, on a processor with 2e10 multiply-adds and 1e9 elements a second;
            so the same file is imported alike everywhere. A model has 1 second more for each 64 MiB of its stored
            tensors.
        elements: numbers that the import reads one by one: sizes, axes, bounds and strings.
        sequence_length: elements of a sequence that is known to the import.
        image_pixels: pixels of an encoded image, at import and in a call of the module. Pillow's own
            `PIL.Image.MAX_IMAGE_PIXELS` holds too.
        message_length: characters of an error's text.
        download_bytes: bytes of a model's files together, where the model is at a URL.

    Raises:
        InputError: a value is no number above 0, or a fraction where a whole number is needed.
    """

    nodes: int = 1_000_000
    expansion: int = 100
    subgraph_depth: int = 24
    function_depth: int = 64
    rank: int = 32
    text_bytes: int = 64 << 20
    constant_bytes: int = 256 << 20
    folding_seconds: float = 1.0
    elements: int = 1 << 16
    sequence_length: int = 10_000
    image_pixels: int = 1 << 26
    message_length: int = LONGEST_MESSAGE
    download_bytes: int = 64 << 30

    def __post_init__(self) -> None:
        for limit in dataclasses.fields(self):
            value = getattr(self, limit.name)
            whole = isinstance(limit.default, int)
            if isinstance(value, bool) or not isinstance(value, int if whole else (int, float)) or not value > 0:
                kind = "a whole number" if whole else "a number"
                raise InputError(f"Limits({limit.name}={value!r}): give {kind} above 0.")


FREE_NODES = 5000
"""Nodes that every import may visit; see `Limits.expansion`."""

_BYTES_PER_BYTE = 16
_BYTES_PER_SECOND = 64 << 20


class TooLargeError(LimitError):
    """A constant costs more than the limits allow; the import leaves it to run time where it can."""


ATTEMPTS = 8
"""How often an import may repeat what the limits allow once.

The raising, each search for constants to replace, and the module of one sample are attempts of their own: each is held
to the limits, so that it ends alike whatever was tried before, and all together to so many times of them.
"""


@dataclass
class _Spent:
    """What all attempts of an import have used together."""

    nodes: int = 0
    seconds: float = 0.0


class Account:
    """What one import has used of its limits: nodes, bytes and seconds, wherever they are used.

    Args:
        limits: the limits.

    Attributes:
        stored_nodes: the nodes in the file.
        stored_bytes: the bytes of the tensors in the file.
    """

    def __init__(self, limits: Limits | None = None):
        self.limits = limits or Limits()
        self.stored_nodes = self.stored_bytes = 0
        self._downloaded = 0
        self._nodes = self._bytes = 0
        self._seconds = 0.0
        self._together = _Spent()

    def renewed(self) -> Account:
        """Returns an account for a further attempt to import the file, in which what the file stores is used.

        What the attempt uses counts here too: all of them together have `ATTEMPTS` times the limits.
        """
        other = Account(self.limits)
        other.stored_nodes, other.stored_bytes, other._bytes = self.stored_nodes, self.stored_bytes, self._bytes
        other._together = self._together
        return other

    def check(self, limit: str, found: float, what: str) -> None:
        """Checks a number against a limit.

        Args:
            limit: its name.
            found: the number.
            what: what has this number, as the beginning of a sentence: "A tensor has".

        Raises:
            LimitError: it is above the limit.
        """
        allowed = getattr(self.limits, limit)
        if found > allowed:
            raise LimitError(limit, found, allowed, what)

    @property
    def node_limit(self) -> int:
        """The nodes that the import may visit."""
        return max(FREE_NODES, self.limits.expansion * self.stored_nodes)

    def visit(self, nodes: int, what: str = "The import visits") -> None:
        """Counts nodes that the import visits.

        Raises:
            LimitError: they are more than the file's size allows.
        """
        self._nodes += nodes
        self._together.nodes += nodes
        if self._nodes > self.node_limit:
            raise LimitError("expansion", self._nodes, self.node_limit, what, unit="nodes")
        if self._together.nodes > ATTEMPTS * self.node_limit:
            together = "All attempts to import the model visit"
            raise LimitError("expansion", self._together.nodes, ATTEMPTS * self.node_limit, together, unit="nodes")

    def has_room(self, nodes: int) -> bool:
        """Returns whether the import may visit so many nodes, and leave a half for others."""
        return self._nodes + nodes <= self.node_limit // 2

    def download(self, count: int, what: str) -> None:
        """Counts the bytes of a file that is downloaded.

        Raises:
            LimitError: so many are not left.
        """
        self._downloaded += count
        if self._downloaded > self.limits.download_bytes:
            raise LimitError("download_bytes", self._downloaded, self.limits.download_bytes, what, unit="bytes")

    @property
    def free_bytes(self) -> int:
        """The bytes that constants may still take."""
        return self.limits.constant_bytes + _BYTES_PER_BYTE * self.stored_bytes - self._bytes

    @property
    def free_seconds(self) -> float:
        """The computing time that constants may still take."""
        return self.limits.folding_seconds + self.stored_bytes / _BYTES_PER_SECOND - self._seconds

    def take_bytes(self, count: float, what: str) -> None:
        """Counts the bytes of a constant.

        Raises:
            TooLargeError: so many are not left.
        """
        if count > self.free_bytes:
            used = self._bytes + count
            raise TooLargeError("constant_bytes", used, self.free_bytes + self._bytes, what, unit="bytes")
        self._bytes += int(count)

    @contextlib.contextmanager
    def temporarily(self) -> Iterator[None]:
        """Frees the bytes that are taken inside at its end."""
        before = self._bytes
        try:
            yield
        finally:
            self._bytes = before

    def take_seconds(self, seconds: float, what: str) -> None:
        """Counts the computing time of a constant.

        Raises:
            TooLargeError: so much is not left.
        """
        allowed = self.free_seconds + self._seconds
        if seconds > self.free_seconds:
            used = round(self._seconds + seconds, 3)
            raise TooLargeError("folding_seconds", used, round(allowed, 3), what, unit="seconds")
        self._seconds += seconds
        self._together.seconds += seconds
        if self._together.seconds > ATTEMPTS * allowed:
            together = "All attempts to import the model compute constants for"
            used = round(self._together.seconds, 3)
            raise LimitError("folding_seconds", used, round(ATTEMPTS * allowed, 3), together, unit="seconds")

    def too_large(self, limit: str, found: float, what: str) -> None:
        """Checks a number of a constant against a limit.

        Raises:
            TooLargeError: it is above the limit.
        """
        allowed = getattr(self.limits, limit)
        if found > allowed:
            raise TooLargeError(limit, found, allowed, what)
