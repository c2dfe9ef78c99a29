"""Compares an imported module with ONNX Runtime on the whole model, on the same seeded inputs."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, BinaryIO

import numpy as np
import onnx
import onnx_ir as ir

from onnx2nn.errors import InputError, Onnx2nnError, VerificationError
from onnx2nn.ground.extras import require
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.loading import load
from onnx2nn.reading import reader

Stored = str | os.PathLike[str] | bytes | onnx.ModelProto
"""The forms of a model that can be read several times."""

MSE_TOLERANCE = 1e-7
"""Mean squared error below which an output of ordinary size counts as equal."""

RELATIVE_TOLERANCE = 1e-4
"""Largest difference of one element, relative to the largest magnitude; an average hides one bad element."""

RELATIVE_RMS = 1e-5
"""For outputs far from 1 (pixel coordinates, logits in the thousands): float32 rounding alone exceeds the MSE there."""

_EPSILON = {"float16": 2.0**-10, "bfloat16": 2.0**-7, "float8_e4m3fn": 2.0**-3, "float8_e5m2": 2.0**-2}
"""Spacing of the short float types at 1: an output cannot agree better than to its type's own rounding, or to that of
the values that it is computed from."""

SMALLEST_SCALE = 2.5e-3
"""Outputs below this magnitude are compared as if they had it: what is left of them is rounding of larger numbers.

ONNX Runtime's Sigmoid, for one, is computed next to 0.5: up to 1.3e-7 is left of it where it should be 0.
"""


@dataclass(frozen=True)
class OutputComparison:
    """How one output of two runs differs.

    Attributes:
        name: the output's name in the file; elements of a sequence are `name[0]`, `name[1]` ...
        shape: the shape expected.
        mse: mean squared error; infinite where the two cannot be compared.
        max_difference: largest absolute difference of an element.
        scale: largest finite magnitude expected.
        mean_square: mean of the squares expected.
        dtype: the element type expected.
        computed_in: a shorter float type of values that it is computed from, `""` where there is none.
        reason: why the two cannot be compared number by number (another shape or dtype); empty where they can.
    """

    name: str
    shape: tuple[int, ...]
    mse: float
    max_difference: float
    scale: float = 0.0
    mean_square: float = 0.0
    dtype: str = ""
    reason: str = ""
    computed_in: str = ""

    @property
    def below_mse(self) -> bool:
        """Whether the plain mean squared error is below `MSE_TOLERANCE`."""
        return self.mse < MSE_TOLERANCE

    @property
    def ok(self) -> bool:
        """Whether the outputs agree: on average, and in every single element; integers, booleans and text exactly."""
        if self.reason:
            return False
        if not _is_float(self.dtype):
            return self.max_difference == 0
        epsilon = max(_EPSILON.get(kind, 0.0) for kind in (self.dtype, self.computed_in))
        average = self.mse < max(MSE_TOLERANCE, max(RELATIVE_RMS, epsilon) ** 2 * self.mean_square)
        largest = max(RELATIVE_TOLERANCE, 2 * epsilon) * max(self.scale, SMALLEST_SCALE)
        return average and self.max_difference <= largest

    def __str__(self) -> str:
        head = f"{self.name}: shape {list(self.shape)}"
        if self.reason:
            return f"{head}, {self.reason}"
        return f"{head}, mse {self.mse:.3g}, max abs difference {self.max_difference:.3g}"


@dataclass
class Verification:
    """The comparisons of one or several runs.

    Attributes:
        oracle: what the module was compared with, for example `"ONNX Runtime 1.23.0"`.
        outputs: one comparison an output and run.
        notes: runs that were left out, and why.
    """

    oracle: str
    outputs: list[OutputComparison] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    @property
    def ok(self) -> bool:
        """Whether every output of every run agrees."""
        return bool(self.outputs) and all(output.ok for output in self.outputs)

    @property
    def verdict(self) -> str:
        """The closing line: `OK mse < 1e-7`, or `MISMATCH` with the outputs that differ."""
        if not self.outputs:
            return "MISMATCH: nothing was compared"
        if self.ok and all(output.below_mse for output in self.outputs):
            return "OK mse < 1e-7"
        if self.ok:
            short = sorted({output.computed_in for output in self.outputs} - {""})
            types = f"{' and '.join(short)}, in which values are computed" if short else "the output's type"
            return f"OK mse < 1e-7, or equal up to the rounding of {types} where its values are large"
        wrong = sorted({output.name for output in self.outputs if not output.ok})
        return f"MISMATCH in {len(wrong)} of {len({o.name for o in self.outputs})} outputs: {', '.join(wrong)}"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.outputs), *self.notes, self.verdict])


class Oracle:
    """Runs an ONNX model on NumPy arrays: ONNX Runtime, or onnx.reference where ONNX Runtime cannot load the file.

    Args:
        source: path, bytes or ModelProto.
        folder: of the external data that a ModelProto refers to.
        optimised: whether ONNX Runtime may rewrite the graph.

    Raises:
        MissingDependencyError: onnxruntime is not installed.
        VerificationError: neither of the two can load the model.
    """

    def __init__(self, source: Stored, *, folder: str | None = None, optimised: bool = True):
        runtime = require("onnxruntime", extra="verify", purpose="Comparing with ONNX Runtime")
        options = runtime.SessionOptions()
        options.log_severity_level = 4  # its warnings would stand between our own lines
        if not optimised:
            options.graph_optimization_level = runtime.GraphOptimizationLevel.ORT_DISABLE_ALL
        if folder is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", folder)
        self._session: Any = None
        self._reference: Any = None
        try:
            model = source.SerializeToString() if isinstance(source, onnx.ModelProto) else source
            model = os.fspath(model) if isinstance(model, os.PathLike) else model
            self._session = runtime.InferenceSession(
                model,
                options,
                providers=["CPUExecutionProvider"],
                disabled_optimizers=["Pad_Fusion"],  # 1.31 merges a Pad with 0 into a MaxPool, which pads with -inf
            )
            self.name = f"ONNX Runtime {runtime.__version__}"
        except Exception as error:  # its exceptions share no base class
            self._load_reference(source, folder, error)

    def _load_reference(self, source: Stored, folder: str | None, runtime_error: Exception) -> None:
        from onnx.reference import ReferenceEvaluator

        try:
            self._reference = ReferenceEvaluator(_proto(source, folder))
        except Exception as error:
            raise VerificationError(
                f"nothing to compare with: ONNX Runtime cannot load the model ({_first_line(runtime_error)}), "
                f"nor can onnx.reference ({_first_line(error)})"
            ) from error
        self.name = f"onnx.reference {onnx.__version__} (ONNX Runtime: {_first_line(runtime_error)})"

    @property
    def input_names(self) -> list[str]:
        """The graph's inputs in the file's order."""
        if self._session is not None:
            return [value.name for value in self._session.get_inputs()]
        return list(self._reference.input_names)

    @property
    def output_names(self) -> list[str]:
        """The graph's outputs in the file's order."""
        if self._session is not None:
            return [output.name for output in self._session.get_outputs()]
        return list(self._reference.output_names)

    def run(self, feeds: Mapping[str, np.ndarray]) -> list[Any]:
        """Run once.

        Raises:
            VerificationError: the oracle refused these inputs.
        """
        runner = self._session or self._reference
        try:
            return list(runner.run(None, dict(feeds)))
        except Exception as error:
            raise VerificationError(f"{self.name.partition(' (')[0]} failed: {_first_line(error)}") from error


def stored(source: Stored | BinaryIO) -> Stored:
    """Read an open file into memory; the other forms stay as they are.

    Raises:
        TypeError: it is nothing that holds a model.
    """
    if isinstance(source, str | os.PathLike | bytes | onnx.ModelProto):
        return source
    if not hasattr(source, "read"):
        raise TypeError(f"a model is a path, bytes, a binary stream or a ModelProto, not {type(source).__name__}")
    return source.read()


def _proto(source: Stored, folder: str | None) -> onnx.ModelProto:
    if isinstance(source, onnx.ModelProto) and folder is not None:
        model = onnx.ModelProto()
        model.CopyFrom(source)
        onnx.load_external_data_for_model(model, folder)
        return model
    if isinstance(source, onnx.ModelProto):
        return source
    return onnx.load_from_string(source) if isinstance(source, bytes) else onnx.load(source)


def _first_line(error: BaseException) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)


def verify(
    source: Stored | BinaryIO,
    module: Callable[..., Any] | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    runs: int = 1,
    seed: int = 0,
) -> Verification:
    """Compare an imported module with ONNX Runtime.

    Where the file leaves the batch open and the caller gives no shape, batch sizes 1 and 2 are both compared.

    Args:
        source: the ONNX file: a path, bytes, a ModelProto or an open binary file.
        module: what `onnx2nn.load` gave for it; loaded here if left out.
        input_shapes: input name → sizes, for inputs whose shape the file leaves open.
        inputs: input name → array, used instead of generated ones.
        runs: number of comparisons on different random inputs.
        seed: of the first run's inputs; run `i` uses `seed + i`.

    Returns:
        The comparison of every output; `.ok` says whether all agree.

    Raises:
        InputError: the shapes or inputs given do not fit the model.
        MissingDependencyError: onnxruntime is not installed.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: `module` was left out and the model cannot be imported.
        VerificationError: no oracle can run the model.
    """
    source = stored(source)
    model = reader.read(source)
    specs, short = model_inputs.input_specs(model), short_floats(model)
    if module is None:
        module = load(source, input_shapes=fixed_lists(input_shapes))
    oracle = Oracle(source)
    result = Verification(oracle.name)
    for feeds, optional in example_feeds(specs, input_shapes, inputs, runs, seed):
        try:
            expected = oracle.run(feeds)
        except VerificationError as error:
            if not optional:
                raise
            result.notes.append(f"batch size 2 left out: {error}")
            continue
        result.outputs += compare(oracle.output_names, run_module(module, list(feeds.values())), expected, short)
    return result


def fixed_lists(shapes: Mapping[str, Sequence[int]] | None) -> dict[str, list[int]] | None:
    """Returns shapes as `onnx2nn.load` takes them."""
    return None if shapes is None else {name: list(sizes) for name, sizes in shapes.items()}


def example_feeds(
    specs: Sequence[model_inputs.InputSpec],
    input_shapes: Mapping[str, Sequence[int]] | None,
    inputs: Mapping[str, np.ndarray] | None,
    runs: int,
    seed: int,
) -> Iterator[tuple[dict[str, np.ndarray], bool]]:
    """Yield the inputs of every run, and whether the oracle may refuse them (a batch that the file only claims)."""
    if inputs is not None:
        if not isinstance(inputs, Mapping):
            raise InputError(f"inputs maps names of inputs to arrays, and is no {type(inputs).__name__}")
        missing = [spec.name for spec in specs if spec.name not in inputs]
        if missing:
            raise InputError(f"no array was given for input {missing[0]!r}")
        model_inputs.check_shapes(specs, {name: np.shape(array) for name, array in inputs.items()})
        yield {spec.name: np.asarray(inputs[spec.name]) for spec in specs}, False
        return
    shapes = model_inputs.resolve_shapes(specs, input_shapes, batch=1)
    for run in range(runs):
        yield model_inputs.example_inputs(specs, shapes, seed=seed + run), False
    larger = model_inputs.resolve_shapes(specs, input_shapes, batch=2)
    if larger != shapes:
        yield model_inputs.example_inputs(specs, larger, seed=seed), True


def run_module(module: Callable[..., Any], arrays: Sequence[np.ndarray]) -> tuple[Any, ...]:
    """Call a PyTorch module on arrays, without gradients, and give its outputs as a tuple of arrays.

    Raises:
        VerificationError: the module failed on these inputs.
    """
    torch = require("torch", extra="torch", purpose="Running the imported module")
    tensors = [to_tensor(array) for array in arrays]
    try:
        with torch.no_grad():
            outputs = module(*tensors)
    except Onnx2nnError:
        raise
    except Exception as error:
        raise VerificationError(f"the imported module failed: {type(error).__name__}: {_first_line(error)}") from error
    return tuple(outputs) if isinstance(outputs, tuple) else (outputs,)


def to_tensor(array: np.ndarray) -> Any:
    """Turn an array into what an imported module takes: a tensor that owns its memory; strings stay NumPy arrays."""
    import torch

    if array.dtype.kind in "OUS":
        return array
    array = np.array(array, order="C")  # a copy: a module may work in place
    if array.dtype.name in ("bfloat16", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz"):
        carrier = np.int16 if array.dtype.itemsize == 2 else np.uint8
        return torch.from_numpy(array.view(carrier)).view(getattr(torch, array.dtype.name))
    if array.dtype.name in ("int4", "uint4", "int2", "uint2"):
        array = array.astype(np.uint8 if array.dtype.name[0] == "u" else np.int8)
    return torch.from_numpy(array)


def short_floats(model: ir.Model) -> dict[str, str]:
    """Returns the shortest float type of the values that each output is computed from, of those that have a short one.

    Half precision models often keep inputs and outputs in float32. Weights that are only stored in half precision, and
    become float32 before they are used, are no such values.
    """
    short = {value: kind for value in model.graph.inputs if (kind := _short(value.dtype))}
    varying = set(model.graph.inputs)
    for node in model.graph:
        if varying.isdisjoint(node.inputs) and node.inputs:
            continue
        varying.update(node.outputs)
        cast = node.attributes["to"].as_int() if node.op_type == "Cast" and "to" in node.attributes else None
        kinds = [short.get(value, "") for value in node.inputs if value is not None]
        if cast is not None:
            kinds.append(_short(ir.DataType(cast)))
        else:
            kinds += [_short(value.dtype) for value in node.inputs if value is not None]
        coarsest = max(kinds, key=lambda kind: _EPSILON.get(kind, 0.0), default="")
        short.update((value, coarsest) for value in node.outputs if coarsest)
    return {value.name or "": short[value] for value in model.graph.outputs if value in short}


def _short(kind: ir.DataType | None) -> str:
    name = "" if kind is None else kind.name.lower()
    return name if name in ("float16", "bfloat16") else ""


def compare(
    names: Sequence[str], actual: Sequence[Any], expected: Sequence[Any], short: Mapping[str, str] | None = None
) -> list[OutputComparison]:
    """Compare two runs' outputs one by one; sequences and maps element by element.

    `short`: as `short_floats` gives it for the model that ran.

    Raises:
        VerificationError: the two have another number of outputs.
    """
    if len(actual) != len(expected):
        raise VerificationError(f"the module gives {len(actual)} outputs where the model has {len(expected)}")
    comparisons: list[OutputComparison] = []
    for name, ours, theirs in zip(names, actual, expected, strict=True):
        left, right = dict(_flatten(name, ours)), dict(_flatten(name, theirs))
        if left.keys() != right.keys():
            reason = f"{len(left)} elements where {len(right)} are expected"
            comparisons.append(OutputComparison(name, (), np.inf, np.inf, reason=reason))
            continue
        computed_in = (short or {}).get(name, "")
        found = [_compare_values(key, left[key], right[key]) for key in right]
        comparisons += [replace(one, computed_in=computed_in) for one in found] if computed_in else found
    return comparisons


def _flatten(name: str, value: Any) -> Iterator[tuple[str, Any]]:
    if isinstance(value, Mapping):
        for key in sorted(value, key=str):
            yield from _flatten(f"{name}[{key!r}]", value[key])
    elif isinstance(value, list | tuple):
        for index, element in enumerate(value):
            yield from _flatten(f"{name}[{index}]", element)
    elif value is not None:
        yield name, value if hasattr(value, "dtype") else np.asarray(value)


def _compare_values(name: str, actual: Any, expected: Any) -> OutputComparison:
    """Compare two tensors or arrays: shape and dtype first, then the numbers."""
    shape, dtype = tuple(expected.shape), _dtype_name(expected)
    if tuple(actual.shape) != shape:
        return _incomparable(name, shape, f"but the module gives shape {list(actual.shape)}")
    if _dtype_name(actual) != dtype:
        return _incomparable(name, shape, f"dtype {dtype}, but the module gives {_dtype_name(actual)}")
    ours, theirs = to_array(actual), to_array(expected)
    if theirs.size == 0:
        return OutputComparison(name, shape, 0.0, 0.0, dtype=dtype)
    if dtype == "string":
        different = np.asarray(ours.astype(str) != theirs.astype(str))
        return OutputComparison(name, shape, float(different.mean()), float(different.any()), dtype=dtype)
    if not _is_float(dtype):  # in long double: int64 above 2**53 does not survive a float64
        gap = np.where(ours == theirs, 0, np.abs(ours.astype(np.longdouble) - theirs.astype(np.longdouble)))
        return OutputComparison(name, shape, float(np.mean(gap**2)), float(gap.max()), dtype=dtype)
    return _compare_floats(name, ours, theirs, dtype)


def _compare_floats(name: str, actual: np.ndarray, expected: np.ndarray, dtype: str) -> OutputComparison:
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    ours, theirs = actual.astype(wide), expected.astype(wide)
    with np.errstate(invalid="ignore", over="ignore"):
        gap = np.abs(ours - theirs)
        gap = np.where((ours == theirs) | (np.isnan(ours) & np.isnan(theirs)), 0.0, gap)
        gap = np.where(np.isnan(gap), np.inf, gap)  # a NaN or an infinity on one side only
        magnitudes = np.abs(theirs[np.isfinite(theirs)])
        return OutputComparison(
            name,
            expected.shape,
            mse=float(np.mean(gap**2)),
            max_difference=float(gap.max()),
            scale=float(magnitudes.max(initial=0.0)),
            mean_square=float(np.mean(magnitudes**2)) if magnitudes.size else 0.0,
            dtype=dtype,
        )


def _incomparable(name: str, shape: tuple[int, ...], reason: str) -> OutputComparison:
    return OutputComparison(name, shape, np.inf, np.inf, reason=reason)


def to_array(value: Any) -> np.ndarray:
    """Returns a tensor or array as an array; the short float types as float32, which holds them exactly."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().resolve_conj().resolve_neg()
        if value.dtype.is_floating_point and value.dtype.itemsize < 4:
            value = value.float()  # exact; NumPy itself has no bfloat16 and float8
        return np.asarray(value.numpy())
    return np.asarray(value)


def _dtype_name(value: Any) -> str:
    name = str(value.dtype).removeprefix("torch.")
    return "string" if name == "object" or name.startswith(("<U", "|S", "StringDType")) else name


def _is_float(dtype: str) -> bool:
    return dtype.startswith(("float", "bfloat", "complex"))
