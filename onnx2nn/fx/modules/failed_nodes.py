"""The node of the file at a line of an imported module's program, for errors of a call."""

from __future__ import annotations

import linecache
import re
import traceback
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


def passed(error: BaseException) -> set[str]:
    """Returns the names of the nodes of programs that an error came through."""
    lines = traceback.walk_tb(error.__traceback__)
    return {node.name for frame, line in lines if (node := _node_at(frame, line)) is not None}


def _node(frame: FrameType, line: int) -> tuple[str, str]:
    node = _node_at(frame, line)
    _, operator, name = ("", "", "") if node is None else node.meta.get("onnx", ("", "", ""))
    return operator, name


def _node_at(frame: FrameType, line: int) -> fx.Node | None:
    module = frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return None
    assigned = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, line, frame.f_globals))
    return next((node for node in module.graph.nodes if assigned is not None and node.name == assigned[1]), None)


_PROGRAMS = failed_calls.Programs("<eval_with_key>", _OF_CALLS, _PACKAGES, _node)
