"""TorchScript of modules with If: a trace of each branch, and a scripted choice, as a trace alone holds one branch."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from typing import Any

import numpy as np
import torch
from torch import nn

from onnx2nn.control_flow import If
from onnx2nn.errors import VerificationError, first_line
from onnx2nn.output.other_values import NO_ELEMENTS, NOTHING, TEXTS, may_have_texts, other_values


class _Branch(nn.Module):
    """A branch that takes the captured values of its If as one list, and returns a list of its results.

    Args:
        branch: takes a part of the captured values.
        first: position of its first value.
        count: number of its values.
    """

    def __init__(self, branch: nn.Module, first: int, count: int):
        super().__init__()
        self.branch, self.first, self.count = branch, first, count

    def forward(self, captured: list[torch.Tensor]) -> list[torch.Tensor]:
        given = captured[self.first : self.first + self.count]
        results = self.branch(*given)
        found = list(results) if isinstance(results, tuple) else [results]
        # a trace knows tensors by identity: what reads such a value behind the If would read the If's result
        return [value.clone() if any(value is item for item in given) else value for value in found]


class _Choice(nn.Module):
    """The scripted choice between two traced branches."""

    def __init__(self, then_branch: nn.Module, else_branch: nn.Module):
        super().__init__()
        self.then_branch, self.else_branch = then_branch, else_branch

    def forward(self, cond: torch.Tensor, captured: list[torch.Tensor]) -> list[torch.Tensor]:
        if bool(cond):
            results: list[torch.Tensor] = self.then_branch(captured)
        else:
            results = self.else_branch(captured)
        return results


class _Scripted(nn.Module):
    """An If in a trace: calls a `_Choice`."""

    def __init__(self, choice: nn.Module, several: bool):
        super().__init__()
        self.choice, self.several = choice, several

    def forward(self, cond: Any, *captured: Any) -> Any:
        results = self.choice(torch.as_tensor(cond), [torch.as_tensor(value) for value in captured])
        return tuple(results) if self.several else results[0]


class _Noted(Exception):
    """Ends a trace at the first If; holds what the If takes."""

    def __init__(self, path: str, values: Sequence[Any]):
        self.path, self.values = path, values


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> torch.jit.ScriptModule:
    """Returns a trace of a module that holds both branches of each If.

    Args:
        module: with the state that the trace shares.
        inputs: example inputs, tensors or lists of them.

    Raises:
        VerificationError: a branch cannot be traced with the values that it has for these inputs, or the module has
            texts, of which a trace would hold those of the example, and what is computed of them.
    """
    has_texts = any(isinstance(value, np.ndarray) for value in inputs) or may_have_texts(module)
    if has_texts and (texts := other_values(module, inputs, [TEXTS])):
        raise VerificationError(f"torch.jit.trace cannot trace the module: {texts}. Save .pth.")
    memo = {id(value): value for value in (*module.parameters(), *module.buffers())}
    copied = copy.deepcopy(module, memo)  # If modules are replaced in the copy
    while True:
        try:
            return _readable(_traced(copied, inputs))
        except _Noted as noted:
            chosen = copied.get_submodule(noted.path)
            assert isinstance(chosen, If)
            scripted = _scripted(chosen, noted.path, noted.values)
            holder, _, name = noted.path.rpartition(".")
            setattr(copied.get_submodule(holder), name, scripted)


_KEYWORDS = frozenset({"torch", "annotate", "NoneType"})
"""What the code in a file of TorchScript calls, and does not keep free of the names of weights and inputs."""


def _readable(traced: torch.jit.ScriptModule) -> torch.jit.ScriptModule:
    """Gives other names to values that have names which the code in a file calls; the keys of weights stay."""
    parts: Any = traced.modules()
    for part in parts:
        if not part._c._has_method("forward"):  # a module that is not called: a container of weights
            continue
        graph = part.graph
        for value in (*graph.inputs(), *(output for node in graph.nodes() for output in node.outputs())):
            if value.debugName() in _KEYWORDS:
                value.setDebugName(f"{value.debugName()}_")
    return traced


def _traced(module: nn.Module, inputs: tuple[Any, ...]) -> torch.jit.ScriptModule:
    """Returns a trace.

    Raises:
        _Noted: the module calls an If.
    """

    def note(path: str) -> Any:
        def hook(_: nn.Module, values: tuple[Any, ...]) -> None:
            raise _Noted(path, [torch.as_tensor(value).detach().clone() for value in values])

        return hook

    def copy_state(_: nn.Module, values: Any, results: Any) -> Any:
        several = isinstance(results, (tuple, list))
        found = [value.clone() if id(value) in state else value for value in (results if several else [results])]
        return type(results)(found) if several else found[0]

    state = {id(value) for value in (*module.parameters(), *module.buffers())}
    found = [(path, child) for path, child in module.named_modules() if isinstance(child, If)]
    hooks = [child.register_forward_pre_hook(note(path)) for path, child in found]
    hooks.append(module.register_forward_hook(copy_state))  # TorchScript has no trace whose result is a weight
    try:
        return torch.jit.trace(module, inputs, check_trace=False, strict=False)
    finally:
        for hook in hooks:
            hook.remove()


def _scripted(module: If, path: str, values: Sequence[torch.Tensor]) -> _Scripted:
    _, *captured = values
    traced, several = [], True
    counts = (module.split, len(captured) - module.split)
    for branch, first, count in zip((module.then_branch, module.else_branch), (0, module.split), counts, strict=True):
        given = captured[first : first + count]
        try:
            with torch.no_grad():
                several = isinstance(branch(*given), tuple)
            traced.append(trace(_Branch(branch, first, count), (captured,)))
        except VerificationError:
            raise
        except Exception as error:  # a branch raises errors of many classes
            if others := other_values(branch, given, [NOTHING, NO_ELEMENTS]):
                raise VerificationError(
                    f"A trace cannot hold both branches of node {path!r} (If): {others}. Save .pth."
                ) from error
            raise VerificationError(
                f"A trace cannot hold both branches of node {path!r} (If): one does not take the example's values "
                f"({first_line(error)}). Save .pt2, give example inputs that both branches take, or change the model's "
                "file to one branch."
            ) from error
    return _Scripted(torch.jit.script(_Choice(*traced)), several)
