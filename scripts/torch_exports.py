"""Random weights for models of PyTorch, and their files by both of torch's exporters.

A model is described by `inputs`, a tuple of tensors in the graph's order, and where dimensions are dynamic by a second
tuple with other sizes: the axes in which the two differ are the dynamic ones.
"""

from __future__ import annotations

import contextlib
import inspect
import io
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import onnx
import torch

Tensors = tuple[torch.Tensor, ...]
Dynamic = Mapping[str, Mapping[int, str]]


def seeded(build: Callable[[], torch.nn.Module], seed: int = 0) -> torch.nn.Module:
    """Builds a model with random weights in evaluation mode, none of whose parameters or statistics are constant.

    Fresh layers hold zeros and ones (biases, norm weights, running statistics, class tokens, layer scales) that hide a
    swapped or forgotten tensor; these get noise.
    """
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed)
        model = build().eval()
        with torch.no_grad():
            for parameter in model.parameters():
                if parameter.is_floating_point() and parameter.numel() > 1 and parameter.std() == 0:
                    parameter += 0.1 * torch.randn_like(parameter)
            for module in model.modules():
                if isinstance(module, torch.nn.modules.batchnorm._BatchNorm) and module.running_mean is not None:
                    module.running_mean.normal_(0, 0.1)
                    module.running_var.uniform_(0.8, 1.2)
    return model


def dynamic_axes(names: Sequence[str], inputs: Tensors, other: Tensors | None) -> dict[str, dict[int, str]]:
    """Names the axes in which two tuples of inputs differ: axis 0 is `batch`, axes that change alike share a name."""
    axes: dict[str, dict[int, str]] = {}
    known: dict[tuple[int, int], str] = {}
    for name, one, two in zip(names, inputs, other or inputs, strict=True):
        changed = {axis: pair for axis, pair in enumerate(zip(one.shape, two.shape, strict=True)) if pair[0] != pair[1]}
        if changed:
            axes[name] = {
                axis: known.setdefault(pair, "batch" if axis == 0 else f"size{len(known)}")
                for axis, pair in changed.items()
            }
    return axes


def write_torchscript(
    path: Path, model: torch.nn.Module, inputs: Tensors, other: Tensors | None = None, *, opset: int = 17
) -> None:
    """Exports with `torch.onnx.export(dynamo=False)`, weights inside the file."""
    names = input_names(model, inputs)
    with quiet():
        torch.onnx.export(
            model,
            inputs,
            str(path),
            dynamo=False,
            input_names=names,
            dynamic_axes=dynamic_axes(names, inputs, other),
            opset_version=opset,
        )


def write_dynamo(
    path: Path, model: torch.nn.Module, inputs: Tensors, other: Tensors | None = None, *, opset: int | None = None
) -> None:
    """Exports with `torch.onnx.export(dynamo=True)`, weights as external data.

    Raises:
        AssertionError: the exporter fixed a dimension that was to be dynamic.
    """
    names = input_names(model, inputs)
    axes = dynamic_axes(names, inputs, other)
    with quiet():
        torch.onnx.export(
            model,
            inputs,
            str(path),
            dynamo=True,
            verbose=False,
            input_names=names,
            dynamic_shapes=dynamic_shapes(axes, names),
            opset_version=opset,
        )
    for value in onnx.load(str(path), load_external_data=False).graph.input:
        dims = value.type.tensor_type.shape.dim
        fixed = [axis for axis in axes.get(value.name, ()) if dims[axis].dim_param.isdigit()]
        assert not fixed, f"torch.onnx.export cannot export dynamic sizes: {value.name} has them fixed, {fixed}"


WRITERS: dict[str, Callable[..., None]] = {"torchscript": write_torchscript, "dynamo": write_dynamo}


def input_names(model: torch.nn.Module, inputs: Tensors) -> list[str]:
    """The first parameter names of `model.forward`, one for each input."""
    return list(inspect.signature(model.forward).parameters)[: len(inputs)]


def dynamic_shapes(axes: Dynamic, names: Sequence[str]) -> tuple[dict[int, Any] | None, ...] | None:
    """`axes` in the form `torch.export` takes, one entry an input; `DYNAMIC` makes a specialised axis an error."""
    if not axes:
        return None
    return tuple(dict.fromkeys(axes[name], torch.export.Dim.DYNAMIC) if name in axes else None for name in names)


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides the exporters' progress lines and deprecation warnings."""
    with contextlib.redirect_stdout(io.StringIO()), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        yield
