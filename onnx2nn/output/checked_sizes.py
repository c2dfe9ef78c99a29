"""Conditions on sizes that an exported program checks, and the module that it was traced from need not have."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import fx

from onnx2nn.optimization.entry import inputs_of

LARGEST_SIZE = 512
"""Sizes up to this one are tried, and as many around the example's."""

_PREFIX = re.compile("Guard failed: |Runtime assertion failed for expression ")


Shapes = list[tuple[int, ...]]
"""The shapes of all inputs."""


def refused_sizes(
    program: torch.export.ExportedProgram, tensors: tuple[torch.Tensor, ...], least: int = 2
) -> dict[str, list[Shapes]]:
    """Returns the conditions of a program that other sizes of its dynamic dimensions fail, as torch writes them.

    torch.export takes some decisions by the sizes of the example: of a slice `x[:, :n]`, whether it is the whole, as
    this makes it contiguous. Its program then checks that they are the same, at its entry or, as torch.onnx.export
    wishes, among its calls. Only sizes are given to these checks.

    Args:
        program: the program.
        tensors: the example inputs.
        least: the smallest size that is tried.

    Returns:
        Each condition with the sizes tried that fail it.
    """
    module: Any = program.module()
    entry = [node for node in module.graph.nodes if node.op == "call_module" and not node.users]
    checks = [*(module.get_submodule(str(node.target)) for node in entry), *_inner_checks(module)]
    failed: dict[str, list[Shapes]] = {}
    for sizes in _other_sizes(program, tensors, least) if checks else ():
        pairs = zip(sizes, tensors, strict=True)
        inputs = [torch.empty(shape, dtype=tensor.dtype, device="meta") for shape, tensor in pairs]
        try:
            for check in checks:
                check(*inputs)
        except (AssertionError, RuntimeError) as error:  # of a check at the entry, and of one among the calls
            failed.setdefault(_PREFIX.sub("", str(error), count=1), []).append(sizes)
        except ZeroDivisionError:  # of a check that takes a remainder
            failed.setdefault("divisors other than 0 in its checks", []).append(sizes)
    return failed


def _inner_checks(module: fx.GraphModule) -> list[fx.GraphModule]:
    """Returns what a program checks among its calls and computes of its inputs' sizes alone, as a module of its own."""
    graph, copies = fx.Graph(), dict[fx.Node, fx.Node]()
    for node in module.graph.nodes:
        numeric = isinstance(node.meta.get("val"), (torch.SymInt, torch.SymBool, torch.SymFloat))
        computed = node.op == "call_function" and all(used in copies for used in node.all_input_nodes)
        if node.op == "placeholder" or (computed and (numeric or node.target is torch.ops.aten._assert_scalar.default)):
            copies[node] = graph.node_copy(node, copies.__getitem__)
    graph.output(None)
    made = fx.GraphModule(module, graph)
    made.graph.eliminate_dead_code()
    made.recompile()
    checked = any(node.op == "call_function" for node in made.graph.nodes)
    return [made] if checked else []


def tied(sizes: Iterable[tuple[str, str]]) -> str:
    """Returns which dimensions a program takes for one, as the end of a description; `""` where there are none.

    Two dimensions of an example that are equal and meet in a call are one symbol to torch.export, although the module
    may also take a 1 there, which broadcasts.

    Args:
        sizes: the symbol of each dynamic dimension in the program, and its name in the file.
    """
    groups: dict[str, dict[str, None]] = {}
    for symbol, label in sizes:
        groups.setdefault(symbol, {})[label] = None
    found = [" and ".join(labels) for labels in groups.values() if len(labels) > 1]
    return f"; it takes equal sizes alone of {', of '.join(found)}" if found else ""


def _other_sizes(
    program: torch.export.ExportedProgram, tensors: tuple[torch.Tensor, ...], least: int
) -> Iterator[Shapes]:
    """Yields the shapes of all inputs with another size of one dynamic dimension, and of all that are equal to it."""
    traced = [value.shape if isinstance(value, torch.Tensor) else () for value in inputs_of(program)]
    places: dict[str, list[tuple[int, int]]] = {}
    for index, shape in enumerate(traced):
        for axis, size in enumerate(shape):
            if isinstance(size, torch.SymInt) and size.node.expr.is_Symbol:
                places.setdefault(str(size), []).append((index, axis))
    for same in places.values():
        index, axis = same[0]
        known = tensors[index].shape[axis]
        near = range(max(least, known - LARGEST_SIZE), known + LARGEST_SIZE)
        for size in sorted({*range(least, LARGEST_SIZE), *near} - {known}):
            yield [
                tuple(size if (position, i) in same else old for i, old in enumerate(tensor.shape))
                for position, tensor in enumerate(tensors)
            ]
