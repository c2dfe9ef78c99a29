"""Cases of the op table's rows, one file a family as in `onnx2nn/ops`: `CASES = [case("Relu", f32(2, 3)), ...]`.

`tests/test_cases.py` runs each case at every opset whose revision of the operator can express it.
"""

from __future__ import annotations

import importlib
import pkgutil
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np

Make = Callable[[np.random.Generator], np.ndarray]


@dataclass(frozen=True)
class Case:
    """One call of an operator.

    Attributes:
        operator: ONNX operator name.
        inputs: arrays, makers of arrays, or None for an absent optional input.
        attributes: in the newest revision's form.
        domain: operator domain.
        outputs: the number of outputs of the node.
        absent: positions of outputs that the node omits.
        types: position → numpy dtype of outputs whose type only the model declares.
        since: the first opset of the case; earlier revisions are not tried.
        until: the last opset of the case.
        constant: positions of inputs that are initializers rather than graph inputs.
        tolerance: relative to the output's scale; exact (0) for integers whatever this says.
        expected: outputs to compare with where no oracle is right; `why` gives the reason and their source.
    """

    operator: str
    inputs: tuple[Any, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)
    domain: str = ""
    outputs: int = 1
    absent: tuple[int, ...] = ()
    types: Mapping[int, Any] = field(default_factory=dict)
    since: int = 1
    until: int = 1 << 30
    constant: tuple[int, ...] = ()
    tolerance: float = 1e-5
    expected: Any = None
    why: str = ""
    note: str = ""

    def arrays(self) -> list[np.ndarray | None]:
        """Returns the inputs; the same at every call."""
        rng = np.random.default_rng(zlib.crc32(self.operator.encode()))
        values = (make(rng) if callable(make) else make for make in self.inputs)
        return [np.asarray(value) if isinstance(value, np.generic) else value for value in values]

    def __str__(self) -> str:
        attributes = ",".join(f"{k}={v}" for k, v in self.attributes.items() if not isinstance(v, np.ndarray))
        return f"{self.operator}[{self.note or attributes}]"[:100]


def case(operator: str, *inputs: Any, **options: Any) -> Case:
    """Returns a `Case`; options that are no fields of `Case` are attributes."""
    known = {
        name: options.pop(name) for name in list(options) if name in Case.__dataclass_fields__ and name != "attributes"
    }
    attributes = {**options.pop("attributes", {}), **options}
    return Case(operator, inputs, attributes, **known)


def by_formula(call: Case, formula: Callable[..., Any], why: str) -> Case:
    """Returns a case whose outputs are what a formula of its inputs and attributes says, where no oracle runs it.

    Args:
        call: the case without outputs.
        formula: takes the arrays and the attributes; returns an array, or a tuple of the outputs.
        why: why no oracle answers, and the formula's source.
    """
    found = formula(*call.arrays(), **call.attributes)
    return replace(call, expected=list(found) if isinstance(found, tuple) else [found], why=why)


def f32(*shape: int) -> Make:
    """Returns a maker of normally distributed float32."""
    return lambda rng: rng.standard_normal(shape).astype(np.float32)


def of(dtype: Any, *shape: int, low: float = -5, high: float = 5) -> Make:
    """Returns a maker of uniformly distributed values of `dtype` between `low` and `high`."""
    return lambda rng: rng.uniform(low, high, shape).astype(dtype)


def i64(*values: Any) -> np.ndarray:
    """Returns a 1-D int64 array."""
    return np.array(values, dtype=np.int64)


def all_cases() -> list[Case]:
    """Returns the cases of every family."""
    families = [module.name for module in pkgutil.walk_packages(__path__, f"{__name__}.") if not module.ispkg]
    return [case for family in families for case in importlib.import_module(family).CASES]
