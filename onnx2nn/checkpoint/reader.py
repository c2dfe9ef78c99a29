"""The weights of an ONNX file as a checkpoint of torch.distributed, of which each process reads its part."""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Mapping
from typing import Any, BinaryIO, cast

import onnx
import torch
from torch.distributed.checkpoint import StorageReader
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadItemType, LoadPlan, LoadPlanner, ReadItem
from torch.futures import Future

from onnx2nn.errors import InputError, listed
from onnx2nn.loading import load_stored
from onnx2nn.reading.stored_boxes import StoredView

_LOG = logging.getLogger("onnx2nn")

_SMALL = 1 << 14
"""Bytes of a weight that is not worth a message."""


class OnnxReader(StorageReader):
    """Reads the weights of an ONNX file into a sharded state_dict, of each tensor the part that a process holds.

    `torch.distributed.checkpoint.load(state_dict, storage_reader=onnx2nn.OnnxReader(path))` fills the tensors of
    a `state_dict`, plain ones and `DTensor`s of any mesh and placement (FSDP2, tensor parallelism). Keys, shapes and
    values are those of the module that `onnx2nn.load` returns: matrices that the file has transposed, packed or tied
    are read where they lie, and converted to the type of the tensor that takes them. Weights that the import computes
    from the file's, such as those of recurrent layers, and those below 16 KiB are whole in every process; `whole` has
    their keys.

    The file is opened at once and imported without weights. It stays open until `close`, or until the reader is gone.

    Args:
        source: as for `onnx2nn.load`; from a path or a file, weights are read in parts.
        strict: whether all keys of a state_dict must be in the file; otherwise the others keep their values.
        **options: of `onnx2nn.load`, as the module was loaded with: `base_dir`, `follow_links`, `raise_patterns`,
            `dynamic`, `input_shapes`, `quantized`, `blocks`, `dtype`, `limits`.

    Attributes:
        stored: where in its file the weight of a key lies: `file`, `offset` (bytes), `dtype`, `shape`, `stride`
            (elements).
        whole: the keys of the other weights.

    Raises:
        InputError: an option is not one of these. A load raises it for all keys of the state_dict that the file lacks,
            and for all shapes that do not fit; torch.distributed wraps it in a `CheckpointException`.
        Onnx2nnError: as for `onnx2nn.load`.
    """

    def __init__(
        self,
        source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
        *,
        strict: bool = True,
        **options: Any,
    ):
        unknown = sorted(options.keys() - _OPTIONS)
        if unknown:
            raise InputError(f"{unknown[0]} is no option of OnnxReader. Give of {', '.join(sorted(_OPTIONS))}.")
        module, files, self._opened = load_stored(source, **options)
        self.stored: Mapping[str, Mapping[str, Any]] = module.meta["onnx2nn"]["stored"]
        self._source, self._strict = source, strict
        self._state: dict[str, torch.Tensor] = {k: v.detach() for k, v in module.state_dict().items()}
        self._types = {key: getattr(torch, record["dtype"]) for key, record in self.stored.items()}
        self._views = {
            key: _view(record, files.sources[record["file"]], self._types[key]) for key, record in self.stored.items()
        }
        self._asked = _Asked(self._state)
        self.whole = [key for key in self._state if key not in self.stored]
        large = [key for key in self.whole if self._state[key].nbytes > _SMALL]
        if large:
            lines = listed([f"{key}: {self._state[key].nbytes} bytes" for key in large], "weights")
            _LOG.warning("\n".join(["Each process has these weights whole, as the import computes them:", *lines]))

    def close(self) -> None:
        """Closes the file; nothing can be read afterwards."""
        self._opened.close()

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id: str | os.PathLike[str]) -> bool:
        """Returns whether a checkpoint's name is the path of a file."""
        return os.path.isfile(checkpoint_id)

    def reset(self, checkpoint_id: str | os.PathLike[str] | None = None) -> None:
        """Begins a load.

        Raises:
            InputError: `checkpoint_id` is another file than the reader's.
        """
        own = os.fspath(self._source) if isinstance(self._source, (str, os.PathLike)) else None
        if checkpoint_id is not None and os.fspath(checkpoint_id) != own:
            raise InputError(
                f"checkpoint_id={checkpoint_id!r} is not the reader's file. Give OnnxReader the path alone."
            )

    def read_metadata(self, *args: Any, **kwargs: Any) -> Metadata:
        """Returns keys, shapes and types of the weights."""
        self._asked = _Asked(self._state)
        return Metadata(self._asked)

    def set_up_storage_reader(self, metadata: Metadata, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        """Does nothing: all processes do the same."""

    def prepare_local_plan(self, plan: LoadPlan) -> LoadPlan:
        """Returns what is to be read of the file, in the order of its bytes.

        Raises:
            InputError: the state_dict does not fit the file.
        """
        self._asked.check(self._strict)
        items = [item for item in plan.items if item.type == LoadItemType.TENSOR]
        return dataclasses.replace(plan, items=sorted(items, key=self._position))

    def _position(self, item: ReadItem) -> int:
        view = self._views.get(item.storage_index.fqn)
        return -1 if view is None else view.offset

    def prepare_global_plan(self, plans: list[LoadPlan]) -> list[LoadPlan]:
        """Returns the plans: no process reads for another."""
        return plans

    def read_data(self, plan: LoadPlan, planner: LoadPlanner) -> Future[None]:
        """Fills the tensors of a plan.

        Raises:
            ModelFileError: the file is shorter than it was, or cannot be read.
        """
        for item in plan.items:
            target = planner.resolve_tensor(item).detach()
            self._fill(target, item.storage_index.fqn, item.storage_offsets, item.lengths)
            planner.commit_tensor(item, target)
        done: Future[None] = Future()
        done.set_result(None)
        return done

    def _fill(self, target: torch.Tensor, key: str, starts: torch.Size, lengths: torch.Size) -> None:
        """Copies a box of a weight to a tensor of its shape."""
        view = self._views.get(key)
        if view is None:
            box = tuple(slice(start, start + length) for start, length in zip(starts, lengths, strict=True))
            target.copy_(self._state[key][box])
            return
        for place, block in view.blocks(starts, lengths):
            target[place].copy_(torch.from_numpy(block).view(self._types[key]).squeeze(-1))


_OPTIONS = frozenset(
    {"base_dir", "follow_links", "raise_patterns", "dynamic", "input_shapes", "quantized", "blocks", "dtype", "limits"}
)


def _view(record: Mapping[str, Any], source: Any, dtype: torch.dtype) -> StoredView:
    strides = tuple(stride * dtype.itemsize for stride in record["stride"])
    return StoredView(source, record["offset"], dtype.itemsize, strides)


class _Asked(dict[str, STORAGE_TYPES]):
    """The weights of a file by key, which notes what a planner asks for and does not get.

    torch's planner ends at the first key that is not there and at the first size that is not equal. It gets an answer
    to all it asks, so that one error names all of them, before anything is read.

    Args:
        state: the weights.
    """

    def __init__(self, state: Mapping[str, torch.Tensor]):
        self._sizes = {key: _Size(tensor.shape) for key, tensor in state.items()}
        self._missing: dict[str, None] = {}
        super().__init__({key: _described(tensor, self._sizes[key]) for key, tensor in state.items()})

    def __contains__(self, key: object) -> bool:
        return True

    def __missing__(self, key: str) -> STORAGE_TYPES:
        self._missing[key] = None
        return BytesStorageMetadata()

    def check(self, strict: bool) -> None:
        """Ends a load for which the file lacks something.

        Args:
            strict: whether keys that the file lacks are an error.

        Raises:
            InputError: it names all keys and shapes.
        """
        missing = [*self._missing] if strict else []
        misfits = [
            f"{key}: {tuple(size)} in the file, {size.wanted} in the state_dict"
            for key, size in self._sizes.items()
            if size.wanted is not None
        ]
        if not missing and not misfits:
            return
        lines = (
            ["The file has no weights for these keys of the state_dict:", *listed(missing, "keys")] if missing else []
        )
        lines += ["These shapes differ:", *listed(misfits, "shapes")] if misfits else []
        advice = "Give the state_dict of onnx2nn.load for this file, and OnnxReader the same options"
        partly = "; strict=False leaves tensors as they are that the file lacks" if missing else ""
        raise InputError("\n".join([*lines, f"{advice}{partly}."]))


def _described(tensor: torch.Tensor, size: _Size) -> TensorStorageMetadata:
    whole = ChunkStorageMetadata(torch.Size([0] * tensor.ndim), tensor.shape)
    return TensorStorageMetadata(TensorProperties(tensor.dtype), cast(torch.Size, size), [whole])


class _Size(tuple[int, ...]):
    """The shape of a weight in the file.

    Attributes:
        wanted: another shape that a planner compared it with.
    """

    wanted: tuple[int, ...] | None = None

    def __ne__(self, other: object) -> bool:
        if isinstance(other, tuple) and tuple(self) != tuple(other):
            self.wanted = tuple(other)
        return False

    __hash__ = tuple.__hash__
