"""Runs drawn calls on a device that only has shapes: python -m tests.simulated_device 3

torch's fake tensors tell where each tensor is, and refuse calls with tensors on two devices. A second device needs a
registration that holds for the whole process, so that this is a program of its own.
"""

from __future__ import annotations

import collections
import random
import sys
import warnings
from typing import Any

import torch
from torch._subclasses.fake_tensor import (
    DataDependentOutputException,
    DynamicOutputShapeException,
    FakeTensorMode,
)
from torch.fx.experimental.symbolic_shapes import GuardOnDataDependentSymNode, ShapeEnv
from torch.utils.backend_registration import _setup_privateuseone_for_python_backend

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests.drawn.draw import Draw, model_of
from tests.drawn.operators import CALLS

DEVICE = "privateuseone"
NOT_SIMULATED = (
    *(
        "Could not run 'aten::empty_strided'",
        ".numpy() is not supported",
    ),  # numbers go there, or come back
    *("NeedsValues: ", "expected to contain only concrete integers"),  # shapes that data decide
    "'NoneType' object has no attribute 'device'",  # of fake nn.LSTM without biases
)


def outcome(domain: str, op: str, seed: int) -> str:
    """Returns "right", "data" for a call whose shapes data decide, "no call", or what went wrong."""
    d = Draw(random.Random(f"{domain}.{op}.{seed}"))
    model, feeds = model_of(CALLS[domain, op](d), d)
    inputs = [torch.from_numpy(value.copy()) for value in feeds.values()]
    try:
        module = onnx2nn.load(model)
        module(*inputs)
    except (Onnx2nnError, ValueError, RuntimeError, IndexError, TypeError):  # what test_drawn_operators judges
        return "no call"
    mode = FakeTensorMode(shape_env=ShapeEnv())
    try:
        with mode, torch.no_grad():
            state = {name: _there(value) for name, value in (*module.named_parameters(), *module.named_buffers())}
            found = torch.func.functional_call(module, state, tuple(map(_there, inputs)), tie_weights=True)
    except (DataDependentOutputException, DynamicOutputShapeException, GuardOnDataDependentSymNode):
        return "data"
    except Exception as error:  # of any class of torch's: it is what is looked for
        said = f"{type(error).__name__}: {error}"
        return "data" if any(text in said for text in NOT_SIMULATED) else said[:500]
    results = found if isinstance(found, (list, tuple)) else [found]
    places = {value.device.type for value in results if isinstance(value, torch.Tensor)}
    return "right" if places <= {DEVICE} else f"results on {places}"


def _there(tensor: torch.Tensor) -> Any:
    return torch.empty_strided(tensor.shape, tensor.stride(), dtype=tensor.dtype, device=DEVICE)


def main() -> None:
    """Prints what went wrong, and how many calls came to which end."""
    _setup_privateuseone_for_python_backend()
    warnings.simplefilter("ignore")
    counts: collections.Counter[str] = collections.Counter()
    for domain, op in sorted(CALLS):
        for seed in range(int(sys.argv[1])):
            found = outcome(domain, op, seed)
            counts[found if found in ("right", "data", "no call") else "wrong"] += 1
            if found not in ("right", "data", "no call"):
                print(f"{domain}.{op}, seed {seed}: {found}")
    print(*(f"{count} {kind}" for kind, count in sorted(counts.items())), sep=", ")


if __name__ == "__main__":
    main()
