"""Cases of ONNX's own suite at the older revisions of their operators, for what a case list cannot express."""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import onnx
from onnx import checker, defs, numpy_helper
from onnx.backend.test.case.test_case import TestCase

from scripts.conformance_document import Pair
from tests import onnxnode

FAULTY_REFERENCE: frozenset[Pair] = frozenset({("", "AveragePool", 1)})
"""onnx.reference counts padding in AveragePool-1, as it takes the attribute count_include_pad, which that revision
lacks, for true; ONNX's own version converter takes it for 0, the default of the revision that brought it."""


class SuiteCase(NamedTuple):
    """A model of the suite, its inputs in the graph's order and the outputs stored for them."""

    name: str
    model: onnx.ModelProto
    inputs: list[Any]
    outputs: list[Any]

    def __str__(self) -> str:
        return self.name


def domain_of(name: str) -> str:
    return "" if name == "ai.onnx" else name


def versions(model: onnx.ModelProto) -> dict[str, int]:
    return {domain_of(opset.domain): opset.version for opset in model.opset_import}


@functools.cache
def node_cases() -> dict[tuple[str, str], list[SuiteCase]]:
    """Returns the suite's node and simple cases by domain and operator; those with functions expanded are left out."""
    from onnx.backend.test.loader import load_model_tests

    found: dict[tuple[str, str], list[SuiteCase]] = {}
    for test in [*load_model_tests(kind="node"), *load_model_tests(kind="simple")]:
        if "_expanded" not in test.name:
            case = _in_memory(test) if test.model is not None else _in_folder(test)
            for operator in {(domain_of(node.domain), node.op_type) for node in case.model.graph.node}:
                found.setdefault(operator, []).append(case)
    return found


def _in_memory(test: TestCase) -> SuiteCase:
    inputs, outputs = test.data_sets[0]
    return SuiteCase(test.name, test.model, [_value(v) for v in inputs], [_value(v) for v in outputs])


def _in_folder(test: TestCase) -> SuiteCase:
    model = onnx.load(str(Path(test.model_dir) / "model.onnx"))
    return SuiteCase(
        test.name, model, *(_values(test, kind, getattr(model.graph, kind)) for kind in ("input", "output"))
    )


def _values(test: TestCase, kind: str, infos: Iterable[onnx.ValueInfoProto]) -> list[Any]:
    values = []
    for position, info in enumerate(infos):
        path = Path(test.model_dir) / "test_data_set_0" / f"{kind}_{position}.pb"
        if not path.exists():  # an initializer gives it a default
            break
        data = path.read_bytes()
        if info.type.HasField("sequence_type"):
            values.append(numpy_helper.to_list(onnx.SequenceProto.FromString(data)))
        elif info.type.HasField("optional_type"):
            values.append(numpy_helper.to_optional(onnx.OptionalProto.FromString(data)))
        else:
            values.append(numpy_helper.to_array(onnx.TensorProto.FromString(data)))
    return values


def _value(stored: Any) -> Any:
    return numpy_helper.to_array(stored) if isinstance(stored, onnx.TensorProto) else stored


def pairs_of(model: onnx.ModelProto) -> Iterator[Pair]:
    """Yields operator and revision of the nodes of a model."""
    opsets = versions(model)
    for node in model.graph.node:
        domain = domain_of(node.domain)
        if defs.has(node.op_type, domain):
            yield domain, node.op_type, defs.get_schema(node.op_type, opsets.get(domain, 1), domain).since_version


@functools.cache
def rewritten(pair: Pair) -> tuple[SuiteCase, str] | None:
    """Returns a case of the suite in which `pair` stands, and who judges it: ONNX Runtime or the reference.

    The model's opset is set to that of the revision; the checker has to accept all its operators there. Where no
    oracle runs the model, the data stored for the newer revision stand in if one row of the op table gives both their
    meaning: the revisions then differ in types alone.
    """
    from onnx2nn.optable.registry import TABLE

    domain, operator, version = pair
    spare = None
    for case in node_cases().get((domain, operator), []):
        model = onnx.ModelProto()
        model.CopyFrom(case.model)
        for opset in model.opset_import:
            if domain_of(opset.domain) == domain:
                opset.version = version
        try:
            checker.check_model(model, full_check=True)
        except Exception:  # the checker's and the inference's errors share no base class
            continue
        feeds = {value.name: data for value, data in zip(model.graph.input, case.inputs, strict=False)}
        answer = None if pair in FAULTY_REFERENCE else onnxnode.answer(model, feeds)
        if answer is not None:
            return SuiteCase(case.name, model, case.inputs, answer[1]), answer[0]
        same = TABLE.find(domain, operator, version) is TABLE.find(domain, operator, versions(case.model)[domain])
        if spare is None and (same or pair in FAULTY_REFERENCE):
            spare = SuiteCase(case.name, model, case.inputs, case.outputs), "stored"
    return spare
