"""Facts from ONNX's schemas about an operator at an opset: inputs, element types, the first opset that has it."""

from __future__ import annotations

import functools
from collections.abc import Mapping

import onnx
import onnx_ir as ir

from onnx2nn.errors import OperatorError


class NeedsOpsetError(OperatorError):
    """The op can be written only at a later opset."""

    def __init__(self, operator: str, opset: int):
        super().__init__(f"needs ONNX {operator}, which exists from opset {opset} on.")
        self.opset = opset


@functools.cache
def _schema(op_type: str, opset: int) -> onnx.defs.OpSchema:
    try:
        return onnx.defs.get_schema(op_type, opset, "")
    except onnx.defs.SchemaError:
        versions = [s.since_version for s in _all_schemas(op_type)]
        if not versions:
            raise OperatorError(f"needs ONNX {op_type}, which the installed onnx does not have.") from None
        raise NeedsOpsetError(op_type, min(versions)) from None


@functools.cache
def _all_schemas(op_type: str) -> tuple[onnx.defs.OpSchema, ...]:
    return tuple(s for s in onnx.defs.get_all_schemas_with_history() if s.name == op_type and s.domain == "")


@functools.cache
def allowed_types(op_type: str, opset: int) -> dict[str, frozenset[str]]:
    """Type variable → the type strings that it may stand for."""
    return {c.type_param_str: frozenset(c.allowed_type_strs) for c in _schema(op_type, opset).type_constraints}


@functools.cache
def formals(op_type: str, opset: int) -> tuple[tuple[str, ...], bool, tuple[str, ...]]:
    """Type strings of the inputs, whether the last input is variadic, type strings of the outputs.

    Raises:
        NeedsOpsetError: the operator came later.
        OperatorError: there is no such operator.
    """
    schema = _schema(op_type, opset)
    variadic = bool(schema.inputs) and schema.inputs[-1].option == onnx.defs.OpSchema.FormalParameterOption.Variadic
    return tuple(i.type_str for i in schema.inputs), variadic, tuple(o.type_str for o in schema.outputs)


TYPE_STRINGS = {dtype: f"tensor({dtype.name.lower()})" for dtype in ir.DataType}
"""Element type → its name in the schemas' type constraints."""

DATA_TYPES = {text: dtype for dtype, text in TYPE_STRINGS.items()}

FLOATS = frozenset({ir.DataType.FLOAT, ir.DataType.DOUBLE, ir.DataType.FLOAT16, ir.DataType.BFLOAT16})

_WIDER = {
    ir.DataType.BOOL: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.INT8: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.UINT8: (ir.DataType.INT32, ir.DataType.FLOAT),
    ir.DataType.INT32: (ir.DataType.INT64, ir.DataType.DOUBLE, ir.DataType.FLOAT),
    ir.DataType.INT64: (ir.DataType.DOUBLE, ir.DataType.FLOAT),
    ir.DataType.FLOAT16: (ir.DataType.FLOAT,),
    ir.DataType.BFLOAT16: (ir.DataType.FLOAT,),
}
"""Types to compute in where an operator's revision does not take a type, the nearest first.

The result is cast back, so small integers still wrap around.
"""

_LOSSY = frozenset(
    {
        (ir.DataType.INT64, ir.DataType.DOUBLE),
        (ir.DataType.INT64, ir.DataType.FLOAT),
        (ir.DataType.INT32, ir.DataType.FLOAT),
    }
)
_NEVER_WIDENED = frozenset({"Cast", "QuantizeLinear", "DequantizeLinear"})


def wider_types(op_type: str, opset: int, bound: Mapping[str, ir.DataType]) -> dict[str, ir.DataType]:
    """Returns the type to compute in for each type variable whose type this revision does not take.

    Args:
        op_type: ONNX operator.
        opset: the opset that is written.
        bound: type variable → the element type of its inputs.

    Raises:
        OperatorError: no wider type holds every value.
    """
    wide = {}
    allowed = allowed_types(op_type, opset)
    for kind, dtype in bound.items():
        if kind not in allowed or TYPE_STRINGS[dtype] in allowed[kind]:
            continue
        wider = next((w for w in _WIDER.get(dtype, ()) if TYPE_STRINGS[w] in allowed[kind]), None)
        if wider is None or op_type in _NEVER_WIDENED or (dtype, wider) in _LOSSY:
            raise OperatorError(f"ONNX {op_type} does not take {dtype.name} at opset {opset}.")
        wide[kind] = wider
    return wide
