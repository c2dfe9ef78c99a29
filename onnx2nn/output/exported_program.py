"""A program of torch.export that holds at as many sizes as torch can make it."""

from __future__ import annotations

import operator
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch.fx.experimental import _config

from onnx2nn.optimization.entry import inputs_of
from onnx2nn.output.checked_sizes import Shapes, refused_sizes
from onnx2nn.output.loops_over_time import LoopsOverTime, is_recurrent
from onnx2nn.output.pools_over_time import PoolsOverTime, has_pools_over_time

_OBLIVIOUS = "backed_size_oblivious"
"""The switch by which torch takes no decision by the example's sizes where the program is right without one: a slice is
a view with strides of its own, be it the whole or not. torch.onnx.export sets it in its traces."""


def exported_program(
    module: torch.nn.Module, tensors: tuple[torch.Tensor, ...], shapes: Any
) -> tuple[torch.export.ExportedProgram, dict[str, list[Shapes]]]:
    """Exports a module: decided less by the example's sizes, and with loops, where the program then takes more others.

    Args:
        module: the module.
        tensors: the example inputs.
        shapes: the dynamic dimensions, as `torch.export.export` takes them.

    Returns:
        The program, and the conditions under which it refuses sizes, see `refused_sizes`.

    Raises:
        Exception: of torch.export, of many classes.
    """
    program = torch.export.export(module, tensors, dynamic_shapes=shapes)
    refused = refused_sizes(program, tensors, least=1)
    for context in _contexts(module):
        if not refused and _dynamic(program) == sum(map(len, shapes)):
            break
        try:
            with context:
                other = torch.export.export(module, tensors, dynamic_shapes=shapes)
        except Exception:  # of torch.export, of many classes: the program stands, with the sizes that it refuses
            continue
        other_refused = refused_sizes(other, tensors, least=1)
        more = _dynamic(other) - _dynamic(program)
        if more > 0 or (not more and _sizes(other_refused) < _sizes(refused)):
            program, refused = other, other_refused
    _write_magnitudes(program)
    return program, refused


def _write_magnitudes(program: torch.export.ExportedProgram) -> None:
    """Replaces the absolute values of sizes, which torch.export.save does not write, by the larger of both signs."""
    for node in program.graph.find_nodes(op="call_function", target=operator.abs):
        with program.graph.inserting_before(node):
            negative = program.graph.call_function(operator.neg, node.args)
            negative.meta["val"] = -node.args[0].meta["val"]
        node.target, node.args = torch.sym_max, (*node.args, negative)
    program.graph_module.recompile()


def _contexts(module: torch.nn.Module) -> Iterator[AbstractContextManager[Any]]:
    """Yields the contexts of an export that may hold at more sizes."""
    pools = has_pools_over_time(module)
    yield _oblivious(pools)
    if is_recurrent(module):
        yield _looping(pools)


@contextmanager
def _looping(pools: bool) -> Iterator[None]:
    """A context in which recurrent layers are loops; torch.while_loop takes no views that autograd records."""
    with torch.no_grad(), LoopsOverTime(), PoolsOverTime() if pools else nullcontext():
        yield


def is_symbolic(size: Any) -> bool:
    """Whether a size in a program is dynamic."""
    fixed = not isinstance(size, torch.SymInt) or size.node.expr.is_number  # torch.export leaves a fixed one there
    return not fixed


@contextmanager
def _oblivious(pools: bool) -> Iterator[None]:
    """A context in which torch decides nothing by the example's sizes."""
    switched: AbstractContextManager[Any] = _config.patch(**{_OBLIVIOUS: True})  # type: ignore[attr-defined]  # torch gives configs `patch` at run time
    with switched, PoolsOverTime() if pools else nullcontext():
        yield


def _dynamic(program: torch.export.ExportedProgram) -> int:
    """The number of dynamic dimensions of a program's inputs."""
    return sum(is_symbolic(size) for value in inputs_of(program) for size in getattr(value, "shape", ()))


def _sizes(refused: dict[str, list[Shapes]]) -> set[tuple[tuple[int, ...], ...]]:
    """The sizes that are refused."""
    return {tuple(shapes) for tried in refused.values() for shapes in tried}
