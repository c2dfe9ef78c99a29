"""Maps the weights of a file instead of reading them, for modules whose weights go elsewhere, or nowhere."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator

import onnx_ir as ir

from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.tensors import StoredTensor


@contextlib.contextmanager
def mapping(model: ir.Model) -> Iterator[None]:
    """Inside, arrays of the model's weights are views of its files: only the pages that are used are read."""
    sources = {
        tensor.source
        for value in model.graph.initializers.values()
        if isinstance(tensor := value.const_value, StoredTensor) and isinstance(tensor.source, FileSource)
    }
    for source in sources:
        source.mapped = True
    try:
        yield
    finally:
        for source in sources:
            source.mapped = False
