"""One-node models from cases, at any opset, and what the oracles say of them."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Sequence
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import defs, helper, numpy_helper

from onnx2nn.optable.registry import TABLE
from tests.cases import Case


class NotExpressible(Exception):
    """The case has no form at this opset."""


def revisions(case: Case) -> list[int]:
    """Returns the opsets to try: the first of each revision of the operator, as far as the case says.

    An operator of which onnx has no schema has one revision, in which the case is used as it stands; an operator of
    the standard that is newer than the installed onnx has none.
    """
    if not has_schema(case):
        return [1] if case.domain or TABLE.revisions("", case.operator)[0].since == 1 else []
    versions = history()[case.domain, case.operator]
    return [version for version in versions if case.since <= version <= case.until]


@functools.cache
def history() -> dict[tuple[str, str], list[int]]:
    """Returns domain and operator → its revisions that are not deprecated, oldest first."""
    found: dict[tuple[str, str], set[int]] = {}
    for schema in defs.get_all_schemas_with_history():  # copies them all, which takes 5 ms
        versions = found.setdefault((schema.domain, schema.name), set())
        if not schema.deprecated:
            versions.add(schema.since_version)
    return {name: sorted(versions) for name, versions in found.items()}


def has_schema(case: Case) -> bool:
    return defs.has(case.operator, case.domain)


def expressible(case: Case, version: int) -> bool:
    """Returns whether the case has a form at opset `version`, without building it."""
    try:
        form(case, version)
    except NotExpressible:
        return False
    return True


def form(case: Case, version: int) -> tuple[list[Any], dict[str, Any]]:
    """Returns the case's inputs and attributes at opset `version`, as the schema takes them."""
    if not has_schema(case):
        return case.arrays(), dict(case.attributes)
    inputs, attributes = fit(case, version)
    allowed(schema_at(case, version), inputs, attributes)
    return inputs, attributes


def schema_at(case: Case, version: int) -> defs.OpSchema:
    try:
        return defs.get_schema(case.operator, version, case.domain)
    except defs.SchemaError as error:
        raise NotExpressible(str(error)) from None


def element_type(array: np.ndarray) -> int:
    if array.dtype == object or array.dtype.kind in "US":
        return onnx.TensorProto.STRING
    try:
        return helper.np_dtype_to_tensor_dtype(array.dtype)
    except (KeyError, ValueError):  # onnx before 1.19 has types of its own for int4 and float8 arrays
        raise NotExpressible(f"the installed onnx has no arrays of {array.dtype}") from None


def fit(case: Case, version: int) -> tuple[list[Any], dict[str, Any]]:
    """Returns the case's inputs and attributes in the form of opset `version`.

    An input that the older revision had as an attribute (axes, split, pads, k, min ...) becomes that attribute.
    """
    newest, schema = schema_at(case, 1 << 20 if not case.domain else version), schema_at(case, version)
    inputs, attributes = case.arrays(), dict(case.attributes)
    names = [p.name for p in newest.inputs]
    if len(names) and newest.inputs[-1].option == defs.OpSchema.FormalParameterOption.Variadic:
        return inputs, attributes
    older = {p.name.lower() for p in schema.inputs}
    for position in reversed(range(min(len(inputs), len(names)))):
        name = names[position]
        if position >= len(schema.inputs) or (
            name.lower() not in older and name.lower() in map(str.lower, schema.attributes)
        ):
            value = inputs.pop(position)
            attribute = next((a for a in schema.attributes if a.lower() == name.lower()), None)
            if value is None:
                continue
            if attribute is None:
                raise NotExpressible(f"no input {name}")
            attributes[attribute] = value.tolist()
    named = schema.attributes.get("to")
    if named is not None and named.type == defs.OpSchema.AttrType.STRING:  # Cast gave its type by name up to opset 5
        attributes["to"] = onnx.TensorProto.DataType.Name(attributes["to"])
    return inputs, attributes


def allowed(schema: defs.OpSchema, inputs: Sequence[Any], attributes: dict[str, Any]) -> None:
    """Raises NotExpressible where the schema does not take these."""
    unknown = set(attributes) - set(schema.attributes)
    if unknown:
        raise NotExpressible(f"no attribute {unknown}")
    if any(isinstance(value, (list, tuple)) and not value for value in attributes.values()):
        raise NotExpressible("an empty list as an attribute has no type")
    for name, value in schema.attributes.items():
        if value.required and name not in attributes:
            raise NotExpressible(f"attribute {name} is required")
    if len(inputs) > schema.max_input or len(inputs) < schema.min_input:
        raise NotExpressible("number of inputs")
    for position, value in enumerate(inputs):
        formal = schema.inputs[min(position, len(schema.inputs) - 1)]
        if value is None and formal.option == defs.OpSchema.FormalParameterOption.Single:
            raise NotExpressible(f"input {formal.name} is required")
        if isinstance(value, np.ndarray):
            kind = onnx.TensorProto.DataType.Name(element_type(value)).lower()
            kind = {"double": "double"}.get(kind, kind)
            if formal.types and f"tensor({kind})" not in formal.types:
                raise NotExpressible(f"type {kind} of input {formal.name}")


def model_of(case: Case, version: int, dynamic: bool = False) -> tuple[onnx.ModelProto, dict[str, np.ndarray]]:
    """Returns the case as a model at opset `version`, and its feeds; `dynamic` names every dimension."""
    inputs, attributes = form(case, version)
    names, infos, initializers, feeds = [], [], [], {}
    for position, value in enumerate(inputs):
        if value is None:
            names.append("")
            continue
        name = f"in{position}"
        names.append(name)
        kind = element_type(value)
        if position in case.constant:
            initializers.append(numpy_helper.from_array(value, name))
            continue
        # Equal sizes are one dimension; 1 and 0 stay, as they mean broadcasting and nothing at all.
        dims = [f"d{size}" if dynamic and size > 1 else size for size in value.shape]
        infos.append(helper.make_tensor_value_info(name, kind, dims))
        feeds[name] = value
    while names and not names[-1]:
        names.pop()
    outputs = ["" if i in case.absent else f"out{i}" for i in range(case.outputs)]
    tensors = {name: _attribute(case, version, name, value) for name, value in attributes.items()}
    node = helper.make_node(case.operator, names, outputs, name="node", domain=case.domain, **tensors)
    results = [
        helper.make_tensor_value_info(name, helper.np_dtype_to_tensor_dtype(np.dtype(case.types[i])), None)
        if i in case.types
        else helper.make_empty_tensor_value_info(name)
        for i, name in enumerate(outputs)
        if name
    ]
    graph = helper.make_graph([node], "case", infos, results, initializers)
    opsets = [helper.make_opsetid(case.domain, version)]
    if case.domain:
        opsets.append(helper.make_opsetid("", 17))
    ir_version = (
        helper.find_min_ir_version_for([helper.make_opsetid("", min(max(version, 8), 21))]) if not case.domain else 8
    )
    return helper.make_model(graph, opset_imports=opsets, ir_version=max(ir_version, 4)), feeds


def _attribute(case: Case, version: int, name: str, value: Any) -> Any:
    """Returns the value of an attribute in the type of its revision; a case states it for the newest one."""
    if isinstance(value, np.ndarray):
        return numpy_helper.from_array(value)
    known = onnx.defs.has(case.operator, case.domain)
    schema = onnx.defs.get_schema(case.operator, version, case.domain) if known else None
    kind = schema.attributes[name].type if schema is not None and name in schema.attributes else None
    if kind == onnx.defs.OpSchema.AttrType.FLOAT and isinstance(value, int):
        return float(value)
    if kind == onnx.defs.OpSchema.AttrType.INT and isinstance(value, (list, tuple)) and len(value) == 1:
        return value[0]
    return value


def oracle(case: Case, version: int) -> tuple[str, list[Any]] | None:
    """Returns who answers for a case at a revision, and the outputs; None where nobody can.

    Stored data, ONNX Runtime, else the reference; where neither runs this revision, what they say of the case in its
    form at the nearest one: it is one call, whose meaning the revisions share.
    """
    if case.expected is not None:
        return "stored", [np.asarray(item) for item in case.expected]
    for other in sorted(revisions(case), key=lambda other: abs(other - version)):
        with contextlib.suppress(NotExpressible):
            found = answer(*model_of(case, other))
            if found is not None:
                return found
    return None


def answer(model: onnx.ModelProto, feeds: dict[str, Any]) -> tuple[str, list[Any]] | None:
    """Returns who of ONNX Runtime and the reference runs `model`, and its outputs; None where neither does."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1  # DynamicQuantizeLSTM quantises each thread's sequences on their own
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    try:
        session = onnxruntime.InferenceSession(model.SerializeToString(), options)
        return "onnxruntime", session.run(None, feeds)
    except Exception:
        pass
    try:
        from onnx.reference import ReferenceEvaluator

        return "reference", ReferenceEvaluator(model).run(None, feeds)
    except Exception:
        return None


def assert_close(actual: Any, expected: Any, tolerance: float) -> None:
    """Compares outputs: integers, bools and strings exactly, floats relative to the output's scale, NaN and inf too."""
    if isinstance(expected, (list, tuple)):
        assert len(actual) == len(expected)
        for a, e in zip(actual, expected, strict=True):
            assert_close(a, e, tolerance)
        return
    if expected is None:
        assert actual is None
        return
    actual, expected = np.asarray(actual), np.asarray(expected)
    assert actual.shape == expected.shape, f"shape {actual.shape}, expected {expected.shape}"
    if expected.dtype.kind in "biuOUS":
        assert actual.dtype == expected.dtype or expected.dtype.kind in "OUS", (actual.dtype, expected.dtype)
        np.testing.assert_array_equal(actual, expected)
        return
    assert actual.dtype == expected.dtype, f"dtype {actual.dtype}, expected {expected.dtype}"
    wide = np.complex128 if expected.dtype.kind == "c" else np.float64
    actual, expected = actual.astype(wide), expected.astype(wide)
    finite = expected[np.isfinite(expected)]
    scale = np.abs(finite).max() if finite.size else 1.0
    np.testing.assert_allclose(actual, expected, rtol=tolerance, atol=tolerance * max(scale, 1e-30))
