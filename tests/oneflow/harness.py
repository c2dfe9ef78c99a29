"""Builds the module of an export case."""

from __future__ import annotations

from typing import Any

import numpy as np

from oneflow_bridge.runtime import import_oneflow
from tests.oneflow.export_cases import INPUTS, Case

flow = import_oneflow()
F = flow.nn.functional


def _setitem(x: Any, key: Any, value: Any) -> Any:
    y = x.clone()
    y[key] = value
    return y


def _copied(x: Any, y: Any) -> Any:
    z = x * 2
    before = z + 0
    z.copy_(y)
    return z * 3 + before


def _group_norm(x: Any, groups: int) -> Any:
    flat = x.reshape(x.shape[0], groups, -1)
    flat = (flat - flat.mean(2, True)) / (flat.var(2, unbiased=False, keepdim=True) + 1e-5).sqrt()
    return flat.reshape(x.shape)


def _self_attention(hidden: Any, head: int, alpha: float) -> Any:
    steps, batch, _ = hidden.shape
    q, k, v = (hidden.reshape(steps, batch, -1, 3, head)[:, :, :, j].permute(1, 2, 0, 3) for j in range(3))
    return flow.matmul(q, k.transpose(2, 3)) * alpha, v


def _observer() -> Any:
    module = flow.nn.MovingAverageMinMaxObserver(stop_update_after_iters=1)
    module.moving_max.fill_(2.0)
    module.moving_min.fill_(-3.0)
    return module


_NAMES = {
    **{"T": flow, "F": F, "nn": flow.nn, "setitem": _setitem, "copied": _copied, "F_group_norm": _group_norm},
    **{"self_attention": _self_attention, "observer": _observer},
}


class _Called(flow.nn.Module):
    """A module that evaluates an expression on its inputs."""

    def __init__(self, call: str, mod: Any):
        super().__init__()
        self._code = compile(call, call, "eval")
        if isinstance(mod, flow.Tensor):
            self.register_buffer("mod", mod)
        else:
            self.mod = mod

    def forward(self, **inputs: Any) -> Any:
        return eval(self._code, {**_NAMES, **inputs, "mod": self.mod})


def module_of(case: Case) -> tuple[Any, Any, dict[str, Any]]:
    """The case's module, the module to compare with (None: the same), and its inputs."""
    flow.manual_seed(3)
    mod = eval(case.setup, dict(_NAMES)) if case.setup else None
    names = {n for text in (case.call,) for n in compile(text, text, "eval").co_names if n in INPUTS}
    inputs = {name: flow.tensor(np.ascontiguousarray(INPUTS[name])) for name in sorted(names)}
    module = _Called(case.call, mod).eval()
    runnable = case.reference not in ("", "None")
    return module, _Called(case.reference, mod).eval() if runnable else None, inputs
