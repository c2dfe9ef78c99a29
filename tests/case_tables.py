"""What the case lists say of operators and revisions, as `onnx2nn/optable/measured.json` and the docs hold it."""

from __future__ import annotations

import collections
import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import torch
from onnx import TensorProto, defs, helper
from onnxruntime.capi import onnxruntime_pybind11_state as runtime

import onnx2nn
from onnx2nn.fx.blocks.extended_layers import layer_of
from onnx2nn.optable.catalog import kinds
from onnx2nn.optable.registry import TABLE
from scripts import conformance, conformance_document
from scripts.conformance_document import Pair
from tests import onnxnode, suitecases
from tests.cases import Case, all_cases

DISTRIBUTED = {"Bernoulli", "Multinomial", "RandomNormal", "RandomNormalLike", "RandomUniform", "RandomUniformLike"}
"""Random operators: tests/test_random.py judges their distribution at every revision."""


def name_of(case: Case) -> str:
    """Returns the operator with its domain in front."""
    return f"{case.domain}.{case.operator}".lstrip(".")


def newest(cases: Iterable[Case]) -> Iterator[tuple[Case, onnx.ModelProto, dict[str, Any]]]:
    """Yields the cases that have a form in the operator's newest revision, with model and feeds."""
    for case in cases:
        revisions = onnxnode.revisions(case)
        if revisions and onnxnode.expressible(case, revisions[-1]):
            yield case, *onnxnode.model_of(case, revisions[-1])


def exportable(cases: Iterable[Case], known: Mapping[str, Sequence[int]]) -> Iterator[tuple[str, conformance.Recorder]]:
    """Yields operator and imported model of the cases of which torch.export is asked: sizes do not depend on data.

    Args:
        cases: of the case lists.
        known: what `measured.conformance` returns; operators of which ONNX's suite says enough are left out.
    """
    unknown = (c for c in cases if not (onnxnode.has_schema(c) and known.get(c.operator, (0, 0, 0))[2]))
    for case, model, feeds in newest(unknown):
        if conformance.shapes_depend_on_data(model):
            continue
        recorder = conformance.Recorder("torch").prepare(model)
        outputs = recorder.run(feeds)
        if all(isinstance(output, np.ndarray) and output.dtype != object for output in outputs):
            yield name_of(case), recorder  # strings, sequences and maps are no tensors


def exported(cases: Iterable[Case], known: Mapping[str, Sequence[int]]) -> dict[str, list[int]]:
    """Returns operator → how many of its cases pass torch.export, and of how many; see `exportable`."""
    found: dict[str, list[int]] = collections.defaultdict(lambda: [0, 0])
    for operator, recorder in exportable(cases, known):
        found[operator][0] += conformance.export_again(recorder)[0] == "passed"
        found[operator][1] += 1
    return dict(found)


def layers(cases: Iterable[Case]) -> dict[str, list[str]]:
    """Returns operator → the `torch.nn` layers that it becomes in the cases."""
    found: dict[str, set[str]] = collections.defaultdict(set)
    for case, model, _ in newest(case for case in cases if case.constant):
        classes = {layer_of(module) or type(module) for module in onnx2nn.load(model).modules()} - {torch.nn.Module}
        names = {kind.__name__ for kind in classes if kind.__module__.startswith("torch.nn.modules")}
        if names:
            found[name_of(case)] |= names
    return {operator: sorted(names) for operator, names in found.items()}


def types() -> dict[str, list[str]]:
    """Returns operator → its types, see `catalog.kinds`; of operators that onnx has no schema of.

    The schemas are ONNX Runtime's, of its own operators and of the experimental ones of ONNX's beginnings. An operator
    without one has the types of what its cases in the case lists expect.
    """
    rows = [row for row in TABLE if not row.any_attribute and not defs.has(row.operator, row.domain)]
    names = {(row.domain, row.operator) for row in rows}
    schemas = [schema for schema in runtime.get_all_operator_schema() if (schema.domain, schema.name) in names]
    found = {(s.domain, s.name): list(kinds(s)) for s in schemas if not s.deprecated}
    without: dict[tuple[str, str], list[Case]] = collections.defaultdict(list)
    for case in all_cases():
        if (case.domain, case.operator) in names - {(s.domain, s.name) for s in schemas}:
            without[case.domain, case.operator].append(case)
    found |= {name: list(kinds(_schema_of(cases))) for name, cases in without.items()}
    return {f"{domain}.{operator}".lstrip("."): types for (domain, operator), types in found.items()}


def _schema_of(cases: Iterable[Case]) -> Any:
    """Returns as much of a schema as `catalog.kinds` reads: the types of what the cases expect."""
    elements = {helper.np_dtype_to_tensor_dtype(case.expected[0].dtype) for case in cases if case.expected}
    types = [f"tensor({TensorProto.DataType.Name(element).lower()})" for element in elements]
    return SimpleNamespace(inputs=[], outputs=[SimpleNamespace(types=types)])


def judges(results: Sequence[conformance.Result]) -> dict[Pair, str]:
    """Returns who judges each pair: `onnxruntime`, `reference`, `stored` data or a `distribution`; `""` for nobody.

    The case lists (tests/test_cases.py runs them all) come first, then what the suite's cases that passed hold, then
    the suite's cases rewritten to older revisions (tests/test_revisions.py).
    """
    found = {pair: "distribution" if pair[1] in DISTRIBUTED else "" for pair in conformance_document.revisions()}
    for case in all_cases():
        for version in onnxnode.revisions(case):
            pair = (case.domain, case.operator, version)
            if found.get(pair) == "" and onnxnode.expressible(case, version):
                answer = onnxnode.oracle(case, version)
                found[pair] = answer[0] if answer else ""
    passed = {result.name for result in results if result.verdict == "passed"}
    for case in itertools.chain.from_iterable(suitecases.node_cases().values()):
        for pair in suitecases.pairs_of(case.model) if case.name in passed else ():
            found[pair] = found.get(pair) or "stored"
    for pair, judge in found.items():
        if not judge:
            rewritten = suitecases.rewritten(pair)
            found[pair] = rewritten[1] if rewritten else ""
    return found


def contrib() -> dict[str, str]:
    """Returns each operator of com.microsoft → who judges its cases, as `contrib_document.section` takes it."""
    names = {schema.name for schema in runtime.get_all_operator_schema() if schema.domain == "com.microsoft"}
    rows = {row.operator for row in TABLE if row.domain == "com.microsoft"}
    runs = {case.operator for case in all_cases() if case.domain == "com.microsoft" and case.expected is None}
    return {name: "" if name not in rows else "onnxruntime" if name in runs else "stored" for name in sorted(names)}


def reviewed(lines: Iterable[str]) -> list[str]:
    """Returns `lines`, a revision each, with those of the installed onnx that rows of the table serve."""
    served = {
        f"{schema.domain or 'ai.onnx'} {schema.name} {schema.since_version}"
        for schema in defs.get_all_schemas_with_history()
        if TABLE.find(schema.domain, schema.name, schema.since_version) and not schema.deprecated
    }
    return sorted({*lines, *served})
