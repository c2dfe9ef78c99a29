"""Maps the weights of a file instead of reading them: they go elsewhere, or nowhere, or stay in the file."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.tensors import StoredTensor


class MappedFiles:
    """The files of a model's weights.

    Args:
        sources: the open files.
    """

    def __init__(self, sources: set[FileSource]):
        self.sources = {source.path: source for source in sources}

    def locate(self, address: int, length: int) -> tuple[str, int] | None:
        """Returns the path of the file that is mapped to memory, and the offset there, None where none is.

        Args:
            address: of the first byte.
            length: number of bytes.
        """
        for path, source in self.sources.items():
            offset = source.offset_of(address, length)
            if offset is not None:
                return path, offset
        return None


@contextlib.contextmanager
def mapping(model: ir.Model, *, aligned: bool = False) -> Iterator[MappedFiles]:
    """Inside, arrays of the model's weights are views of its files: only the pages that are used are read.

    Args:
        model: whose weights are in files, or else are copied.
        aligned: whether weights are copied whose numbers lie across the boundaries that processors read fast.
    """
    sources = {
        tensor.source
        for value in model.graph.initializers.values()
        if isinstance(tensor := value.const_value, StoredTensor) and isinstance(tensor.source, FileSource)
    }
    for source in sources:
        source.mapped, source.aligned = True, aligned
    try:
        yield MappedFiles(sources)
    finally:
        for source in sources:
            source.unmap()
