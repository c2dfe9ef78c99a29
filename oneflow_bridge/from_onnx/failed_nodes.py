"""The node of the file at a line of an imported module's forward, for errors of a call: the comment of the line."""

from __future__ import annotations

import ast
import io
import linecache
import tokenize
from pathlib import Path
from types import FrameType

import numpy as np

from oneflow_bridge.namespace.dtypes import flow
from oneflow_bridge.runtime import error_text
from onnx2nn.errors import Onnx2nnError
from onnx2nn.ground import failed_calls

CODE = "<onnx2nn "
"""How the names of compiled forwards begin."""

_OF_CALLS = (
    *(AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError),
    *(OverflowError, ZeroDivisionError, flow._oneflow_internal.exception.Exception),
)

_PACKAGES = tuple(
    str(Path(file).parent)
    for file in (flow.__file__, np.__file__, Path(failed_calls.__file__).parent, Path(__file__).parent)
)


def named(error: Exception) -> Onnx2nnError | None:
    """Returns the error with the name of its node, see `failed_calls.named`."""
    return failed_calls.named(error, _PROGRAMS)


def comment(operator: str, name: str) -> str:
    """Returns the comment of a line that computes a node."""
    return f"{operator} {name!r}"


def _node(frame: FrameType, line: int) -> tuple[str, str]:
    source = linecache.getline(frame.f_code.co_filename, line).strip()
    tokens = tokenize.generate_tokens(io.StringIO(source).readline)
    text = next((token.string for token in tokens if token.type == tokenize.COMMENT), "")
    operator, _, name = text.removeprefix("# ").partition(" ")
    return (operator, ast.literal_eval(name)) if name else ("", "")


_PROGRAMS = failed_calls.Programs(CODE, _OF_CALLS, _PACKAGES, _node, error_text)
