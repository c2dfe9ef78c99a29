"""Reads boxes of tensors that are strided views of a file: a part of a matrix, transposed or not."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from onnx2nn.reading.byte_sources import FileSource

_PAGE = 1 << 12
"""Bytes between two parts of a file below which they are read together: there is no whole page to leave out."""

_BLOCK = 1 << 20
"""Bytes that are held at once."""


@dataclass(frozen=True)
class StoredView:
    """A tensor whose elements lie in a file.

    Attributes:
        source: the file.
        offset: of the first element, in bytes.
        itemsize: bytes of an element.
        strides: bytes from an element to the next one, by dimension; no two elements overlap.
    """

    source: FileSource
    offset: int
    itemsize: int
    strides: tuple[int, ...]

    def blocks(self, starts: Sequence[int], lengths: Sequence[int]) -> Iterator[tuple[tuple[slice, ...], np.ndarray]]:
        """Yields the parts of a box of elements, in the order of the file.

        No page of the file is read that holds no byte of the box, and no byte is read twice.

        Args:
            starts: the box's first element, by dimension.
            lengths: number of elements, by dimension.

        Yields:
            The place of a part in the box, and its bytes as uint8 (*dimensions, itemsize).
        """
        if 0 in lengths:
            return
        offset = self.offset + sum(start * stride for start, stride in zip(starts, self.strides, strict=True))
        order = sorted(range(len(lengths)), key=lambda axis: -self.strides[axis])
        sizes, strides = [lengths[axis] for axis in order], [self.strides[axis] for axis in order]
        back = [order.index(axis) for axis in range(len(order))]
        for place, block in self._in_file_order(offset, sizes, strides):
            yield tuple(place[axis] for axis in back), block.transpose(*back, len(order))

    def _in_file_order(
        self, offset: int, sizes: list[int], strides: list[int]
    ) -> Iterator[tuple[list[slice], np.ndarray]]:
        """Yields parts of a box whose dimensions are in the order of the file, the outermost first."""
        inner, span = len(sizes), self.itemsize
        while inner:  # the dimensions from `inner` on are read by one system call
            wider = (sizes[inner - 1] - 1) * strides[inner - 1] + span
            if sizes[inner - 1] > 1 and (strides[inner - 1] - span >= _PAGE or wider > _BLOCK):
                break
            inner, span = inner - 1, wider
        whole = [slice(0, size) for size in sizes[inner:]]
        if not inner:
            yield whole, self._read(offset, 1, 0, span, sizes, strides)[0]
            return
        size, stride = sizes[inner - 1], strides[inner - 1]
        joined = stride - span < _PAGE
        step = 1 + max(_BLOCK - span, 0) // stride if joined else max(1, _BLOCK // span)
        for outer in np.ndindex(*sizes[: inner - 1]):
            first = offset + sum(i * s for i, s in zip(outer, strides, strict=False))
            for start in range(0, size, step):
                count = min(step, size - start)
                block = self._read(first + start * stride, count, stride, span, sizes[inner:], strides[inner:])
                place = [*(slice(i, i + 1) for i in outer), slice(start, start + count), *whole]
                yield place, block[(None,) * len(outer)]

    def _read(
        self, offset: int, count: int, stride: int, span: int, sizes: list[int], strides: list[int]
    ) -> np.ndarray:
        """Returns `count` parts of `span` bytes each, as (count, *sizes, itemsize).

        Args:
            offset: of the first part.
            count: number of parts.
            stride: bytes from a part to the next one.
            span: bytes of a part.
            sizes: the dimensions of a part.
            strides: bytes from an element of a part to the next one.
        """
        if count == 1 or stride - span < _PAGE:
            buffer, step = np.empty((count - 1) * stride + span, np.uint8), stride
            self.source.fill(buffer, offset)
        else:
            buffer, step = np.empty(count * span, np.uint8), span
            for number in range(count):
                self.source.fill(buffer[number * span : (number + 1) * span], offset + number * stride)
        return np.lib.stride_tricks.as_strided(buffer, (count, *sizes, self.itemsize), (step, *strides, 1))
