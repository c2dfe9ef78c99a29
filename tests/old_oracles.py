"""Where older releases of the oracles give other answers than the newest, so that a case may differ from them."""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterator
from dataclasses import dataclass

import pytest

from tests import installed
from tests.cases import Case


@dataclass(frozen=True)
class Flaw:
    """An operator, or some cases of it, about which releases before `right` are wrong.

    Attributes:
        operator: its name.
        right: the first release whose answer is right.
        what: what the older ones do.
        cases: a pattern in the names of the cases that are concerned.
        since: the first revision that is concerned.
        until: the last one.
        oracle: the package that is wrong, onnxruntime, or onnx with its reference.
        fatal: the case cannot be asked: it ends the process, or no oracle takes it.
    """

    operator: str
    right: tuple[int, int]
    what: str
    cases: str = ""
    since: int = 1
    until: int = 1 << 30
    oracle: str = "onnxruntime"
    fatal: bool = False

    def __str__(self) -> str:
        names = {"onnxruntime": "ONNX Runtime", "onnx": "the reference of onnx"}
        installed_one, right = (".".join(map(str, v)) for v in (installed.version(self.oracle), self.right))
        return f"{names[self.oracle]} {installed_one} {self.what}; {right} does not"


_NO_KERNEL = "has no kernel of this revision, and onnx's reference"

FLAWS = [
    Flaw("Attention", (1, 28), "gives NaN where all keys are masked, or leaves the score outputs to onnx's reference"),
    Flaw(
        "AveragePool",
        (1, 29),
        "does not count the padding under ceil_mode",
        "ceil_mode=1.*count_include_pad=1",
        until=11,
    ),
    Flaw("AveragePool", (1, 25), "does not count the padding", "count_include_pad=1", since=19),
    Flaw("BitShift", (1, 27), "shifts by the type's size modulo that size"),
    Flaw("Cast", (1, 24), f"{_NO_KERNEL} writes numbers as Python does", "to text", since=24),
    Flaw("ExpandDims", (1, 32), "ends the process where the axis is a scalar or an initializer", r"\[\]", fatal=True),
    Flaw("GroupQueryAttention", (1, 24), "lets windows be one key longer", "local_window_size"),
    Flaw("GroupQueryAttention", (1, 24), "attends otherwise in a prompt whose scores are an output", "prompt"),
    Flaw("LinearClassifier", (1, 27), "gives the scores of two classes without their transformation"),
    Flaw("LpNormalization", (1, 25), f"{_NO_KERNEL} divides by the sum without absolute values", "p=1", since=22),
    Flaw("MatMulNBits", (1, 24), "takes no weights of 2 bits", "2 bits", fatal=True),
    Flaw("MatMulNBits", (1, 28), "takes no activations of 8 bits for these weights", "int8 activations", fatal=True),
    Flaw("MaxPool", (1, 29), "has no index for bytes that are as low as a pad", "as low as a pad"),
    Flaw("MultiHeadAttention", (1, 31), "reads a cache that has room, or one of beams, otherwise", "token"),
    Flaw("Pad", (1, 31), "wraps around once only", "more than once"),
    Flaw("QLinearSoftmax", (1, 32), "gives one number or another where there is an -inf", "-inf"),
    Flaw("QuantizeLinear", (1, 24), f"{_NO_KERNEL} does not saturate", "int", since=23),
    Flaw("QuantizeLinear", (1, 30), "divides float16 in another precision", "float16", since=19),
    Flaw(
        "Resize", (1, 27), "rounds halves of half_pixel_symmetric otherwise", "round_prefer_floor.*half_pixel_symmetric"
    ),
    Flaw("RNN", (1, 31), "leaves what a sequence of no steps gives to chance", "no steps"),
    Flaw("SVMClassifier", (1, 27), "gives the scores of two classes without their transformation", "LOGISTIC"),
    Flaw("TreeEnsembleClassifier", (1, 26), "gives votes for one class without their transformation", "LOGISTIC"),
    Flaw("Div", (1, 21), "divides whole numbers as floats", until=7, oracle="onnx"),
    Flaw("LpNormalization", (1, 21), "divides by a norm of 0", oracle="onnx"),
    Flaw("Resize", (1, 19), "lets whole numbers overflow", "overshoots", oracle="onnx"),
    Flaw("ScatterElements", (1, 22), "multiplies otherwise", "mul", oracle="onnx"),
    Flaw("TopK", (1, 18), "negates unsigned numbers", "uint", oracle="onnx"),
]


def flaw_of(case: Case, revision: int) -> Flaw | None:
    """Returns what the installed oracles get wrong about a case, None where nothing is known."""
    found = (flaw for flaw in FLAWS if concerns(flaw, case) and installed.version(flaw.oracle) < flaw.right)
    return next((flaw for flaw in found if flaw.since <= revision <= flaw.until), None)


def concerns(flaw: Flaw, case: Case) -> bool:
    """Returns whether a case is one of those that a flaw is about."""
    return case.operator == flaw.operator and re.search(flaw.cases, str(case)) is not None


def skip_fatal(case: Case, revision: int) -> None:
    """Skips a test whose oracle would end the process, or has no answer."""
    flaw = flaw_of(case, revision)
    if flaw is not None and flaw.fatal:
        pytest.skip(str(flaw))


@contextlib.contextmanager
def agreement(case: Case, revision: int) -> Iterator[None]:
    """Skips a test that finds a difference where an installed oracle is known to be wrong."""
    try:
        yield
    except AssertionError:
        flaw = flaw_of(case, revision)
        if flaw is None:
            raise
        pytest.skip(str(flaw))
