"""The limits within which a file is read; a file beyond them is an error, before it exhausts the machine."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    """The bounds of `onnx2nn.reading.reader.read`; raise one for a trusted file that exceeds it.

    The memory, time and stack of reading are bounded by the size of the file and these numbers. Tensors whose
    bytes are in the file need no limit of their own: their declared size must equal the number of bytes.

    Attributes:
        nodes: number of nodes in all graphs, subgraphs and function bodies, a function counted once for every call,
            as if inlined.
        subgraph_depth: levels of subgraphs inside each other (an If in an If is 2).
        function_depth: levels of functions that call each other.
        rank: number of dimensions of a tensor (NumPy 1.x ends at 32).
        sparse_elements: number of elements of a sparse tensor once dense, the only tensor larger than its bytes.
        text_bytes: bytes of a file in one of the text formats, which are parsed in memory at once.
    """

    nodes: int = 1_000_000
    subgraph_depth: int = 24
    function_depth: int = 64
    rank: int = 32
    sparse_elements: int = 1 << 27
    text_bytes: int = 64 << 20
