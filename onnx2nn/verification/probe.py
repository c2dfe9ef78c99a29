"""The oracle's value of anything in a model, on one set of inputs; writes one node as a model of its own."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from onnx import helper, numpy_helper

from onnx2nn.errors import InputError, VerificationError
from onnx2nn.ground import atomic_files
from onnx2nn.optable.registry import TABLE
from onnx2nn.verification.half_precision import may_have_halves, rounded
from onnx2nn.verification.noise import SMALLEST_WEIGHT
from onnx2nn.verification.oracle import Oracle, Stored


class Probe:
    """A model and one set of inputs: gives the oracle's value of anything in it.

    Args:
        source: path, bytes or ModelProto.
        feeds: an array for every input.
        folder: of the external data that a ModelProto refers to.

    Attributes:
        halves: the names of the values of float16 that nodes give; the oracle rounds them, see `half_precision`.

    Raises:
        VerificationError: no oracle can run the model.
    """

    def __init__(self, source: Stored, feeds: Mapping[str, np.ndarray], folder: str | None = None):
        self.feeds = feeds
        self.folder = folder
        if isinstance(source, onnx.ModelProto):
            self.model = source
        elif isinstance(source, bytes):
            self.model = onnx.load_from_string(source)
        else:
            self.folder = os.path.dirname(os.path.abspath(source))
            self.model = onnx.load(source, load_external_data=False)
        self.threads = threads_of(_operators(self.model.graph))
        self.halves: frozenset[str] = frozenset()
        if may_have_halves(self.model):
            self.halves = self._of_type("tensor(float16)")
        oracle = self.oracle_of(self.model)
        self.oracle = oracle.name
        self.outputs = oracle.run(feeds)
        self.producers = {name: node for node in self.model.graph.node for name in node.output if name}

    def oracle_of(self, model: onnx.ModelProto) -> Oracle:
        """Returns the oracle of a part of the model.

        Raises:
            VerificationError: no oracle can load it.
        """
        model = rounded(model, self.halves) if self.halves else model
        return Oracle(model, folder=self.folder, optimised=False, threads=self.threads)

    def _of_type(self, kind: str) -> frozenset[str]:
        """Returns the names of the nodes' results that have a type of ONNX Runtime's, none where it runs no part."""
        names = [name for node in self.model.graph.node for name in node.output if name]
        try:
            types = self.oracle_of(_with_outputs(self.model, names)).output_types
        except VerificationError:
            return frozenset()
        return frozenset(name for name, found in types.items() if found == kind)

    def values(self, names: Iterable[str]) -> dict[str, Any]:
        """Returns the oracle's values, without names for which it gives none (an empty optional)."""
        names = list(dict.fromkeys(names))
        known = {name: self.feeds[name] for name in names if name in self.feeds}
        return known | self._computed([name for name in names if name not in known])

    def _computed(self, names: list[str]) -> dict[str, Any]:
        if not names:
            return {}
        try:
            results = self.oracle_of(_with_outputs(self.model, names)).run(self.feeds)
        except VerificationError:
            half = len(names) // 2
            return self._computed(names[:half]) | self._computed(names[half:]) if half else {}
        return dict(zip(names, results, strict=True))

    def segment(self, output: str, known: Collection[str]) -> tuple[onnx.ModelProto, dict[str, np.ndarray]] | None:
        """Returns the nodes that compute a value from known ones, as a model, and the oracle's values of its inputs.

        Args:
            output: name of the value, the model's only output.
            known: names of values that vary at run time; the model's inputs are the nearest of them, inputs of the
                graph, and float weights. Other values that depend on none of these become initializers.

        Returns:
            None where one of these values is no tensor, or `output` no node's.
        """
        nodes, live, constants = self._between(output, known)
        names = [*live, *constants, output]
        values = self.values(names)
        if not nodes or any(not isinstance(values.get(name), (np.ndarray, np.generic)) for name in names):
            return None
        arrays = {name: np.asarray(values[name]) for name in names}
        live += [name for name in constants if _is_weight(arrays[name])]
        model = self._alone(nodes, live, [output], arrays, [*live, *constants])
        return model, {name: arrays[name] for name in live}

    def _between(self, output: str, known: Collection[str]) -> tuple[list[onnx.NodeProto], list[str], list[str]]:
        """Returns the nodes between known values and `output`, the known values, and the constants that they read."""
        wanted, waiting = set(), [output]
        live: dict[str, None] = {}
        constants: dict[str, None] = {}
        while waiting:
            name = waiting.pop()
            if name != output and (name in known or name in self.feeds):
                live[name] = None
            elif name not in self.producers:
                constants[name] = None
            elif name not in wanted:
                node = self.producers[name]
                wanted.update(node.output)
                waiting += _reads(node)
        nodes = [node for node in self.model.graph.node if wanted.intersection(filter(None, node.output))]
        return nodes, list(live), list(constants)

    def _alone(
        self,
        nodes: Sequence[onnx.NodeProto],
        live: Sequence[str],
        outputs: Sequence[str],
        arrays: Mapping[str, np.ndarray],
        read: Sequence[str] | None = None,
    ) -> onnx.ModelProto:
        """Returns nodes as a model; what they read and is not `live` becomes an initializer."""
        read = [name for node in nodes for name in _reads(node)] if read is None else read
        constants = [numpy_helper.from_array(_storable(arrays[key]), key) for key in read if key not in live]
        inputs = [_info(key, arrays[key]) for key in live]
        graph = helper.make_graph(nodes, "repro", inputs, [_info(key, arrays[key]) for key in outputs], constants)
        return helper.make_model(
            graph,
            opset_imports=self.model.opset_import,
            ir_version=self.model.ir_version,
            functions=self.model.functions,
        )

    def write_repro(self, folder: Path, name: str, compared: set[str]) -> Path:
        """Writes the node `name` as `NodeVerification.write_repro` says; the values `compared` vary at run time."""
        node = next((node for node in self.model.graph.node if name in (node_name(node), *node.output)), None)
        if node is None:
            raise InputError(f"The model has no node {name!r}. Name a node that verify_nodes lists.")
        values = self.values([*_reads(node), *(output for output in node.output if output)])
        for key in [*_reads(node), *node.output]:
            if key and not isinstance(values.get(key), (np.ndarray, np.generic)):
                raise InputError(f"Node {name!r} cannot be written as a model: its value {key!r} is no tensor.")
        arrays = {key: np.asarray(value) for key, value in values.items()}
        live = [key for key in _reads(node) if key in compared or key in self.feeds]
        outputs = [output for output in node.output if output]
        model = self._alone([node], live, outputs, arrays)
        files = {"inputs.npz": live, "expected.npz": outputs}
        with atomic_files.made_folder(folder), contextlib.ExitStack() as written:  # all appear or none
            for file, keys in files.items():
                contents: dict[str, Any] = {key: _storable(arrays[key]) for key in keys}
                np.savez(written.enter_context(atomic_files.replacing(folder / file)), **contents)
            path = written.enter_context(atomic_files.replacing(folder / "model.onnx"))
            path.write_bytes(model.SerializeToString())
        return folder / "model.onnx"


def _with_outputs(model: onnx.ModelProto, names: Iterable[str]) -> onnx.ModelProto:
    """Returns a model with other outputs."""
    found = onnx.ModelProto()
    found.CopyFrom(model)
    del found.graph.output[:]
    found.graph.output.extend(onnx.ValueInfoProto(name=name) for name in names)
    return found


def _reads(node: onnx.NodeProto) -> list[str]:
    """Returns the names of the values that a node and its subgraphs read from outside."""
    names = [name for name in node.input if name]
    for attribute in node.attribute:
        for graph in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
            own = {value.name for value in graph.input} | {tensor.name for tensor in graph.initializer}
            own |= {output for inner in graph.node for output in inner.output}
            used = [name for inner in graph.node for name in _reads(inner)] + [value.name for value in graph.output]
            names += [name for name in used if name not in own]
    return list(dict.fromkeys(names))


def threads_of(operators: Iterable[tuple[str, str]]) -> int:
    """Returns the number of ONNX Runtime's threads that gives the rows' results, 0 for any.

    Args:
        operators: domain and type of the model's operators.
    """
    return int(any("thread_dependent" in TABLE.traits_of(name, domain) for domain, name in set(operators)))


def _operators(graph: onnx.GraphProto) -> Iterator[tuple[str, str]]:
    for node in graph.node:
        yield node.domain, node.op_type
        for attribute in node.attribute:
            for inner in [*attribute.graphs, *([attribute.g] if attribute.HasField("g") else [])]:
                yield from _operators(inner)


def _is_weight(array: np.ndarray) -> bool:
    """Whether a constant may be moved by rounding; small ones are often scales that decide shapes."""
    return array.dtype.kind in "fV" and array.dtype.itemsize > 1 and array.size >= SMALLEST_WEIGHT


def _info(name: str, array: np.ndarray) -> onnx.ValueInfoProto:
    kind = onnx.TensorProto.STRING if array.dtype.kind in "OUS" else helper.np_dtype_to_tensor_dtype(array.dtype)
    return helper.make_tensor_value_info(name, kind, array.shape)


def _storable(array: np.ndarray) -> np.ndarray:
    """Returns strings as NumPy's own type: an array of objects can only be pickled."""
    return array.astype(str) if array.dtype == object else array


def node_name(node: onnx.NodeProto) -> str:
    """Returns a node's name, or its first output's where it has none."""
    return node.name or next((output for output in node.output if output), "?")


def operator_name(node: onnx.NodeProto) -> str:
    """Returns `domain::op_type`, without the domain for ai.onnx."""
    return f"{node.domain}::{node.op_type}" if node.domain else node.op_type
