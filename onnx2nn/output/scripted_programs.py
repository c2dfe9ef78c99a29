"""TorchScript of modules with If, Loop and Scan: a trace of each branch or body, in a scripted choice or repetition.

A trace alone holds one branch, and the iterations of the example.
"""

from __future__ import annotations

import copy
import warnings
from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn.control_flow import If, Loop, Scan
from onnx2nn.errors import VerificationError, first_line
from onnx2nn.fx.exporting.traced_numbers import keep_double
from onnx2nn.output.other_values import NO_ELEMENTS, NOTHING, TEXTS, may_have_texts, other_values


def _tensor(value: Any) -> torch.Tensor:
    """Returns a number as a tensor. In a trace, which warns of it, a number that is no tensor is a constant."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", torch.jit.TracerWarning)
        return value if isinstance(value, torch.Tensor) else torch.as_tensor(value)


def _apart(values: list[torch.Tensor]) -> list[torch.Tensor]:
    """Returns copies: a trace knows tensors by identity. What read a value that comes back would read the result."""
    return [value.clone() for value in values]


class _Part(nn.Module):
    """A branch or body that takes the values of its If, Loop or Scan as one list, and returns a list of its results.

    Args:
        branch: takes a part of the values.
        first: position of its first value.
        count: number of its values.
    """

    def __init__(self, branch: nn.Module, first: int, count: int):
        super().__init__()
        self.branch, self.first, self.count = branch, first, count

    def forward(self, captured: list[torch.Tensor]) -> list[torch.Tensor]:
        given = captured[self.first : self.first + self.count]
        results = self.branch(*given)
        found = list(map(_tensor, results if isinstance(results, tuple) else [results]))
        return [value.clone() if any(value is item for item in given) else value for value in found]  # see `_apart`


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


class _ScriptedIf(nn.Module):
    """An If in a trace: calls a `_Choice`."""

    def __init__(self, choice: nn.Module, several: bool):
        super().__init__()
        self.choice, self.several = choice, several

    def forward(self, cond: Any, *captured: Any) -> Any:
        results = self.choice(_tensor(cond), [_tensor(value) for value in captured])
        return tuple(results) if self.several else results[0]


class _Repetition(nn.Module):
    """The scripted iterations of a traced body of a Loop, see `onnx2nn.control_flow.Loop`.

    Args:
        body: the trace, which takes the iteration number, the condition, and the values.
        carried: the number of loop-carried values.
        is_limited: whether the trip count is a limit.
    """

    def __init__(self, body: nn.Module, carried: int, is_limited: bool):
        super().__init__()
        self.body, self.carried, self.is_limited = body, carried, is_limited

    def forward(
        self, trips: torch.Tensor, condition: torch.Tensor, values: list[torch.Tensor], empty: list[torch.Tensor]
    ) -> list[torch.Tensor]:
        carried, captured = _apart(values[: self.carried]), values[self.carried :]
        scans: list[list[torch.Tensor]] = [[] for _ in empty]
        limit, iteration = int(trips), 0
        while (not self.is_limited or iteration < limit) and bool(condition):
            number = torch.tensor(iteration, device=condition.device)
            results: list[torch.Tensor] = self.body([number, condition] + carried + captured)  # noqa: RUF005  # TorchScript unpacks no lists
            condition, carried = results[0], results[1 : 1 + self.carried]
            for place, item in enumerate(results[1 + self.carried :]):
                scans[place].append(item)
            iteration += 1
        return carried + [torch.stack(scan) if len(scan) > 0 else empty[place] for place, scan in enumerate(scans)]


class _ScriptedLoop(nn.Module):
    """A Loop in a trace: calls a `_Repetition`."""

    def __init__(self, repetition: nn.Module, empty: Sequence[Any]):
        super().__init__()
        self.repetition, self.empty = repetition, empty

    def forward(self, trips: Any, condition: Any, *values: Any) -> Any:
        tensors = [_tensor(value) for value in values]
        device = tensors[0].device if tensors else None
        limit = _tensor(0 if trips is None else trips)
        running = _tensor(True if condition is None else condition).to(device)
        nothing = [torch.empty((0, *shape), dtype=dtype, device=device) for shape, dtype in self.empty]
        return tuple(self.repetition(limit, running, tensors, nothing))


class _Passage(nn.Module):
    """The scripted steps of a traced body of a Scan, see `onnx2nn.control_flow.Scan`.

    Args:
        body: the trace, which takes the states, a slice of each scan input, and the captured values.
        states: the number of state variables.
        inputs: axis and direction (1: backwards) of each scan input.
        outputs: axis and direction of each scan output.
    """

    def __init__(self, body: nn.Module, states: int, inputs: list[tuple[int, int]], outputs: list[tuple[int, int]]):
        super().__init__()
        self.body, self.states, self.inputs, self.outputs = body, states, inputs, outputs

    def forward(self, values: list[torch.Tensor], empty: list[torch.Tensor]) -> list[torch.Tensor]:
        end = self.states + len(self.inputs)
        states, scanned, captured = _apart(values[: self.states]), values[self.states : end], values[end:]
        scans: list[list[torch.Tensor]] = [[] for _ in empty]
        length = scanned[0].size(self.inputs[0][0])
        for place, (axis, _) in enumerate(self.inputs):
            assert scanned[place].size(axis) == length, "The inputs of a Scan have other lengths."
        for step in range(length):
            items: list[torch.Tensor] = []
            for place, (axis, backwards) in enumerate(self.inputs):
                items.append(scanned[place].select(axis, length - 1 - step if backwards == 1 else step))
            results: list[torch.Tensor] = self.body(states + items + captured)
            states = results[: self.states]
            for place, item in enumerate(results[self.states :]):
                scans[place].append(item)
        stacked: list[torch.Tensor] = []
        for place, (axis, backwards) in enumerate(self.outputs):
            scan = scans[place]
            if len(scan) == 0:
                stacked.append(empty[place].movedim(0, axis))
            else:
                stacked.append(torch.stack(scan[::-1] if backwards == 1 else scan, axis))
        return states + stacked


class _ScriptedScan(nn.Module):
    """A Scan in a trace: calls a `_Passage`."""

    def __init__(self, passage: nn.Module, empty: Sequence[Any]):
        super().__init__()
        self.passage, self.empty = passage, empty

    def forward(self, *values: Any) -> Any:
        tensors = [_tensor(value) for value in values]
        nothing = [torch.empty((0, *shape), dtype=dtype, device=tensors[0].device) for shape, dtype in self.empty]
        return tuple(self.passage(tensors, nothing))


class _Noted(Exception):
    """Ends a trace at the first If, or Loop or Scan of an open number of iterations; holds what it takes."""

    def __init__(self, path: str, values: Sequence[Any]):
        self.path, self.values = path, values


def trace(module: nn.Module, inputs: tuple[Any, ...]) -> tuple[torch.jit.ScriptModule, set[str]]:
    """Returns a trace of a module, and the paths of the Loops and Scans that it holds for all numbers of iterations.

    It holds both branches of each If. Of other Loops and Scans it has the example's iterations: of those of sequences,
    and of those whose body cannot be traced with the example's values.

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
    copied = copy.deepcopy(module, memo)  # the modules of control flow are replaced in the copy
    for part in copied.modules():
        if isinstance(part, fx.GraphModule) and keep_double(part.graph):
            part.recompile()
    scripted: nn.Module
    repeated: set[str] = set()
    held: set[str] = set()
    while True:
        try:
            return _readable(_traced(copied, inputs, held)), repeated
        except _Noted as noted:
            path, chosen = noted.path, copied.get_submodule(noted.path)
            if isinstance(chosen, If):
                scripted, inner = _scripted(chosen, path, noted.values)
            else:
                found = _scripted_steps(chosen, path, noted.values)
                if found is None:
                    held.add(path)
                    continue
                scripted, inner = found
                repeated.add(path)
            repeated |= inner
            holder, _, name = path.rpartition(".")
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


def _traced(module: nn.Module, inputs: tuple[Any, ...], held: Collection[str]) -> torch.jit.ScriptModule:
    """Returns a trace.

    Args:
        module: the module.
        inputs: the example.
        held: the paths of Loops and Scans of which it may hold the example's iterations.

    Raises:
        _Noted: the module calls an If, or another Loop or Scan whose number of iterations is open.
    """

    def note(path: str) -> Any:
        def hook(called: nn.Module, values: tuple[Any, ...]) -> None:
            if _is_open(called, values):
                raise _Noted(path, values)

        return hook

    def copy_state(_: nn.Module, values: Any, results: Any) -> Any:
        several = isinstance(results, (tuple, list))
        found = [value.clone() if id(value) in state else value for value in (results if several else [results])]
        return type(results)(found) if several else found[0]

    state = {id(value) for value in (*module.parameters(), *module.buffers())}
    found = [(path, child) for path, child in module.named_modules() if isinstance(child, (If, Loop, Scan))]
    hooks = [child.register_forward_pre_hook(note(path)) for path, child in found if path not in held]
    hooks.append(module.register_forward_hook(copy_state))  # TorchScript has no trace whose result is a weight
    try:
        return torch.jit.trace(module, inputs, check_trace=False, strict=False)
    finally:
        for hook in hooks:
            hook.remove()


def _is_open(module: nn.Module, values: Sequence[Any]) -> bool:
    """Returns whether a trace would hold what an If, Loop or Scan does for the example."""
    if isinstance(module, Scan):
        return module.length is None
    if isinstance(module, Loop):
        return chooses_its_end(module) or any(isinstance(value, torch.Tensor) for value in values[:2])
    return True


def chooses_its_end(module: Loop) -> bool:
    """Returns whether the iterations of a Loop decide whether another one follows."""
    if not isinstance(module.body, fx.GraphModule):
        return False
    results: Any = module.body.graph.output_node().args[0]
    return isinstance(results[0], fx.Node) and results[0].op != "placeholder"


def _scripted(module: If, path: str, values: Sequence[Any]) -> tuple[_ScriptedIf, set[str]]:
    """Returns what replaces an If, and the paths of what it holds all iterations of."""
    _, *captured = _examples(values)
    traced, several, repeated = [], True, set[str]()
    counts = (module.split, len(captured) - module.split)
    branches = {"then_branch": module.then_branch, "else_branch": module.else_branch}
    for (name, branch), first, count in zip(branches.items(), (0, module.split), counts, strict=True):
        given = captured[first : first + count]
        try:
            with torch.no_grad():
                several = isinstance(branch(*given), tuple)
            made, inner = trace(_Part(branch, first, count), (captured,))
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
        traced.append(made)
        repeated |= _within(inner, f"{path}.{name}")
    return _ScriptedIf(torch.jit.script(_Choice(*traced)), several), repeated


def _scripted_steps(module: nn.Module, path: str, values: Sequence[Any]) -> tuple[nn.Module, set[str]] | None:
    """Returns what replaces a Loop or Scan, and the paths of what it holds all iterations of; None where none can."""
    made: nn.Module
    try:
        if isinstance(module, Loop):
            trips, _, *given = values
            given = _examples(given)
            device = given[0].device if given else None
            first = [torch.tensor(0, device=device), torch.tensor(True, device=device), *given]
            body, inner = trace(_Part(module.body, 0, len(first)), (first,))
            steps = torch.jit.script(_Repetition(body, module.carried, trips is not None))
            made = _ScriptedLoop(steps, module.empty)
        else:
            assert isinstance(module, Scan)
            given = _examples(values)
            end = module.states + len(module.inputs)
            slices = [
                item.select(axis, 0) for item, (axis, _) in zip(given[module.states : end], module.inputs, strict=True)
            ]
            first = [*given[: module.states], *slices, *given[end:]]
            body, inner = trace(_Part(module.body, 0, len(first)), (first,))
            made = _ScriptedScan(
                torch.jit.script(_Passage(body, module.states, module.inputs, module.outputs)), module.empty
            )
    except Exception:  # tracing and scripting a body raise errors of many classes; its iterations are held, as is told
        return None
    return made, _within(inner, f"{path}.body")


def _examples(values: Sequence[Any]) -> list[torch.Tensor]:
    """Returns the values that an example gives to control flow, without their history.

    Raises:
        TypeError: one is a sequence, or nothing.
    """
    return [_tensor(value).detach().clone() for value in values]


def _within(paths: Collection[str], part: str) -> set[str]:
    """Returns paths within a `_Part` as those within the module that has the part at a path."""
    return {f"{part}{path.removeprefix('branch')}" for path in paths}
