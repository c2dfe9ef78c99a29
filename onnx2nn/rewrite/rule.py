"""What a rule is: a pattern, what it stands for, and values on which the two are compared."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.patterns import Match, needed

if TYPE_CHECKING:
    from onnx2nn.rewrite.facts import Facts

STANDARD = 28
"""The opset of ai.onnx in which replacements are written, whatever the model's is."""


@dataclass(frozen=True)
class New:
    """A node to put in place.

    Attributes:
        operator: its operator, `domain::name` where it is not one of ai.onnx.
        inputs: values of the graph, nodes that are new too, arrays that become constants, None.
        attributes: its attributes.
    """

    operator: str
    inputs: tuple[ir.Value | New | np.ndarray[Any, Any] | None, ...]
    attributes: Mapping[str, Any] = field(default_factory=dict)


Sample = Mapping[str, "tuple[int, ...] | np.ndarray[Any, Any]"]
"""Shapes of random values, or values, by the names of a pattern's variables."""


@dataclass(frozen=True)
class Rule:
    """A pattern and what it stands for.

    Attributes:
        name: what the user reads.
        pattern: see `patterns`.
        build: gives the replacement of a match, None where it is not what it looks like.
        sample: gives the values on which the matched nodes and the replacement are compared. Other constants are
            those of the graph.
    """

    name: str
    pattern: Any
    build: Callable[[Match, Facts], New | None]
    sample: Callable[[Match, Facts], Sample]

    @functools.cached_property
    def needs(self) -> frozenset[str]:
        """Operators without which it does not apply."""
        return needed(self.pattern)


@dataclass(frozen=True)
class Replacement:
    """Nodes to put in the place of others.

    Attributes:
        rule: what the user reads.
        nodes: the nodes to replace; the new ones take the place of the first.
        old: the values that others read of them.
        added: the new nodes, in the order of their execution.
        new: what stands for each of `old`.
        sample: shapes of random values, or values, of what the nodes read.
    """

    rule: str
    nodes: Sequence[ir.Node]
    old: Sequence[ir.Value]
    added: Sequence[ir.Node]
    new: Sequence[ir.Value]
    sample: Mapping[ir.Value, Any]
