"""What torch.export makes of an import gives what the import gives."""

from __future__ import annotations

import inspect
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import nn
from torch.utils import _pytree as pytree

from tests.module_calls import Calls, Fault, calls_of, close
from tests.random_modules import Values

Named = Mapping[str, torch.Tensor]

_OUTSIDE = "_empty_nn_module_stack_from_metadata_hook"
"""Torch's note of sizes that no module reads."""


def check_program(module: nn.Module, inputs: Sequence[Named]) -> None:
    """Exports a module with inputs by name, with a dynamic batch size, and compares values, modules and hooks.

    Args:
        module: the import.
        inputs: some of several sizes, also of inputs that it has not.

    Raises:
        Fault: what differs.
    """
    names = list(inspect.signature(module.forward).parameters)
    given = [{name: values[name] for name in reversed(names)} for values in inputs]
    first, blocks = given[0], list(module.meta["onnx2nn"]["tree"]["blocks"])
    with torch.no_grad():
        expected = list(map(_called(module), given))
        calls, _ = calls_of(module, [first[name] for name in names])
        program = _exported(module, (), first)
        called = program.module()
        for values, result in zip(given, expected, strict=True):
            _compare(called(**values), result, "torch.export of inputs by name")
        _check_notes(program, calls, blocks)
        _check_unflattened(program, first, expected[0], calls, blocks)
        _check_hooks(module, names, first, blocks)


def _called(module: nn.Module) -> Any:
    return lambda values: module(**values)


def _exported(module: nn.Module, args: Values, named: Named) -> torch.export.ExportedProgram:
    batch = {0: torch.export.Dim.DYNAMIC}
    names = list(inspect.signature(module.forward).parameters)
    sizes = dict.fromkeys([*names[: len(args)], *named], batch)
    try:
        return torch.export.export(module, tuple(args), dict(named), dynamic_shapes=sizes)
    except Exception as error:  # torch.export raises errors of many unrelated classes; each is a fault of this module
        raise Fault("torch.export fails", f"{type(error).__name__}: {str(error)[:200]}") from error


def _compare(found: Any, expected: Any, what: str) -> None:
    if not close(found, expected):
        raise Fault(f"{what}: outputs differ", "")


def _check_notes(program: torch.export.ExportedProgram, calls: Calls, blocks: Sequence[str]) -> None:
    """The modules around calls are those that were called, of which a program may lack layers that do nothing."""
    stacks = [node.meta.get("nn_module_stack") or {} for node in program.graph.nodes if node.op == "call_function"]
    noted = {path for stack in stacks for path, _ in stack.values()}
    if more := noted - calls.keys() - {_OUTSIDE}:
        raise Fault("noted modules that are not called", ", ".join(sorted(more)))
    if missing := [name for name in blocks if name not in noted]:
        raise Fault("blocks are not noted", ", ".join(missing))


def _check_unflattened(
    program: torch.export.ExportedProgram, given: Named, expected: Any, calls: Calls, blocks: Sequence[str]
) -> None:
    """Blocks of the unflattened program are called as often; of their results those that are used are the same."""
    unflattened = torch.export.unflatten(program)
    found: dict[str, list[Any]] = {name: [] for name in blocks}
    for name, inner in unflattened.named_modules():
        own = ".".join(step.partition("@")[0] for step in name.split("."))  # torch numbers further calls
        if own in found:
            inner.register_forward_hook(lambda _, __, result, own=own: found[own].append(result))
    _compare(unflattened(**given), expected, "unflatten")
    for name, results in found.items():
        wanted = [pytree.tree_leaves(result) for _, result in calls[name]]
        if len(results) != len(wanted):
            raise Fault("unflatten: a block is called otherwise", name)
        for result, values in zip(results, wanted, strict=True):
            given_on = [value for value in pytree.tree_leaves(result) if isinstance(value, torch.Tensor)]  # and sizes
            if not all(any(close(value, other) for other in values) for value in given_on):
                raise Fault("unflatten: a block gives another result", name)


def _check_hooks(module: nn.Module, names: Sequence[str], given: Named, blocks: Sequence[str]) -> None:
    """Hooks that change values, of the outermost module and of blocks, do so in the program too."""

    def before(_: nn.Module, args: Values, named: Named) -> tuple[Any, Any]:
        return pytree.tree_map_only(torch.Tensor, _scaled, (tuple(args), dict(named)))

    def behind(_: nn.Module, __: Any, result: Any) -> Any:
        return pytree.tree_map_only(torch.Tensor, _scaled, result)

    handles = []
    for name in ("", *blocks):
        inner = module.get_submodule(name)
        handles += [inner.register_forward_pre_hook(before, with_kwargs=True), inner.register_forward_hook(behind)]
    args, named = [given[name] for name in names[:1]], {name: given[name] for name in names[1:]}
    expected = module(*args, **named)
    program = _exported(module, args, named)
    for handle in handles:
        handle.remove()
    _compare(program.module()(*args, **named), expected, "hooks")


def _scaled(value: torch.Tensor) -> torch.Tensor:
    return value * 1.25 if value.is_floating_point() else value
