"""Runs a module on example inputs and notes what each call of each of its programs gives, and how long it takes."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import fx, nn

from onnx2nn.errors import first_line
from onnx2nn.fx.modules.module_tree import children_of
from onnx2nn.verification.module_runs import to_tensor

_MOST_RUNS, _ENOUGH_SECONDS = 5, 1.0
"""A module runs again until one of both is reached; the fastest time of a call counts."""

Visit = Callable[[str, Any], None]
"""Takes the path of a module that was called, and its result."""


@dataclass
class Measured:
    """What a call gave.

    Attributes:
        value: element type and shape, or the number.
        tensor: whether it holds a tensor.
        seconds: the shortest time that it took.
    """

    value: str
    tensor: bool
    seconds: float


@dataclass
class ModuleRun:
    """The calls of a run.

    Attributes:
        calls: (path of the module whose program makes the call, name of the call) → what it gave.
        failed: why the run ended early; empty where it did not.
    """

    calls: dict[tuple[str, str], Measured] = field(default_factory=dict)
    failed: str = ""


def measured_run(module: fx.GraphModule, feeds: Sequence[np.ndarray]) -> ModuleRun:
    """Returns what the calls of a module give on inputs, one array each."""
    run = ModuleRun()
    started = time.perf_counter()
    for _ in range(_MOST_RUNS):
        try:
            run_program(module, feeds, run)
        except Exception as error:  # any error of the module's own run, which the report then shows
            run.failed = f"The module failed on the example inputs: {type(error).__name__}: {first_line(error)}"
            break
        if time.perf_counter() - started > _ENOUGH_SECONDS:
            break
    return run


def run_program(module: fx.GraphModule, feeds: Sequence[np.ndarray], run: ModuleRun, visit: Visit | None = None) -> Any:
    """Runs a module call by call, notes them in `run`, and returns its result."""
    with torch.no_grad():
        result = _Program(module, "", run, visit).run(*map(to_tensor, feeds))
    if visit is not None:
        visit("", result)
    return result


class _Program(fx.Interpreter):
    """Runs the program of a block, and those of the blocks that it calls."""

    def __init__(self, module: fx.GraphModule, path: str, run: ModuleRun, visit: Visit | None):
        super().__init__(module)
        self._path, self._run, self._visit = path, run, visit
        self.extra_traceback = False  # the report shows the error, not its place in the program

    def run_node(self, n: fx.Node) -> Any:
        started = time.perf_counter()
        value = super().run_node(n)
        self._note(self._path, n.name, value, time.perf_counter() - started)
        return value

    def call_module(self, target: Any, args: Any, kwargs: Any) -> Any:
        called = self.module.get_submodule(str(target))
        return self._call(called, joined(self._path, str(target)), args, kwargs)

    def _call(self, called: nn.Module, path: str, args: Any, kwargs: Any) -> Any:
        if isinstance(called, fx.GraphModule):
            value = _Program(called, path, self._run, self._visit).run(*args, **kwargs)
        elif type(called) is nn.Sequential:
            (value,) = args
            for name, inner in children_of(called).items():
                started = time.perf_counter()
                value = self._call(inner, joined(path, name), (value,), {})
                self._note(path, name, value, time.perf_counter() - started)
        else:
            value = called(*args, **kwargs)
        if self._visit is not None:
            self._visit(path, value)
        return value

    def _note(self, path: str, name: str, value: Any, seconds: float) -> None:
        found = self._run.calls.get((path, name))
        if found is not None:
            found.seconds = min(found.seconds, seconds)
        else:
            self._run.calls[path, name] = Measured(described(value), bool(tensors(value)), seconds)


def joined(path: str, name: str) -> str:
    """Returns the path of a member of a module."""
    return f"{path}.{name}" if path else name


def tensors(value: Any) -> list[torch.Tensor]:
    """Returns the tensors in a value."""
    if isinstance(value, (tuple, list)):
        return [tensor for item in value for tensor in tensors(item)]
    return [value] if isinstance(value, torch.Tensor) else []


def described(value: Any) -> str:
    """Returns the element type and shape of a tensor, or a number."""
    if isinstance(value, torch.Tensor):
        return f"{str(value.dtype).removeprefix('torch.')} {list(value.shape)}"
    if isinstance(value, (tuple, list)):
        if len(value) == 1:
            return described(value[0])
        if value and len(parts := {described(item) for item in value}) == 1:
            return f"{len(value)} of {parts.pop()}"
        more = [f"{len(value) - _MOST_PARTS} more"] if len(value) > _MOST_PARTS else []
        return f"({', '.join([*map(described, value[:_MOST_PARTS]), *more])})"
    if value is None or isinstance(value, (bool, int, float)):
        return str(value)
    return type(value).__name__


_MOST_PARTS = 4
"""Members of a tuple that are shown."""
