"""Reads the weights of a file in a thread, some of them ahead of an import, which takes them one by one."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

import numpy as np
import onnx_ir as ir

from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.tensors import StoredTensor

_BATCH = 1 << 25
"""Bytes that are read at once. The thread runs Python between two batches only, as it has to wait for that."""

_LARGEST = 1 << 30
"""Bytes of the largest weight that is read ahead; systems read no more than 2 GiB at once."""

_AHEAD = 2
"""Batches that are read before the first of their weights is taken; a limit on the memory of those never taken."""

_GAP = 1 << 12
"""Bytes between two weights up to which they are read together; exporters align weights."""

_BUFFERS = 256
"""Buffers of one system call, of which systems take about 1,000."""


@contextlib.contextmanager
def reading_ahead(model: ir.Model) -> Iterator[None]:
    """Reads the weights of the model's nodes inside, in the order of their use; each is taken by its first `numpy()`.

    Nothing is read ahead of a small model, or where the system cannot read into several buffers.
    """
    batches = _batches(model) if hasattr(os, "preadv") and (os.cpu_count() or 1) > 1 else []
    if len(batches) < _AHEAD:
        yield
        return
    with ThreadPoolExecutor(1, "onnx2nn") as thread:
        queue = [_Batch(thread, tensors) for tensors in batches]
        for batch, later in zip(queue, queue[_AHEAD:], strict=False):
            batch.later = later
        for batch in queue[:_AHEAD]:
            batch.start()
        try:
            yield
        finally:
            for batch in queue:
                batch.drop()


def _batches(model: ir.Model) -> list[list[StoredTensor]]:
    """Returns the stored weights of the main graph, in the order of their use, in batches."""
    values = (value for node in model.graph for value in node.inputs if value is not None)
    constants = (tensor for value in values if (tensor := value.const_value) is not None)  # few; the next test is slow
    tensors = dict.fromkeys(tensor for tensor in constants if isinstance(tensor, StoredTensor))
    found: list[list[StoredTensor]] = [[]]
    size = 0
    for tensor in tensors:
        if not isinstance(tensor.source, FileSource) or tensor.nbytes > _LARGEST:
            continue
        if size + tensor.nbytes > _BATCH and found[-1]:
            found.append([])
            size = 0
        found[-1].append(tensor)
        size += tensor.nbytes
    return found


class _Batch:
    """Weights that are read together.

    Args:
        thread: reads them.
        tensors: the weights.

    Attributes:
        later: the batch to start when the first of these weights is taken.
    """

    def __init__(self, thread: ThreadPoolExecutor, tensors: Sequence[StoredTensor]):
        self._thread, self._tensors = thread, tensors
        self._arrays: dict[StoredTensor, np.ndarray] = {}
        self._reading: Future[bool] | None = None
        self.later: _Batch | None = None

    def start(self) -> None:
        """Starts reading."""
        self._arrays = {tensor: np.empty(tensor.nbytes, np.uint8) for tensor in self._tensors}
        for tensor in self._tensors:
            tensor.ahead = self
        self._reading = self._thread.submit(_read, list(self._arrays.items()))

    def take(self, tensor: StoredTensor) -> np.ndarray | None:
        """Returns the bytes of a weight, None where they could not be read."""
        later, self.later = self.later, None
        if later is not None:
            later.start()
        array = self._arrays.pop(tensor)
        assert self._reading is not None, "its tensors know of it once it is started"
        return array if self._reading.exception() is None and self._reading.result() else None

    def drop(self) -> None:
        """Forgets the weights that were not taken."""
        self.later = None
        if self._reading is not None:
            self._reading.cancel()
        for tensor in self._arrays:
            tensor.ahead = None
        self._arrays.clear()


def _read(arrays: list[tuple[StoredTensor, np.ndarray]]) -> bool:
    """Fills the arrays of tensors with their bytes; returns whether the files have them all."""
    arrays.sort(key=lambda item: (id(item[0].source), item[0].offset))
    run: list[np.ndarray] = []
    start = end = 0
    source = arrays[0][0].source
    for tensor, array in arrays:
        gap = tensor.offset - end
        if not run or tensor.source is not source or not 0 <= gap <= _GAP or len(run) > _BUFFERS:
            if not _read_run(source, start, run):
                return False
            source, start, run = tensor.source, tensor.offset, []
        elif gap:
            run.append(np.empty(gap, np.uint8))
        run.append(array)
        end = tensor.offset + tensor.nbytes
    return _read_run(source, start, run)


def _read_run(source: object, offset: int, run: list[np.ndarray]) -> bool:
    assert isinstance(source, FileSource)
    return not run or source.read_into(run, offset)
