"""Converts an imported module to NCNN: the module is traced, converted by pnnx, run by ncnn, and compared."""

from __future__ import annotations

import copy
import dataclasses
import json
import operator
import os
import re
import subprocess
import sys
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.errors import InputError, NcnnError, VerificationError
from onnx2nn.ground.atomic_files import enduring, made_folder
from onnx2nn.ground.extras import require
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.verification.module_runs import run_module, to_tensor
from onnx2nn.verification.value_comparison import OutputComparison, compare

if TYPE_CHECKING:
    import torch

TIME_LIMIT = 600.0
"""Seconds after which pnnx, or one run of ncnn, is ended."""

_DTYPES = {"float32": "f32", "int32": "i32", "int64": "i64"}
_AXIS = re.compile(r"\b(in|out)(\d+)\.numpy\([^\n]*?batch_index=(\d+)")
_NO_BATCH = 233  # pnnx's mark for a value in which no axis is the batch
_Axes = tuple[dict[str, int | None], dict[str, int | None]]  # of the inputs, of the outputs


@dataclass(frozen=True)
class NcnnModel:
    """The files of an NCNN model, and its differences from the module.

    Attributes:
        param: the layers; inputs are named `in0`, `in1` ..., outputs `out0`, `out1` ..., in the graph's order.
        weights: the `.bin` file, in float32.
        half_param: the layers for the weights in half precision.
        half_weights: the `.bin` file in float16, half the size.
        layers: layer type → number of layers.
        fp32: each output of the float32 file, computed in float32, against the module's.
        fp16: each output of the float16 file, computed with ncnn's default options, against the module's.
        input_axes: for each input the axis that NCNN takes as its batch (`batch_index`), None for no axis.
        output_axes: the same for each output.
        output_shapes: of the module, as NCNN drops axes of size 1.
        int8_param: the layers with 8-bit integers; None without calibration data.
        int8_weights: the `.bin` file of them.
        int8: each output of these, computed with ncnn's default options, against the module's.
    """

    param: Path
    weights: Path
    half_param: Path
    half_weights: Path
    layers: dict[str, int]
    fp32: list[OutputComparison]
    fp16: list[OutputComparison]
    input_axes: dict[str, int | None]
    output_axes: dict[str, int | None]
    output_shapes: list[tuple[int, ...]]
    int8_param: Path | None = None
    int8_weights: Path | None = None
    int8: list[OutputComparison] = field(default_factory=list)

    def __str__(self) -> str:
        kinds = ", ".join(f"{count} {kind}" for kind, count in self.layers.items())
        lines = [f"{self.param}: {sum(self.layers.values())} layers ({kinds})"]
        for label, outputs in (("fp32", self.fp32), ("fp16", self.fp16), ("int8", self.int8)):
            lines += [f"  {label}  {output}" for output in outputs]
        return "\n".join(lines)

    def run(
        self, samples: Sequence[Sequence[np.ndarray]], *, half: bool = False, int8: bool = False
    ) -> list[list[np.ndarray]]:
        """Runs the model with ncnn.

        Args:
            samples: for each run one array for each input, of the shape at the conversion, but for dynamic sizes.
            half: use the files in half precision, with ncnn's own options.
            int8: use the files with 8-bit integers, with ncnn's own options.

        Returns:
            For each run one array for each output.

        Raises:
            InputError: there are no files with 8-bit integers.
            VerificationError: ncnn refuses the model or the inputs, or crashes.
        """
        files = (self.half_param, self.half_weights) if half else (self.param, self.weights)
        if int8:
            if self.int8_param is None or self.int8_weights is None:
                raise InputError("The model has no files with 8-bit integers. Give to_ncnn calibration data.")
            files = self.int8_param, self.int8_weights
        shapes = [self.output_shapes] * len(samples)
        return _run(*files, samples, (self.input_axes, self.output_axes), shapes, half or int8)


def to_ncnn(
    module: torch.nn.Module,
    folder: str | os.PathLike[str],
    *,
    name: str = "model",
    example_inputs: Sequence[np.ndarray | torch.Tensor] | None = None,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    other_inputs: Sequence[np.ndarray | torch.Tensor] | None = None,
    calibration: Iterable[Sequence[np.ndarray | torch.Tensor]] | None = None,
) -> NcnnModel:
    """Converts an imported module to NCNN and compares the two.

    Multiplications and additions by channel constants (a batch normalisation that the file holds in pieces) are folded
    into the layers before them. Sizes are fixed unless `other_inputs` has others: NCNN has no batch, so the batch
    should be 1.

    Args:
        module: a module of `onnx2nn.load`, in eval mode.
        folder: of the files, made if it is missing. Gets `<name>.param` and `<name>.bin`, and `<name>.fp16.param` and
            `<name>.fp16.bin` of half the size; with calibration data also `<name>.int8.param` and `<name>.int8.bin`.
            They appear together or not at all.
        name: of the files.
        example_inputs: one array or tensor for each input, to trace the module with and to compare on; generated if
            left out.
        input_shapes: input name → sizes, for generated inputs with dynamic dimensions in the file.
        other_inputs: inputs of other sizes, which stay dynamic, a text's length for instance; compared too.
        calibration: inputs as they occur, each like `example_inputs`. What convolutions and linear layers read in
            them decides the scales of 8-bit integers, see `integers`.

    Returns:
        The files, and the differences in float32, in half precision and with integers.

    Raises:
        InputError: inputs cannot be generated, or the folder cannot be written.
        MissingDependencyError: pnnx, ncnn or torch is not installed.
        NcnnError: operations that NCNN has no layer for, all of them, found before or after the conversion; with
            calibration data, no layer computes with integers.
        VerificationError: pnnx or ncnn fails, or NCNN in float32 gives other outputs than the module.
    """
    import torch

    from onnx2nn.fx.blocks.flattening import flattened

    require("ncnn", extra="ncnn", purpose="Running NCNN models")
    pnnx = require("pnnx", extra="ncnn", purpose="Converting to NCNN")
    if hasattr(type(module), "one_sample"):  # a vectorised module
        raise InputError("The module runs over a batch, and an NCNN model over one sample. Give module.one_sample.")
    if not isinstance(module, torch.fx.GraphModule):
        raise InputError("The module is no torch.fx.GraphModule, as onnx2nn.load gives. Use pnnx for it.")
    module = flattened(module)
    samples = [_arrays(module, example_inputs, input_shapes)]
    if other_inputs is not None:
        samples.append(_arrays(module, other_inputs, None))
    measured = [_arrays(module, arrays, None) for arrays in calibration or ()]
    if calibration is not None and not measured:
        raise InputError("The calibration data have no samples. Give some, or no calibration data.")
    expected = [run_module(module, arrays) for arrays in samples]
    tensors = [to_tensor(array) for array in samples[0]]
    prepared = _prepared(module, tensors)
    refuse_obstacles(prepared, tensors)
    target = Path(folder)
    try:
        with made_folder(target), tempfile.TemporaryDirectory(dir=target, prefix=".ncnn-") as work:
            _trace(prepared, tensors, Path(work) / "model.pt")
            names = _output_names(module, expected[0])
            return _convert(pnnx.EXEC_PATH, Path(work), target / name, samples, expected, names, measured)
    except OSError as error:
        raise InputError(f"Cannot write {target}: {error.strerror or error}") from error


def refuse_obstacles(module: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> None:
    """Refuses, before the conversion, a module with operations that NCNN has no layer for.

    Raises:
        NcnnError: all these operations.
    """
    from onnx2nn.output.ncnn.obstacles import find_obstacles

    obstacles = find_obstacles(module, tensors)
    if obstacles:
        raise NcnnError("These nodes cannot go to NCNN", obstacles)


def _arrays(module: Any, given: Sequence[Any] | None, shapes: Mapping[str, Sequence[int]] | None) -> list[np.ndarray]:
    if given is not None:
        arrays = [value if isinstance(value, np.ndarray) else value.detach().numpy() for value in given]
    else:
        specs = model_inputs.specs_of(module)
        arrays = list(model_inputs.example_inputs(specs, model_inputs.resolve_shapes(specs, shapes)).values())
    for index, array in enumerate(arrays):
        if array.dtype.name not in _DTYPES:
            raise NcnnError("These inputs cannot go to NCNN", [f"input {index} is {array.dtype}"])
    return arrays


def _output_names(module: Any, expected: Sequence[Any]) -> list[str]:
    names = module.meta.get("onnx2nn", {}).get("outputs") or []
    return names if len(names) == len(expected) else [f"out{index}" for index in range(len(expected))]


def _prepared(module: torch.fx.GraphModule, tensors: Sequence[torch.Tensor]) -> torch.fx.GraphModule:
    """Returns a copy that is written with what NCNN has."""
    from torch.fx.passes.shape_prop import ShapeProp

    from onnx2nn.output.ncnn.axis_folding import fold_axes
    from onnx2nn.output.ncnn.channel_folding import fold_channels
    from onnx2nn.output.ncnn.decompositions import decompose
    from onnx2nn.output.ncnn.finite_padding import finite_pads

    result = finite_pads(module)
    ShapeProp(result).propagate(*tensors)
    result = decompose(result)
    ShapeProp(result).propagate(*tensors)
    return _renamed(fold_axes(fold_channels(result), tensors))


def _renamed(module: torch.fx.GraphModule) -> torch.fx.GraphModule:
    """Returns a copy whose layers and tensors are numbered.

    In TorchScript's text, a layer `torch` would hide torch, and pnnx reads ASCII alone.
    """
    from torch import fx, nn

    root, graph, names = nn.Module(), copy.deepcopy(module.graph), dict[str, str]()
    for node in graph.nodes:
        if node.op in ("call_module", "get_attr"):
            path = str(node.target)
            node.target = names.setdefault(path, f"held_{len(names)}")
            setattr(root, node.target, operator.attrgetter(path)(module))
    return fx.GraphModule(root, graph)


def _trace(module: Any, tensors: Sequence[torch.Tensor], path: Path) -> None:
    import torch

    try:
        with torch.no_grad(), warnings.catch_warnings():
            warnings.simplefilter("ignore")
            traced = torch.jit.trace(module, tuple(tensors), check_trace=False)
    except Exception as error:  # its errors share no base class
        raise VerificationError(f"torch.jit.trace cannot trace the module: {error}") from error
    with enduring(path) as file:
        torch.jit.save(traced, file)


def _convert(
    executable: str,
    work: Path,
    stem: Path,
    samples: Sequence[Sequence[np.ndarray]],
    expected: Sequence[Sequence[Any]],
    names: list[str],
    calibration: Sequence[Sequence[np.ndarray]],
) -> NcnnModel:
    shapes = [[tuple(output.shape) for output in outputs] for outputs in expected]
    sizes = {f"inputshape{index + 1 if index else ''}": _typed(arrays) for index, arrays in enumerate(samples)}
    comparisons: list[list[OutputComparison]] = []
    layers: dict[str, int] = {}
    axes: _Axes = ({}, {})
    for label, half in (("", 0), (".fp16", 1), *([(".int8", 1)] if calibration else [])):
        param, weights, script = (work / name for name in (f"model{label}.param", f"model{label}.bin", "example.py"))
        if label == ".int8":
            _write_integers(work / "model.param", work / "model.bin", (param, weights), calibration, axes)
        else:
            files = {"ncnnparam": param.name, "ncnnbin": weights.name, "ncnnpy": script.name}
            options = [f"{key}={value}" for key, value in {**sizes, "fp16": half, **files}.items()]
            _pnnx([executable, "model.pt", *options], work)
            layers = _layers(param)
            axes = _axes(script.read_text(), samples[0], len(names))
        found = _run(param, weights, samples, axes, shapes, bool(half))
        pairs = enumerate(zip(found, expected, strict=True))
        of_samples = [
            compare([f"{name}{' of other_inputs' if i else ''}" for name in names], *pair) for i, pair in pairs
        ]
        comparisons.append([output for outputs in of_samples for output in outputs])
        wrong = [str(output) for output in comparisons[-1] if not output.ok] if not half else []
        if wrong:
            raise VerificationError(f"NCNN's outputs differ from the module's: {'; '.join(wrong)}.")
    written: list[Path] = []
    for label in ("", ".fp16", ".int8")[: len(comparisons)]:
        for ending in (f"{label}.param", f"{label}.bin"):
            written.append(Path(f"{stem}{ending}"))
            os.replace(work / f"model{ending}", written[-1])
    fp32, fp16, *int8 = comparisons
    result = NcnnModel(written[0], written[1], written[2], written[3], layers, fp32, fp16, *axes, shapes[0])
    if not int8:
        return result
    return dataclasses.replace(result, int8_param=written[4], int8_weights=written[5], int8=int8[0])


def _write_integers(
    param: Path, weights: Path, files: tuple[Path, Path], calibration: Sequence[Sequence[np.ndarray]], axes: _Axes
) -> None:
    """Writes a model in float32 with 8-bit integers to `files`."""
    from onnx2nn.output.ncnn import integers, model_files

    layers = model_files.read(param, weights)
    watched = list(dict.fromkeys(layer.inputs[0] for layer in layers if integers.is_measured(layer)))
    if not watched and not any(map(integers.is_product, layers)):
        raise NcnnError("No layer computes with 8-bit integers", ["the model has no convolution and no linear layer"])
    job = {"watched": watched, "bins": integers.BINS}
    found = _results(param, weights, calibration, axes, False, job)
    largest = {name: float(found[name]) for name in watched if 0 < found[name] < np.inf}
    counts = _results(param, weights, calibration, axes, False, {**job, "watched": [*largest], "largest": largest})
    thresholds = {name: integers.threshold(counts[name], most) for name, most in largest.items()}
    model_files.write(integers.with_integers(layers, thresholds), *files)


def _typed(arrays: Sequence[np.ndarray]) -> str:
    """Returns the inputs' sizes and types as pnnx reads them."""
    return ",".join(f"[{','.join(map(str, array.shape))}]{_DTYPES[array.dtype.name]}" for array in arrays)


def _pnnx(command: Sequence[str], work: Path) -> None:
    """Runs the program itself, as its Python wrapper ignores the exit status."""
    done = _process(command, work, "pnnx")
    lines = [line.strip() for line in (done.stderr + done.stdout).splitlines() if line.strip()]
    if done.returncode:
        raise VerificationError(f"pnnx failed (exit status {done.returncode}): {lines[-1] if lines else 'no message'}")


def _process(command: Sequence[str], work: Path, what: str) -> subprocess.CompletedProcess[str]:
    try:
        return subprocess.run(
            command, cwd=work, stdin=subprocess.DEVNULL, capture_output=True, errors="replace", timeout=TIME_LIMIT
        )
    except subprocess.TimeoutExpired:
        raise VerificationError(f"{what} did not end within {TIME_LIMIT:g} seconds.") from None


def _layers(param: Path) -> dict[str, int]:
    """Counts the layers by type; a layer that ncnn does not know is an error."""
    import ncnn

    if not param.exists():
        raise VerificationError("pnnx wrote no NCNN model.")
    lines = [line.split() for line in param.read_text().splitlines()[2:] if line.strip()]
    unknown = [f"{name}: {kind} is no layer of NCNN" for kind, name, *_ in lines if ncnn.layer_to_index(kind) < 0]
    if unknown:
        raise NcnnError("pnnx left operations that NCNN does not know", unknown)
    return dict(Counter(kind for kind, *_ in lines).most_common())


def _axes(script: str, arrays: Sequence[np.ndarray], outputs: int) -> _Axes:
    """Reads from pnnx's example which axis of each input and output is NCNN's batch; a wrong axis gives wrong numbers.

    pnnx takes the first axis of indices for the batch even where it is the sequence; NCNN looks up one sequence.
    """
    found = {f"{kind}{index}": int(axis) for kind, index, axis in _AXIS.findall(script) if int(axis) != _NO_BATCH}
    inputs = {f"in{index}": found.get(f"in{index}") for index in range(len(arrays))}
    for (name, axis), array in zip(inputs.items(), arrays, strict=True):
        if axis is not None and array.dtype.kind == "i" and array.shape[axis] != 1:
            inputs[name] = array.shape.index(1) if 1 in array.shape else None
    return inputs, {f"out{index}": found.get(f"out{index}") for index in range(outputs)}


def _run(
    param: Path,
    weights: Path,
    samples: Sequence[Sequence[np.ndarray]],
    axes: _Axes,
    shapes: Sequence[Sequence[tuple[int, ...]]],
    half: bool,
) -> list[list[np.ndarray]]:
    """Returns the outputs for each sample; they get back the axes of size 1 that NCNN drops."""
    results = _results(param, weights, samples, axes, half, {})
    return [
        [_shaped(results[f"{i}/{name}"], shape) for name, shape in zip(axes[1], of_sample, strict=True)]
        for i, of_sample in enumerate(shapes)
    ]


def _results(
    param: Path,
    weights: Path,
    samples: Sequence[Sequence[np.ndarray]],
    axes: _Axes,
    half: bool,
    watching: Mapping[str, Any],
) -> dict[str, np.ndarray]:
    """Runs ncnn in a process of its own, see `runner`; `watching`: `watched`, `largest` and `bins`."""
    with tempfile.TemporaryDirectory(prefix="onnx2nn-ncnn-") as folder:
        inputs, outputs, job = (Path(folder) / name for name in ("inputs.npz", "outputs.npz", "job.json"))
        given: dict[str, Any] = {
            f"{index}/{name}": array
            for index, arrays in enumerate(samples)
            for name, array in zip(axes[0], arrays, strict=True)
        }
        np.savez(inputs, **given)
        files = {"param": str(param.absolute()), "bin": str(weights.absolute()), "inputs": str(inputs)}
        options = {"samples": len(samples), "input_axes": axes[0], "output_axes": axes[1], "half": half}
        options |= {"watched": [], "largest": {}, **watching}
        job.write_text(json.dumps({**files, "outputs": str(outputs), **options}))
        done = _process([sys.executable, str(Path(__file__).with_name("runner.py")), str(job)], Path(folder), "ncnn")
        if done.returncode:
            lines = done.stderr.strip().splitlines()[-3:] or [f"exit status {done.returncode}"]
            raise VerificationError(f"Running the NCNN model failed: {'; '.join(reversed(lines))}")
        with np.load(outputs, allow_pickle=False) as results:
            return dict(results)


def _shaped(array: np.ndarray, shape: tuple[int, ...]) -> np.ndarray:
    same = [size for size in array.shape if size != 1] == [size for size in shape if size != 1]
    return array.reshape(shape) if same else array
