"""Names the node of the file at which a call of a module failed: a frame of the traceback is at its line of a program.

Nothing is noted for this at a call, and nothing of it costs time where the call succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from types import FrameType, TracebackType
from typing import NamedTuple

from onnx2nn.errors import CallError, Onnx2nnError, OperatorError, first_line, shown_name


class Programs(NamedTuple):
    """The generated programs of a framework's modules.

    Attributes:
        code: how the names of their files begin.
        errors: what the framework, NumPy and the bodies of operators raise for values; other subclasses of these say
            more, and stay what they are.
        packages: how the files of the framework, of NumPy and of this project begin.
        node: returns operator and name of the node at a line of a frame, two empty texts where it is none of the file.
        text: returns the message of an error.
    """

    code: str
    errors: tuple[type[Exception], ...]
    packages: tuple[str, ...]
    node: Callable[[FrameType, int], tuple[str, str]]
    text: Callable[[Exception], str] = first_line


def named(error: Exception, programs: Programs) -> Onnx2nnError | None:
    """Returns the error with the name of its node; None for one that is not a node's, such as a hook's.

    Args:
        error: of a call of an imported module, raised and caught.
        programs: the module's framework's.
    """
    if not isinstance(error, OperatorError) and type(error) not in programs.errors:
        return None
    frames = list(_frames(error.__traceback__))
    files = [frame.f_code.co_filename for frame, _ in frames]
    inside = [position for position, file in enumerate(files) if file.startswith(programs.code)]
    if not inside or not all(file.startswith(programs.packages) for file in files[inside[-1] + 1 :]):
        return None  # of a hook or an operator of the caller
    nodes = (programs.node(*frames[position]) for position in reversed(inside))
    operator, name = next(filter(any, nodes), ("", ""))
    if not operator:
        return None
    node = f"Node {shown_name(name)!r} ({shown_name(operator)})"
    if isinstance(error, OperatorError):
        return type(error)(f"{node}: {error}")
    told = f"{type(error).__name__}: {programs.text(error)}"
    text = f"{node} cannot be computed. Give inputs for which its operator is defined: {told}"
    return CallError.like(type(error), text)


def _frames(traceback: TracebackType | None) -> Iterator[tuple[FrameType, int]]:
    while traceback is not None:
        yield traceback.tb_frame, traceback.tb_lineno
        traceback = traceback.tb_next
