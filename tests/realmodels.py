"""What the tests on real models share: exporting, comparing with ONNX Runtime, and taking the imported module further.

A model is described by `inputs`, a tuple of tensors in the graph's order, and where dimensions are dynamic by a second
tuple with other sizes: the axes in which the two differ are the dynamic ones.
"""

from __future__ import annotations

import contextlib
import copy
import hashlib
import importlib.metadata
import inspect
import os
import pickle
import shutil
import tempfile
import traceback
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

from scripts.torch_exports import (
    Dynamic,
    Tensors,
    dynamic_axes,
    dynamic_shapes,
    input_names,
    quiet,
    seeded,  # noqa: F401  tests have it from here, with all that models need
    write_dynamo,
    write_torchscript,
)

CACHE = Path(os.environ.get("ONNX2NN_ZOO") or Path(__file__).resolve().parent.parent / ".cache" / "zoo") / "torch"
MAX_RELATIVE = 1e-4
MAX_MSE = 1e-7


def require_transformers() -> None:
    """Skips the test where transformers is not to be had."""
    pytest.importorskip("transformers", reason="transformers 5 needs Python 3.11")


def export_torchscript(
    name: str, model: torch.nn.Module, inputs: Tensors, other: Tensors | None = None, *, opset: int = 17
) -> Path:
    """The (cached) file of `torch_exports.write_torchscript`."""
    key = _fingerprint(model, inputs, other, opset)
    return _cached(f"{name}-torchscript", key, lambda p: write_torchscript(p, model, inputs, other, opset=opset))


def export_dynamo(
    name: str, model: torch.nn.Module, inputs: Tensors, other: Tensors | None = None, *, opset: int | None = None
) -> Path:
    """The (cached) file of `torch_exports.write_dynamo`."""
    key = _fingerprint(model, inputs, other, opset)
    return _cached(f"{name}-dynamo", key, lambda p: write_dynamo(p, model, inputs, other, opset=opset))


EXPORTERS: dict[str, Callable[..., Path]] = {"torchscript": export_torchscript, "dynamo": export_dynamo}


def _fingerprint(model: torch.nn.Module, inputs: Tensors, other: Tensors | None, opset: int | None) -> str:
    """Changes with the weights, the code of the model's classes, the sizes and the versions of the exporters."""
    digest = hashlib.sha256()
    for package in ("torch", "onnx", "onnxscript", "torchvision", "transformers"):
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            digest.update(f"{package}{importlib.metadata.version(package)}".encode())
    digest.update(f"{opset}{[x.shape for x in inputs]}{[x.shape for x in other or ()]}".encode())
    digest.update(repr(model).encode())
    for kind in sorted({type(module) for module in model.modules()}, key=lambda kind: kind.__qualname__):
        with contextlib.suppress(OSError, TypeError):
            digest.update(inspect.getsource(kind).encode())
    for key, tensor in model.state_dict().items():
        digest.update(key.encode())
        digest.update(np.ascontiguousarray(tensor.numpy()).tobytes()[:65536])
    return digest.hexdigest()[:16]


def _cached(name: str, key: str, write: Callable[[Path], None]) -> Path:
    """The path of `name`'s file, written on the first call; folders of older keys are removed."""
    folder = CACHE / f"{name}-{key}"
    if not folder.is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=CACHE, prefix=".writing-") as temporary:
            work = Path(temporary) / "model"
            work.mkdir()
            write(work / "model.onnx")
            for stale in CACHE.glob(f"{name}-{'?' * len(key)}"):
                if stale != folder:
                    shutil.rmtree(stale, ignore_errors=True)
            with contextlib.suppress(FileExistsError, OSError):  # another worker was faster
                os.rename(work, folder)
    return folder / "model.onnx"


def random_inputs(path: Path | str, sizes: Mapping[str, int] | int = 2) -> Tensors:
    """Seeded inputs for a file: floats from a normal distribution, integers from 0 to 9, truth values at random.

    Args:
        path: an ONNX file.
        sizes: sizes of the dynamic dimensions by name, or one size for each of them.
    """
    graph = onnx.load(str(path), load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    generator = np.random.default_rng(0)
    inputs = []
    for value in graph.input:
        if value.name in stored:
            continue
        tensor = value.type.tensor_type
        shape = [
            dim.dim_value if dim.dim_value > 0 else (sizes if isinstance(sizes, int) else sizes[dim.dim_param])
            for dim in tensor.shape.dim
        ]
        dtype = onnx.helper.tensor_dtype_to_np_dtype(tensor.elem_type)
        if dtype.kind == "f":
            array = generator.standard_normal(shape).astype(dtype)
        else:
            array = generator.integers(0, 2 if dtype.kind == "b" else 10, shape).astype(dtype)
        inputs.append(torch.from_numpy(array))
    return tuple(inputs)


def as_tuple(outputs: Any) -> Tensors:
    """A module's outputs, one or several, as a tuple."""
    return (outputs,) if isinstance(outputs, torch.Tensor) else tuple(outputs)


def run(module: Callable[..., Any], inputs: Tensors) -> Tensors:
    """Calls a module without gradients on copies of the inputs, so that an in-place operation changes nothing here."""
    with torch.no_grad():
        return as_tuple(module(*(x.clone() for x in inputs)))


def run_onnxruntime(model: Path | str | bytes, inputs: Tensors) -> Tensors:
    """Runs a file (or the bytes of one) in ONNX Runtime on one thread; inputs in the graph's order.

    Pad_Fusion stays off: 1.31 merges a Pad with 0 into the MaxPool behind it, which pads with -inf (Keras ResNet50V2).
    """
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = 1
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(
        model if isinstance(model, bytes) else str(model),
        options,
        providers=["CPUExecutionProvider"],
        disabled_optimizers=["Pad_Fusion"],
    )
    feeds = {value.name: x.numpy() for value, x in zip(session.get_inputs(), inputs, strict=True)}
    return tuple(torch.from_numpy(np.asarray(output)) for output in session.run(None, feeds))


def check_same(got: Tensors, expected: Tensors, what: str) -> None:
    """Asserts equal count, shapes, dtypes and values.

    Integers and truth values are equal exactly; floats to `MAX_RELATIVE` of the output's largest magnitude in every
    element and to `MAX_MSE` on average, infinities and nans in the same places.
    """
    assert len(got) == len(expected), f"{what}: {len(got)} outputs instead of {len(expected)}"
    for index, (ours, theirs) in enumerate(zip(got, expected, strict=True)):
        where = f"{what}, output {index}"
        assert ours.shape == theirs.shape, f"{where}: shape {tuple(ours.shape)} instead of {tuple(theirs.shape)}"
        assert ours.dtype == theirs.dtype, f"{where}: {ours.dtype} instead of {theirs.dtype}"
        if not theirs.is_floating_point():
            assert torch.equal(ours, theirs), f"{where}: {int((ours != theirs).sum())} elements differ"
            continue
        finite = torch.isfinite(theirs)
        assert torch.equal(torch.isfinite(ours), finite), f"{where}: infinities or nans in other places"
        assert torch.equal(ours[~finite].nan_to_num(), theirs[~finite].nan_to_num()), f"{where}: other infinities"
        difference = (ours[finite].double() - theirs[finite].double()).abs()
        if difference.numel():
            largest, scale = difference.max().item(), theirs[finite].abs().max().item()
            assert largest <= MAX_RELATIVE * scale, f"{where}: off by {largest:.3g} at scale {scale:.3g}"
            mse = difference.square().mean().item()
            assert mse < MAX_MSE, f"{where}: mse {mse:.3g}"


def check_against_onnxruntime(path: Path | str, module: torch.nn.Module, inputs: Tensors) -> Tensors:
    """Asserts that an imported module gives what ONNX Runtime gives for its file; returns the module's outputs."""
    outputs = run(module, inputs)
    check_same(outputs, run_onnxruntime(path, inputs), "against ONNX Runtime")
    return outputs


def _export(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    program = torch.export.export(module, inputs, dynamic_shapes=dynamic_shapes(axes, input_names(module, inputs)))
    exported = program.module()
    return lambda values: run(exported, values)


def _compile(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    torch._dynamo.reset()
    # nn.LSTM, nn.GRU and nn.RNN are refused without this switch, in every module that holds one.
    torch._dynamo.config.allow_rnn = True
    compiled = torch.compile(module, fullgraph=True, backend="eager", dynamic=bool(axes) or None)
    return lambda values: run(compiled, values)


def _trace(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    with torch.no_grad():
        traced = torch.jit.trace(module, inputs, check_trace=False)
    return lambda values: run(traced, values)


def _reexport(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    shapes = dynamic_shapes(axes, input_names(module, inputs))
    program = torch.onnx.export(module, inputs, dynamo=True, verbose=False, dynamic_shapes=shapes)
    assert program is not None
    written = program.model_proto.SerializeToString()
    return lambda values: run_onnxruntime(written, values)


def _pickle(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    again = pickle.loads(pickle.dumps(module))
    return lambda values: run(again, values)


def _deepcopy(module: torch.nn.Module, inputs: Tensors, axes: Dynamic) -> Callable[[Tensors], Tensors]:
    again = copy.deepcopy(module)
    return lambda values: run(again, values)


TRAVELS: dict[str, Callable[[torch.nn.Module, Tensors, Dynamic], Callable[[Tensors], Tensors]]] = {
    "torch.export": _export,
    "torch.compile": _compile,
    "torch.jit.trace": _trace,
    "torch.onnx.export": _reexport,
    "pickle": _pickle,
    "deepcopy": _deepcopy,
}


def check_travels(
    module: torch.nn.Module, inputs: Tensors, other: Tensors | None = None, *, travels: Sequence[str] = tuple(TRAVELS)
) -> None:
    """Asserts that `TRAVELS` keep the module's outputs, at the sizes of `other` too; reports all that fail.

    Args:
        module: an imported module.
        inputs: what it is traced with.
        other: inputs of other sizes in the dynamic dimensions, never seen while tracing.
        travels: which of `TRAVELS`.
    """
    axes = dynamic_axes(input_names(module, inputs), inputs, other)
    expected = [(values, run(module, values)) for values in (inputs, other) if values is not None]
    failures = []
    for name in travels:
        try:
            with quiet():
                travelled = TRAVELS[name](module, inputs, axes)
                for values, outputs in expected:
                    check_same(travelled(values), outputs, f"{name} at {[tuple(x.shape) for x in values]}")
        except Exception as error:
            last = traceback.extract_tb(error.__traceback__)[-1]
            text = str(error).strip() or "no message"
            failures.append(f"{name}: {type(error).__name__}: {text[:1500]}\n    at {last.filename}:{last.lineno}")
    assert not failures, f"{len(failures)} of {len(travels)} ways fail:\n" + "\n".join(failures)
