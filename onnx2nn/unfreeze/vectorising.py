"""Makes a module of a batch from a module of one sample, where no constants follow the batch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import fx

from onnx2nn.errors import FrozenDimensionError, first_line
from onnx2nn.importing.inputs import InputSpec
from onnx2nn.unfreeze.proof import TOLERANCE, difference_of, example, run
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.vectorised import Arrangement, Vectorised

_LOG = logging.getLogger("onnx2nn")
_SAMPLES = 3
"""The number of samples in the trial of `torch.func.vmap`."""


def vectorised(
    sample: fx.GraphModule, specs: Sequence[InputSpec], request: Request, batch: str, reason: str
) -> Vectorised:
    """Returns a module that runs another one on each sample of a batch.

    It does so with `torch.func.vmap`, if that runs the module, with and without gradients, and each sample has the
    outputs that it has alone; else one sample after the other.

    Args:
        sample: the module at a batch of 1.
        specs: the inputs.
        request: the dimensions.
        batch: the dimension that counts samples.
        reason: why no constants can follow the batch; noted in `meta`.

    Raises:
        FrozenDimensionError: the module does not run on generated inputs, or an output is no tensor.
    """
    fixed = {name: size[0] if isinstance(size, range) else size for name, size in sample.meta["onnx2nn"]["fixed"].items()}
    sizes = {d: fixed.get(d, 4) for dims in request.opened.values() for d in dims if isinstance(d, str)}
    sizes |= request.sizes
    axes = request.axes(batch)
    inputs = example(specs, request.opened, {**sizes, batch: _SAMPLES})
    alone = [_alone(sample, inputs, axes, index, reason) for index in range(_SAMPLES)]
    known = sample.meta["onnx2nn"]
    arrangement = Arrangement(
        way="loop",
        inputs=tuple(axes.get(name) for name in known["inputs"]),
        outputs=tuple(_axis(output.shape) for output in alone[0]),
        shapes=_shapes(known),
        names=(tuple(known["inputs"]), tuple(known["outputs"])),
    )
    way = "vmap" if _vmaps(sample, arrangement, inputs, alone) else "loop"
    meta = {**sample.meta, "onnx2nn": _meta(known, request, batch, arrangement, way, reason)}
    _LOG.warning(_warning(batch, arrangement, way, reason))
    return Vectorised(sample, Arrangement(**{**vars(arrangement), "way": way}), meta)


def _alone(
    sample: fx.GraphModule, inputs: Mapping[str, torch.Tensor], axes: Mapping[str, int], index: int, reason: str
) -> list[torch.Tensor]:
    """Returns the outputs of one sample of a batch."""
    given = {k: v.narrow(axes[k], index, 1) if k in axes else v for k, v in inputs.items()}
    try:
        outputs = run(sample, given)
    except Exception as error:  # any error of torch or of an opaque call
        raise FrozenDimensionError(f"{reason} Nor does one sample run alone: {first_line(error)}") from None
    if len(outputs) != len(sample.meta["onnx2nn"]["outputs"]):
        raise FrozenDimensionError(f"{reason} Nor can the samples run one by one, as an output is no tensor.")
    return outputs


def _axis(shape: Sequence[int]) -> int | None:
    """Returns the axis of the batch in an output of one sample: `[1, ...]`, or `[T, 1, C]` with the sequence first."""
    if shape[:1] == (1,):
        return 0
    return 1 if len(shape) > 2 and shape[1] == 1 else None


def _shapes(known: Mapping[str, Any]) -> tuple[tuple[int | str, ...] | None, ...]:
    """Returns the shape of every input of one sample."""
    shapes = {spec["name"]: spec["shape"] for spec in known["signature"]}
    return tuple(shapes.get(name) for name in known["inputs"])


def _vmaps(
    sample: fx.GraphModule,
    arrangement: Arrangement,
    inputs: Mapping[str, torch.Tensor],
    alone: Sequence[Sequence[torch.Tensor]],
) -> bool:
    """Returns whether `torch.func.vmap` runs a module, so that each sample has the outputs that it has alone."""
    module = Vectorised(sample, Arrangement(**{**vars(arrangement), "way": "vmap"}), {})
    for grads in (False, True):  # torch's layers have fast paths without gradients
        try:
            with torch.set_grad_enabled(grads):
                found = module(*inputs.values())
        except Exception:  # vmap raises errors of several types where it has no rule, also in rows' bodies
            return False
        found = found if isinstance(found, tuple) else (found,)
        for index, outputs in enumerate(alone):
            pairs = zip(found, arrangement.outputs, strict=True)
            own = [r.detach().select(0, index) if axis is None else r.detach().narrow(axis, index, 1) for r, axis in pairs]
            if difference_of(outputs, own) > TOLERANCE:
                return False
    return True


def _meta(
    known: Mapping[str, Any], request: Request, batch: str, arrangement: Arrangement, way: str, reason: str
) -> dict[str, Any]:
    """Returns the record of the file with a dynamic batch."""
    result = copy.copy(dict(known))
    axes = request.axes(batch)
    result["signature"] = [
        {**spec, "shape": tuple(batch if axis == axes.get(spec["name"]) else d for axis, d in enumerate(spec["shape"]))}
        if spec["name"] in axes
        else spec
        for spec in known["signature"]
    ]
    result["thawed"] = {
        "way": way,
        "frozen": dict(request.sizes),
        "repairs": known.get("thawed", {}).get("repairs", []),
        "batch_axes": dict(zip(arrangement.names[1], arrangement.outputs, strict=True)),
        "reason": reason,
    }
    return result


def _warning(batch: str, arrangement: Arrangement, way: str, reason: str) -> str:
    how = "torch.func.vmap" if way == "vmap" else "a loop"
    added = [name for name, axis in zip(arrangement.names[1], arrangement.outputs, strict=True) if axis is None]
    where = f" The outputs {', '.join(map(repr, added))} get it as a new first axis." if added else ""
    return f"The model of one sample runs over {batch!r} by {how}, as no constants follow this dimension.{where} {reason}"
