"""The node of the file at a line of an imported module's program, for errors of a call."""

from __future__ import annotations

import linecache
import re
from pathlib import Path
from types import FrameType

import numpy as np
import torch
from torch import fx

from onnx2nn.errors import Onnx2nnError
from onnx2nn.ground import failed_calls
from onnx2nn.optable.row import NeedsValues

_OF_CALLS = (
    *(AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError),
    *(OverflowError, ZeroDivisionError, NeedsValues, torch.linalg.LinAlgError),
)

_ASSIGNED = re.compile(r"\s*(\w+)\s*[:=]")
"""The name of the node at a line of a program: each line is the call of one."""

_PACKAGES = tuple(str(Path(file).parent) for file in (torch.__file__, np.__file__, Path(__file__).parents[1]))
"""The folder of torch has what extends it (torchvision) beside it, with names that begin with its own."""


def named(error: Exception) -> Onnx2nnError | None:
    """Returns the error with the name of its node, see `failed_calls.named`."""
    return failed_calls.named(error, _PROGRAMS)


def _node(frame: FrameType, line: int) -> tuple[str, str]:
    module = frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return "", ""
    assigned = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, line, frame.f_globals))
    found = (node for node in module.graph.nodes if assigned is not None and node.name == assigned[1])
    _, operator, name = next((node.meta.get("onnx", ("", "", "")) for node in found), ("", "", ""))
    return operator, name


_PROGRAMS = failed_calls.Programs("<eval_with_key>", _OF_CALLS, _PACKAGES, _node)
