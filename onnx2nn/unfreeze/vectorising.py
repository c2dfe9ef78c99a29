"""Makes a module of a batch from a module of one sample, where no constants follow the batch."""

from __future__ import annotations

import copy
import logging
from collections.abc import Mapping, Sequence
from typing import Any

import onnx_ir as ir
import torch
from torch import fx

from onnx2nn.errors import FrozenDimensionError, first_line, shown
from onnx2nn.importing.inputs import input_specs
from onnx2nn.unfreeze.proof import TOLERANCE, difference_of, example, run
from onnx2nn.unfreeze.request import Request
from onnx2nn.unfreeze.vectorised import Arrangement, Vectorised

_LOG = logging.getLogger("onnx2nn")
_SAMPLES = 3
"""The number of samples in the trial of `torch.func.vmap`."""


def vectorised(sample: fx.GraphModule, model: ir.Model, request: Request, batch: str, reason: str) -> Vectorised:
    """Returns a module that runs another one on each sample of a batch.

    It does so with `torch.func.vmap`, if that runs the module, with and without gradients, and each sample has the
    outputs that it has alone; else one sample after the other.

    Args:
        sample: the module at a batch of 1.
        model: the model as in the file.
        request: the dimensions.
        batch: the dimension that counts samples.
        reason: why no constants can follow the batch; noted in `meta`.

    Raises:
        FrozenDimensionError: the module does not run on generated inputs, or an output is no tensor.
    """
    known = sample.meta["onnx2nn"]
    fixed = {name: size[0] if isinstance(size, range) else size for name, size in known["fixed"].items()}
    sizes = {d: fixed.get(d, 4) for dims in request.opened.values() for d in dims if isinstance(d, str)}
    sizes |= request.sizes
    axes = request.axes(batch)
    inputs = example(input_specs(model), request.opened, {**sizes, batch: _SAMPLES})
    alone = [_alone(sample, inputs, axes, index, reason) for index in range(_SAMPLES)]
    arrangement = Arrangement(
        way="loop",
        inputs=tuple(axes.get(name) for name in known["inputs"]),
        outputs=tuple(map(_axis, model.graph.outputs, zip(*alone, strict=True))),
        shapes=_shapes(known),
        names=(tuple(known["inputs"]), tuple(known["outputs"])),
    )
    way = "vmap" if _vmaps(sample, arrangement, inputs, alone) else "loop"
    meta = {**sample.meta, "onnx2nn": _meta(known, request, batch, arrangement, way, reason)}
    _LOG.warning(shown(_warning(batch, arrangement, way, reason)))
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
    tensors = [output for output in outputs if output is not None]
    if len(tensors) < len(outputs):
        raise FrozenDimensionError(f"{reason} Nor can the samples run one by one, as an output is no tensor.")
    return tensors


def _axis(declared: ir.Value, outputs: Sequence[torch.Tensor]) -> int | None:
    """Returns the axis of the batch in an output of one sample: `[1, ...]`, or `[T, 1, C]` with the sequence first.

    Args:
        declared: the output in the file. A dimension that it declares dynamic is no batch of 1.
        outputs: the output of several samples.
    """
    rank = outputs[0].ndim
    dims = declared.shape if declared.shape is not None and len(declared.shape) == rank else [1] * rank
    ones = [axis for axis in range(rank) if dims[axis] == 1 and all(output.shape[axis] == 1 for output in outputs)]
    return 0 if 0 in ones else 1 if rank > 2 and 1 in ones else None


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
            pairs = [(r.detach(), axis) for r, axis in zip(found, arrangement.outputs, strict=True)]
            own = [r[index] if axis is None else r.narrow(axis, index, 1) for r, axis in pairs]
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
    how = f"over {batch!r} by {'torch.func.vmap' if way == 'vmap' else 'a loop'}"
    added = [name for name, axis in zip(arrangement.names[1], arrangement.outputs, strict=True) if axis is None]
    where = f" The outputs {', '.join(map(repr, added))} get it as a new first axis." if added else ""
    return f"The model of one sample runs {how}, as no constants follow this dimension.{where} {reason}"
