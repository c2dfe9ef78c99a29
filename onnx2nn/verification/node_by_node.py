"""Compares an imported module with ONNX Runtime node by node, to find the node at which the two part.

The module's fx graph is run twice side by side. One run goes on with its own values. The other gives every node the
oracle's inputs: what differs there the node itself has *introduced*, the rest of its difference it has *inherited*.
"""

from __future__ import annotations

import math
import os
import zipfile
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx2nn.errors import InputError, VerificationError
from onnx2nn.ground.atomic_files import replacing
from onnx2nn.importing import inputs as model_inputs
from onnx2nn.loading import load
from onnx2nn.optable.registry import load_rows
from onnx2nn.reading import reader
from onnx2nn.verification.outputs import (
    SMALLEST_SCALE,
    Oracle,
    OutputComparison,
    Stored,
    compare,
    example_feeds,
    fixed_lists,
    stored,
    to_array,
    to_tensor,
)

if TYPE_CHECKING:
    from torch import fx

MEMORY_LIMIT = 2 << 30
"""Bytes of intermediate values that one session of the oracle gives at a time, unless the caller says otherwise."""


@dataclass(frozen=True)
class Gap:
    """How far apart two values of one tensor are.

    Attributes:
        max_abs: largest absolute difference of an element; infinite where the two cannot be compared.
        max_rel: largest difference of an element relative to the expected element, where that is not 0.
        ulp: largest distance in representable numbers of the tensor's own type; None for types other than float16,
            bfloat16, float32 and float64.
        ok: whether it is within the threshold.
        reason: why the two cannot be compared number by number; empty where they can.
    """

    max_abs: float
    max_rel: float
    ulp: int | None
    ok: bool
    reason: str = ""

    def __str__(self) -> str:
        if self.reason:
            return self.reason
        ulp = "" if self.ulp is None else f", {self.ulp} ULP"
        return f"max abs {self.max_abs:.3g}, max rel {self.max_rel:.3g}{ulp}"


@dataclass(frozen=True)
class NodeComparison:
    """How one output of one node differs.

    Attributes:
        node: the node's name in the file, or its output's where it has none.
        operator: `domain::op_type`, without the domain for ai.onnx.
        output: the value's name in the file.
        fx_node: the node of the module's graph that computes it.
        introduced: the module's node on the oracle's inputs against the oracle.
        inherited: the module's own value against the module's node on the oracle's inputs.
        total: the module's own value against the oracle.
    """

    node: str
    operator: str
    output: str
    fx_node: str
    introduced: Gap
    inherited: Gap
    total: Gap

    def __str__(self) -> str:
        return f"{self.operator} {self.node!r} introduces {self.introduced}; it inherits {self.inherited}"


@dataclass
class NodeVerification:
    """The comparisons of every node of one run.

    Attributes:
        oracle: what the module was compared with.
        nodes: one comparison an output of a node, in the order of the module's graph.
        outputs: the graph's outputs as `verify` compares them.
        folded: nodes of the file that were computed at import, from constants or shapes; they run no more.
        notes: what was left out, and why.
    """

    oracle: str
    nodes: list[NodeComparison] = field(default_factory=list)
    outputs: list[OutputComparison] = field(default_factory=list)
    folded: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    _probe: Any = field(default=None, repr=False)

    @property
    def first(self) -> NodeComparison | None:
        """The first node that introduces more than the threshold allows."""
        return next((node for node in self.nodes if not node.introduced.ok), None)

    @property
    def ok(self) -> bool:
        """Whether no node introduces more than the threshold allows, and every output of the graph agrees."""
        return bool(self.outputs) and self.first is None and all(output.ok for output in self.outputs)

    @property
    def verdict(self) -> str:
        """The closing line; it names the first node over the threshold."""
        head = f"{len(self.nodes)} values compared, {len(self.folded)} nodes folded at import"
        if self.first is not None:
            return f"MISMATCH ({head}): the first node over the threshold: {self.first}"
        wrong = [output.name for output in self.outputs if not output.ok]
        if wrong:
            return f"MISMATCH ({head}): no node is over the threshold, but output {wrong[0]!r} is: rounding adds up"
        return f"OK ({head}): every node agrees" if self.outputs else f"MISMATCH ({head}): no output was compared"

    def __str__(self) -> str:
        return "\n".join([*map(str, self.nodes), *self.notes, self.verdict])

    def to_dict(self) -> dict[str, Any]:
        """Returns everything as plain values that JSON can hold; infinities and NaN are the strings `inf`, `nan`."""
        return {
            "oracle": self.oracle,
            "ok": self.ok,
            "verdict": self.verdict,
            "first": self.first and _plain(self.first),
            "nodes": [_plain(node) for node in self.nodes],
            "outputs": [{**_plain(output), "ok": output.ok} for output in self.outputs],
            "folded": self.folded,
            "notes": self.notes,
        }

    def write_repro(self, folder: str | os.PathLike[str], node: str | None = None) -> Path:
        """Write one node as a model of its own, with the inputs it gets from the oracle.

        What the importer knew of the node's inputs (weights, numbers computed from shapes) are initializers of it.

        Args:
            folder: gets `model.onnx`, `inputs.npz` and `expected.npz` (the oracle's outputs); made if it is missing.
            node: name of the node, or of a value it makes; the first node over the threshold if left out.

        Returns:
            The path of `model.onnx`.

        Raises:
            InputError: there is no such node, an input or output of it is no tensor, or the files cannot be written.
        """
        if node is None and self.first is None:
            raise InputError("no node is over the threshold; name the one to write")
        compared = {name.output for name in self.nodes}
        path: Path = self._probe.write_repro(Path(folder), node or self.first.output, compared)  # type: ignore[union-attr]
        return path


def _plain(value: Any) -> Any:
    if hasattr(value, "__dataclass_fields__"):
        return {name: _plain(getattr(value, name)) for name in value.__dataclass_fields__}
    if isinstance(value, float) and not math.isfinite(value):
        return str(value)
    return list(value) if isinstance(value, tuple) else value


def verify_nodes(
    source: Stored | BinaryIO,
    module: fx.GraphModule | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    tolerance: float | None = None,
    memory_limit: int = MEMORY_LIMIT,
) -> NodeVerification:
    """Compare an imported module with ONNX Runtime node by node, on one set of inputs.

    ONNX Runtime runs unoptimised, so that every value of the file exists.

    Args:
        source: the ONNX file: a path, bytes, a ModelProto or an open binary file.
        module: what `onnx2nn.load` gave for it, not pickled since (which loses the nodes' names); loaded here if left
            out.
        input_shapes: input name → sizes, for inputs whose shape the file leaves open.
        inputs: input name → array, used instead of generated ones.
        seed: of the generated inputs.
        tolerance: largest difference of an element that a node may introduce, relative to the largest magnitude of
            its output; what `verify` allows for an output if left out.
        memory_limit: bytes of intermediate values that are held at a time; more come from several sessions.

    Returns:
        The comparison of every node; `.ok` says whether all agree, `.first` is the first that does not.

    Raises:
        InputError: shapes or inputs do not fit the model, or the module knows nothing of the file's nodes.
        MissingDependencyError: onnxruntime is not installed.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: `module` was left out and the model cannot be imported.
        VerificationError: no oracle can run the model.
    """
    source = stored(source)
    specs = model_inputs.input_specs(reader.read(source))
    feeds, _ = next(iter(example_feeds(specs, input_shapes, inputs, 1, seed)))
    if module is None:
        module = load(source, input_shapes=fixed_lists(input_shapes))
    if not hasattr(module, "graph"):
        raise InputError(f"the module knows nothing of the file's nodes: a {type(module).__name__}, not what load gave")
    probe = Probe(source, feeds)
    lockstep = _Lockstep(module, probe, tolerance)
    result = NodeVerification(probe.oracle, _probe=probe, notes=lockstep.notes)
    result.nodes += lockstep.run(memory_limit)
    made = {name for node in module.graph.nodes for name in node.meta.get("onnx_outputs", ())}
    result.folded += [_name(node) for node in probe.model.graph.node if not made.intersection(node.output)]
    names = [output.name for output in probe.model.graph.output]
    result.outputs += compare(names, lockstep.outputs, probe.outputs) if lockstep.outputs is not None else []
    return result


class Probe:
    """A model and one set of inputs: gives the oracle's value of anything in it.

    Args:
        source: path, bytes or ModelProto.
        feeds: an array for every input.

    Raises:
        VerificationError: no oracle can run the model.
    """

    def __init__(self, source: Stored, feeds: Mapping[str, np.ndarray]):
        self.feeds = feeds
        self.folder: str | None = None
        if isinstance(source, onnx.ModelProto):
            self.model = source
        elif isinstance(source, bytes):
            self.model = onnx.load_from_string(source)
        else:
            self.folder = os.path.dirname(os.path.abspath(source))
            self.model = onnx.load(source, load_external_data=False)
        oracle = Oracle(self.model, folder=self.folder, optimised=False)
        self.oracle = oracle.name
        self.outputs = oracle.run(feeds)
        self.producers = {name: node for node in self.model.graph.node for name in node.output if name}

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the oracle's values; those that it does not give (an optional that is empty) are left out."""
        names = list(dict.fromkeys(names))
        known = {name: self.feeds[name] for name in names if name in self.feeds}
        return known | self._computed([name for name in names if name not in known])

    def _computed(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        model = onnx.ModelProto()
        model.CopyFrom(self.model)
        del model.graph.output[:]
        model.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
        try:
            results = Oracle(model, folder=self.folder, optimised=False).run(self.feeds)
        except VerificationError:
            half = len(names) // 2
            return self._computed(names[:half]) | self._computed(names[half:]) if half else {}
        return dict(zip(names, results, strict=True))

    def write_repro(self, folder: Path, name: str, compared: set[str]) -> Path:
        """Write the node called `name` as `NodeVerification.write_repro` says; `compared` vary at run time."""
        node = next((node for node in self.model.graph.node if name in (_name(node), *node.output)), None)
        if node is None:
            raise InputError(f"the model has no node {name!r}")
        values = self.values([*_reads(node), *(output for output in node.output if output)])
        for key in [*_reads(node), *node.output]:
            if key and not isinstance(values.get(key), (np.ndarray, np.generic)):
                raise InputError(f"node {name!r} cannot stand alone: its value {key!r} is no tensor")
        arrays = {key: np.asarray(value) for key, value in values.items()}
        live = [key for key in _reads(node) if key in compared or key in self.feeds]
        constants = [numpy_helper.from_array(_storable(arrays[key]), key) for key in _reads(node) if key not in live]
        outputs = [output for output in node.output if output]
        graph = helper.make_graph(
            [node], "repro", [_info(k, arrays[k]) for k in live], [_info(k, arrays[k]) for k in outputs], constants
        )
        model = helper.make_model(
            graph,
            opset_imports=self.model.opset_import,
            ir_version=self.model.ir_version,
            functions=self.model.functions,
        )
        try:
            folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(f"cannot make the folder {folder}: {error.strerror or error}") from error
        for file, keys in (("inputs.npz", live), ("expected.npz", outputs)):
            contents: dict[str, Any] = {key: _storable(arrays[key]) for key in keys}
            with replacing(folder / file) as path:
                np.savez(path, **contents)
        with replacing(folder / "model.onnx") as path:
            path.write_bytes(model.SerializeToString())
        return folder / "model.onnx"


def _reads(node: onnx.NodeProto) -> list[str]:
    """Returns the values a node reads, with those that its subgraphs take from outside."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {output for inner in graph.node for output in inner.output}
            used = [name for inner in graph.node for name in _reads(inner)] + [value.name for value in graph.output]
            names += [name for name in used if name not in own]
    return list(dict.fromkeys(names))


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _storable(array: np.ndarray) -> np.ndarray:
    """Returns strings as NumPy's own type: an array of objects can only be pickled."""
    return array.astype(str) if array.dtype == object else array


def _name(node: onnx.NodeProto) -> str:
    return node.name or next((output for output in node.output if output), "?")


@dataclass(frozen=True)
class _Failed:
    """Stands for the value of an fx node that raised, and of all that use it."""

    reason: str


class _Lockstep:
    """Runs an fx graph on its own values and on the oracle's, side by side."""

    def __init__(self, module: fx.GraphModule, probe: Probe, tolerance: float | None):
        from torch import fx

        self.module, self.probe, self.tolerance = module, probe, tolerance
        self.notes: list[str] = []
        self.outputs: tuple[Any, ...] | None = None
        graph = getattr(module, "graph", None)
        self.named = {
            node: [name for name in node.meta.get("onnx_outputs", ()) if name in probe.producers]
            for node in (graph.nodes if graph is not None else ())
        }
        if not any(self.named.values()) and probe.model.graph.node and graph is not None and len(graph.nodes) > 2:
            raise InputError("the module's graph has no names of the file's values: pickling loses them; load it again")
        self.runs = fx.Interpreter(module), fx.Interpreter(module)
        self.random = {name for name, node in probe.producers.items() if self._is_random(node)}
        if self.random:
            self.notes.append(f"random nodes were not compared: {', '.join(sorted(self.random))}")

    def _is_random(self, node: onnx.NodeProto) -> bool:
        versions = {opset.domain: opset.version for opset in self.probe.model.opset_import}
        row = load_rows().find(node.domain, node.op_type, versions.get(node.domain, 1))
        return row is not None and row.random

    def run(self, memory_limit: int) -> Iterator[NodeComparison]:
        """Yields the comparisons in the graph's order; `outputs` are the graph's afterwards."""
        import torch

        with torch.no_grad():
            given = self._values(memory_limit)
            own, fed = self.runs
            inputs = iter([to_tensor(array) for array in self.probe.feeds.values()])
            for node in self.module.graph.nodes:
                if node.op == "output":
                    self.outputs = self._result(own, node)
                    return
                if node.op == "placeholder":
                    own.env[node] = fed.env[node] = next(inputs)
                else:
                    own.env[node], fed.env[node] = _run(own, node), _run(fed, node)
                    yield from self._compare(node, given)
                for interpreter in self.runs:
                    for unused in interpreter.user_to_last_uses.get(node, ()):
                        interpreter.env.pop(unused, None)

    def _result(self, own: fx.Interpreter, node: fx.Node) -> tuple[Any, ...] | None:
        value = _run(own, node)
        if isinstance(value, _Failed):
            self.notes.append(f"the module gives no outputs: {value.reason}")
            return None
        return tuple(value) if isinstance(value, tuple) else (value,)

    def _compare(self, node: fx.Node, given: Iterator[dict[str, Any]]) -> Iterator[NodeComparison]:
        names = self.named[node]
        if not names:
            return
        own, fed = self.runs
        values = next(given)
        for name in names:
            if name in values and name not in self.random:
                producer = self.probe.producers[name]
                expected = values[name]
                yield NodeComparison(
                    _name(producer),
                    f"{producer.domain}::{producer.op_type}" if producer.domain else producer.op_type,
                    name,
                    node.name,
                    self._gap(name, fed.env[node], expected),
                    self._gap(name, own.env[node], fed.env[node]),
                    self._gap(name, own.env[node], expected),
                )
        if names[0] in values:
            fed.env[node] = _as_torch(values[names[0]])
            if names[0] in self.random:
                own.env[node] = fed.env[node]

    def _gap(self, name: str, actual: Any, expected: Any) -> Gap:
        for value in (actual, expected):
            if isinstance(value, _Failed):
                return Gap(math.inf, math.inf, None, False, value.reason)
        return gap(name, actual, expected, self.tolerance)

    def _values(self, memory_limit: int) -> Iterator[dict[str, Any]]:
        """Yields for every named fx node the oracle's values of its names, as many at a time as fit into memory."""
        waiting: list[tuple[list[str], int]] = self._sizes()
        while waiting:
            count, total = 0, 0
            while count < len(waiting) and (not count or self.random or total + waiting[count][1] <= memory_limit):
                total += waiting[count][1]
                count += 1
            chunk, waiting = waiting[:count], waiting[count:]
            values = self.probe.values(name for names, _ in chunk for name in names)
            for names, _ in chunk:
                yield {name: values[name] for name in names if name in values}

    def _sizes(self) -> list[tuple[list[str], int]]:
        """Returns the names of every named fx node and the bytes of its value, found by running the module."""
        from torch import fx

        measuring = fx.Interpreter(self.module)
        inputs = iter([to_tensor(array) for array in self.probe.feeds.values()])
        result = []
        for node in self.module.graph.nodes:
            if node.op == "output":
                break
            measuring.env[node] = next(inputs) if node.op == "placeholder" else _run(measuring, node)
            if self.named[node] and node.op != "placeholder":
                result.append((self.named[node], _bytes(measuring.env[node])))
            for unused in measuring.user_to_last_uses.get(node, ()):
                measuring.env.pop(unused, None)
        return result


def _run(interpreter: fx.Interpreter, node: fx.Node) -> Any:
    for used in node.all_input_nodes:
        if isinstance(interpreter.env[used], _Failed):
            return interpreter.env[used]
    try:
        return interpreter.run_node(node)
    except Exception as error:
        first = next(iter(str(error).strip().splitlines()), "")
        return _Failed(f"{node.name} failed: {type(error).__name__}: {first}")


def _bytes(value: Any) -> int:
    if isinstance(value, (list, tuple)):
        return sum(_bytes(item) for item in value)
    return int(getattr(value, "nbytes", 0))


def _as_torch(value: Any) -> Any:
    if isinstance(value, list):
        return [_as_torch(item) for item in value]
    return to_tensor(np.asarray(value)) if isinstance(value, (np.ndarray, np.generic)) else value


def gap(name: str, actual: Any, expected: Any, tolerance: float | None = None) -> Gap:
    """Compares two values of one tensor, or of a sequence or map of tensors (the worst element counts).

    Args:
        name: how the value is called.
        actual: tensor or array.
        expected: likewise, of the same shape and dtype.
        tolerance: as for `verify_nodes`.
    """
    parts = compare([name], [actual], [expected])
    reason = next((part.reason for part in parts if part.reason), "")
    if reason:
        return Gap(math.inf, math.inf, None, False, reason)
    ok = all(part.ok if tolerance is None else _within(part, tolerance) for part in parts)
    worst = max((part.max_difference for part in parts), default=0.0)
    if isinstance(expected, (list, tuple, Mapping)) or any(
        not part.dtype.startswith(("float", "bf")) for part in parts
    ):
        return Gap(worst, math.nan if worst else 0.0, None, ok)
    ours, theirs = to_array(actual), to_array(expected)
    return Gap(worst, _relative(ours, theirs), _ulp(ours, theirs, parts[0].dtype) if parts else 0, ok)


def _within(part: OutputComparison, tolerance: float) -> bool:
    return part.max_difference <= tolerance * max(part.scale, SMALLEST_SCALE)


def _relative(ours: np.ndarray, theirs: np.ndarray) -> float:
    finite = np.isfinite(ours) & np.isfinite(theirs) & (theirs != 0)
    left, right = ours[finite].astype(np.float64), theirs[finite].astype(np.float64)
    return float(np.max(np.abs(left - right) / np.abs(right), initial=0.0))


_CARRIERS: dict[str, tuple[Any, Any]] = {
    "float16": (np.float16, np.int16),
    "float32": (np.float32, np.int32),
    "float64": (np.float64, np.int64),
}


def _ulp(ours: np.ndarray, theirs: np.ndarray, dtype: str) -> int | None:
    """Returns the largest count of representable numbers between two finite elements."""
    if dtype == "bfloat16":  # the upper half of a float32
        both = [np.ascontiguousarray(a, np.float32).view(np.int32) >> 16 for a in (ours, theirs)]
        low = -(1 << 15)
    elif dtype in _CARRIERS:
        kind, carrier = _CARRIERS[dtype]
        both = [np.ascontiguousarray(a, kind).view(carrier) for a in (ours, theirs)]
        low = int(np.iinfo(carrier).min)
    else:
        return None
    finite = np.isfinite(ours) & np.isfinite(theirs)
    # Negative floats count down from the smallest integer; Python ints, as the distance may exceed int64.
    left, right = (np.where(bits < 0, low - bits.astype(np.int64), bits.astype(np.int64)) for bits in both)
    left, right = left.reshape(finite.shape)[finite], right.reshape(finite.shape)[finite]
    if not left.size:
        return 0
    high, lower = np.maximum(left, right), np.minimum(left, right)
    return int((high.astype(np.uint64) - lower.astype(np.uint64)).max())


def load_arrays(path: str | os.PathLike[str], specs: Sequence[model_inputs.InputSpec]) -> dict[str, np.ndarray]:
    """Read the inputs of a model from an `.npz` file, one array an input, by its name.

    Raises:
        InputError: the file cannot be read, lacks an input, or an array has another dtype or shape than the input.
    """
    try:
        with zipfile.ZipFile(path), np.load(path, allow_pickle=False) as stored_arrays:
            arrays = {name: stored_arrays[name] for name in stored_arrays.files}
    except OSError as error:
        raise InputError(f"cannot read inputs from {path}: {error.strerror or error}") from error
    except (ValueError, EOFError, zipfile.BadZipFile, zlib.error) as error:
        raise InputError(f"{path} is no .npz file of arrays of numbers, as np.savez writes: {error}") from error
    result = {}
    for spec in specs:
        if spec.name not in arrays:
            raise InputError(
                f"{path} holds no array for input {spec.name!r}; it holds {', '.join(arrays) or 'nothing'}"
            )
        array = arrays[spec.name]
        wanted = None if spec.dtype is None or spec.dtype.name == "STRING" else spec.dtype.numpy()
        if wanted is not None and array.dtype.kind == "V":  # NumPy stores its own types only; these are bare bytes
            array = array.view(wanted)
        if wanted is not None and array.dtype != wanted:
            raise InputError(f"input {spec.name!r} is {wanted}, {path} holds {array.dtype}")
        result[spec.name] = array.astype(object) if wanted is None else array
    model_inputs.check_shapes(specs, {name: array.shape for name, array in result.items()})
    return result
