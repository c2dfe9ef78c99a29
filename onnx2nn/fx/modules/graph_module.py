"""The result of an import: a `torch.fx.GraphModule` with a record of its file."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.errors import ModuleInputError
from onnx2nn.fx.blocks.block import SharedProgram
from onnx2nn.fx.blocks.program import Program
from onnx2nn.fx.constants import identity_of, memory_of
from onnx2nn.fx.exporting.export_calls import ask_inputs
from onnx2nn.fx.modules.failed_nodes import named
from onnx2nn.fx.modules.wrong_inputs import misfit, wrong_inputs
from onnx2nn.fx.values.failed_sizes import failed_sizes
from onnx2nn.provenance.naming_reports import NamingReport, naming_report


class ImportedModule(SharedProgram):
    """A model as a `torch.fx.GraphModule` with a record of its file in `meta`.

    Its pickle is a plain GraphModule with `meta`: `torch.load` needs onnx2nn only if an operator does. For such a
    module `onnx2nn.naming_report` returns the result of this class's method.
    """

    # torch.jit.script does not compile these properties
    __jit_unused_properties__ = [*SharedProgram.__jit_unused_properties__, "_version"]  # noqa: RUF012, it is torch's

    @property
    def _version(self) -> int:  # type: ignore[override]  # a class attribute of nn.Module
        """The version of this module in state_dict, see `state_versions`; held in `meta`, which copies keep."""
        return int(self.meta.get("onnx2nn", {}).get("version", fx.GraphModule._version))

    @_version.setter
    def _version(self, version: int) -> None:
        self.meta["onnx2nn"]["version"] = version

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name.

        Raises:
            ModuleInputError: the inputs are not the file's in number, name, rank, fixed sizes or element type.
            ValueError: a guard, or a call of torch, refuses their sizes.
            OperatorError: a node is not defined for their values.
            CallError: torch cannot compute a node.
        """
        if torch.compiler.is_compiling() or torch.jit.is_tracing():
            return super().__call__(*args, **kwargs)
        declared = self.meta.get("onnx2nn", {}).get("declared")
        if declared is not None and (reason := misfit(declared, args, kwargs)):
            raise ModuleInputError(reason)
        try:
            return super().__call__(*args, **kwargs)
        except Exception as error:  # any error of torch, whose cause may be the inputs
            reason = wrong_inputs(declared, args, kwargs) if declared is not None else ""
            if reason:
                raise ModuleInputError(reason) from error
            if reason := failed_sizes(self.meta.get("onnx2nn", {}), args, kwargs, error):
                raise ValueError(reason) from error
            if (failed := named(error)) is not None:
                raise failed from error
            raise

    def train(self, mode: bool = True) -> ImportedModule:
        """Sets the mode, as `nn.Module.train`.

        Raises:
            RuntimeError: for the training mode of a module that `onnx2nn.optimize` made.
        """
        if mode and self.meta.get("onnx2nn", {}).get("optimized"):
            raise RuntimeError("An optimised module cannot be trained. Train the module of onnx2nn.load.")
        return super().train(mode)

    def _apply(self, fn: Any, recurse: bool = True) -> ImportedModule:
        """Converts all parameters and buffers; casts of the program follow the type of the weights."""
        if "onnx2nn" not in self.meta or "signature" not in self.meta["onnx2nn"]:
            return super()._apply(fn, recurse)
        from onnx2nn.fx.modules.float_type import constants, float_type, follow  # here: few modules change their type

        before = float_type(self)
        after = fn(torch.empty(0, dtype=before)).dtype
        kept = {} if after == before else constants(self)
        super()._apply(fn, recurse)
        if kept or after != before:
            follow(self, before, after, kept)
        return self

    def generate(self) -> None:
        """Generates the program, if it is deferred, for torch.export to take inputs by name."""
        super().generate()
        ask_inputs(type(self))

    def recompile(self) -> Any:
        """Generates the program again, likewise."""
        code = super().recompile()
        if code is not None:
            ask_inputs(type(self))
        return code

    @classmethod
    def program_of(cls, graph: fx.Graph) -> Program:
        """Returns the program of a graph with the names of its arguments, by which callers may give them."""
        program = super().program_of(graph)
        return Program(program.calls, tuple(call.target for call in program.calls if call.op == "placeholder"))

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        rebuild, arguments, outside = super().__reduce__()
        outside |= {"meta": {**self.meta, **outside["meta"]}, "_version": self._version}  # torch leaves `meta` out
        return rebuild, arguments, outside


def lay_out_state(module: nn.Module) -> None:
    """Makes the state contiguous; files hold some tensors in another layout, such as the weights of `nn.Linear`.

    safetensors and `parameters_to_vector` refuse views, and safetensors parts of a memory that no tensor has as a
    whole, such as the results of a Split of a weight. load_state_dict writes no tensor whose elements share memory.
    Other tensors with shared memory keep their layout.
    """
    state = [*module.parameters(), *module.buffers()]
    _take_out_parts(state)
    for tensor in module.state_dict(keep_vars=True).values():
        if tensor.untyped_storage().nbytes() < tensor.nbytes and tensor.device.type != "meta":
            tensor.data = tensor.data.clone(memory_format=torch.contiguous_format)
    if all(tensor.is_contiguous() for tensor in state):
        return
    views = sorted((view for view in _unshared(state) if not view.is_contiguous()), key=lambda view: view.nbytes)
    if sum(view.nbytes for view in views) < _SMALL:
        _lay_out(views)
        return
    count = torch.get_num_threads()  # torch transposes a matrix in one thread
    with ThreadPoolExecutor(count) as threads:
        list(threads.map(_lay_out, (views[number::count] for number in range(count))))


def _take_out_parts(state: Sequence[torch.Tensor]) -> None:
    """Gives tensors that are parts of a memory their own one, unless another tensor is all of it."""
    parts, whole = [], set()
    for tensor in state:
        storage = tensor.untyped_storage()
        if not tensor.nbytes and (storage.nbytes() or storage.data_ptr()):
            tensor.data = tensor.data.clone()  # torch.export.save asks how far from its memory an empty tensor ends
        elif storage.nbytes() > tensor.nbytes:
            parts.append(tensor)
        else:
            whole.add(memory_of(tensor))
    copies: dict[Any, torch.Tensor] = {}
    for part in parts:
        if memory_of(part) not in whole:
            key = identity_of(part)
            if key not in copies:
                copies[key] = part.data.clone(memory_format=torch.contiguous_format)
            part.data = copies[key]


_SMALL = 1 << 21
"""Bytes of state for which starting threads takes longer than copying it."""


def _unshared(state: Iterable[torch.Tensor]) -> list[torch.Tensor]:
    """Returns the tensors that share no memory with others and whose elements do not overlap."""
    alone: list[torch.Tensor] = []
    end, shared = 0, True
    for start, _, tensor in sorted((memory_of(tensor), number, tensor) for number, tensor in enumerate(state)):
        size = tensor.untyped_storage().nbytes()
        if start < end and not shared:
            alone.pop()
        shared = start < end or size < tensor.nbytes
        if not shared:
            alone.append(tensor)
        end = max(end, start + size)
    return alone


def _lay_out(views: Iterable[torch.Tensor]) -> None:
    """Makes views contiguous, in order of their size; the memory of one takes the elements of the next.

    Memory that was used before is faster than new memory, of which the system has to find every page.

    Args:
        views: views of all elements of their memory, of which no other tensor reads; a view of a part of its memory is
            copied to new memory.
    """
    spare = None
    for view in views:
        storage = view.untyped_storage()
        if storage.nbytes() > view.nbytes:
            view.data = view.data.clone(memory_format=torch.contiguous_format)
            continue
        if spare is None or spare.nbytes() != view.nbytes:
            spare = torch.empty(view.nbytes, dtype=torch.uint8, device=view.device).untyped_storage()
        view.data = torch.empty(0, dtype=view.dtype, device=view.device).set_(spare).view(view.shape).copy_(view.data)
        spare = storage
