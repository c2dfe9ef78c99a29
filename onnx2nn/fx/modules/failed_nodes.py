"""Names the node of the file at which a call failed: the program's line in the traceback is one of its nodes.

Nothing is noted for this at a call, and nothing of it costs time where the call succeeds.
"""

from __future__ import annotations

import linecache
import re
from collections.abc import Iterator
from pathlib import Path
from types import FrameType, TracebackType

import numpy as np
import torch
from torch import fx

from onnx2nn.errors import CallError, Onnx2nnError, OperatorError, first_line, shown_name
from onnx2nn.optable.row import NeedsValues

_OF_CALLS = (
    *(AttributeError, IndexError, KeyError, NotImplementedError, RuntimeError, TypeError, ValueError),
    *(OverflowError, ZeroDivisionError, NeedsValues, torch.linalg.LinAlgError),
)
"""What torch, NumPy and the bodies of operators raise for values; other subclasses say more, and stay what they are."""

_CODE = "<eval_with_key>"
"""How the names of generated programs begin, which are the files of their frames."""

_ASSIGNED = re.compile(r"\s*(\w+)\s*[:=]")
"""The name of the node at a line of a program: each line is the call of one."""

_PACKAGES = tuple(str(Path(file).parent) for file in (torch.__file__, np.__file__, Path(__file__).parents[1]))
"""How the files of torch, of what extends it (torchvision), of NumPy and of this project begin."""


def named(error: Exception) -> Onnx2nnError | None:
    """Returns the error with the name of its node; None for one that is not a node's, such as a hook's.

    Args:
        error: of a call of an imported module, raised and caught.
    """
    if not isinstance(error, OperatorError) and type(error) not in _OF_CALLS:
        return None
    frames = list(_frames(error.__traceback__))
    inside = [position for position, (frame, _) in enumerate(frames) if frame.f_code.co_filename.startswith(_CODE)]
    if not inside or not all(_is_known(frame) for frame, _ in frames[inside[-1] + 1 :]):
        return None
    node = next(filter(None, (_node(*frames[position]) for position in reversed(inside))), None)
    if node is None:
        return None
    if isinstance(error, OperatorError):
        return type(error)(f"Node {node}: {error}")
    text = f"Node {node} cannot be computed. Give inputs for which its operator is defined: {_told(error)}"
    return CallError.like(type(error), text)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next


def _is_known(frame: FrameType) -> bool:
    """Returns whether a frame is of torch, NumPy or this project, and not of a hook or an operator of the caller."""
    return frame.f_code.co_filename.startswith(_PACKAGES)


def _node(frame: FrameType, line: int) -> str:
    """Returns name and operator of the node at a line of a program, `""` where it is none of the file."""
    module = frame.f_locals.get("self")
    if not isinstance(module, fx.GraphModule):
        return ""
    assigned = _ASSIGNED.match(linecache.getline(frame.f_code.co_filename, line, frame.f_globals))
    found = (node for node in module.graph.nodes if assigned is not None and node.name == assigned[1])
    _, operator, name = next((node.meta.get("onnx", ("", "", "")) for node in found), ("", "", ""))
    return f"{shown_name(name)!r} ({shown_name(operator)})" if operator else ""


def _told(error: Exception) -> str:
    return f"{type(error).__name__}: {first_line(error)}"
