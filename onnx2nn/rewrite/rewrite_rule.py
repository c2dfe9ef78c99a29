"""The parts of a rewrite rule: a pattern, the builder of its replacement, and sample inputs for comparing the two."""

from __future__ import annotations

import functools
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import onnx_ir as ir

from onnx2nn.rewrite.patterns import Match, required_operators, roots

if TYPE_CHECKING:
    from onnx2nn.rewrite.value_facts import ValueFacts

REPLACEMENT_OPSET = 28
"""The ai.onnx opset version of replacement nodes. It does not depend on the model's opset imports."""


class NewNode(NamedTuple):
    """A node of a replacement, before it is inserted into the graph.

    Attributes:
        operator: the operator type; `domain::name` for a domain other than ai.onnx.
        inputs: values of the graph, further new nodes, arrays that become Constant nodes, None for an absent input.
        attributes: the attribute values by name.
        version: the opset version of its domain whose operator it is.
        like: the matched nodes whose place in the author's code it gets. The last node of a replacement gets that of
            all of them.
    """

    operator: str
    inputs: tuple[ir.Value | NewNode | np.ndarray[Any, Any] | None, ...]
    attributes: Mapping[str, Any] = types.MappingProxyType({})
    version: int = REPLACEMENT_OPSET
    like: Sequence[ir.Node] = ()


def flat(weight: ir.Value) -> NewNode:
    """Returns the node that gives a weight one dimension: Reshape-1 has the shape as an attribute, without a node."""
    return NewNode("Reshape", (weight,), _ONE_DIMENSION, version=1)


_ONE_DIMENSION = {"shape": ir.AttrInt64s("shape", [-1])}


Sample = Mapping[str, "tuple[int, ...] | np.ndarray[Any, Any]"]
"""Sample inputs by the pattern's variable names: a shape, to be filled with random numbers, or an array."""


@dataclass(frozen=True, eq=False)
class Rule:
    """A pattern and its replacement.

    Attributes:
        name: the name in the report of the import.
        pattern: the pattern, in the notation of `patterns`.
        build: returns the replacement of a match, None where the rule does not apply to it.
        sample: returns the sample inputs on which the matched nodes and the replacement are compared. Constants that
            it does not name keep their values from the graph.
        shared: operators of matched nodes that may have readers outside, for which they stay.
        rounds: whether the result is rounded to steps of 1, and the replacement may give the next step where a number
            lies in the middle of two.
        repeats: attributes that say how often the nodes repeat one computation, and the most repetitions of a
            comparison, for which `sample` is made. The replacement has the attributes of the nodes.
        one_layer: whether the replacement is a layer that does what all nodes do: what the author computes in several
            modules is none.
    """

    name: str
    pattern: Any
    build: Callable[[Match, ValueFacts], NewNode | None]
    sample: Callable[[Match, ValueFacts], Sample]
    shared: frozenset[str] = frozenset()
    rounds: bool = False
    repeats: Mapping[str, int] = field(default_factory=dict)
    one_layer: bool = False

    @functools.cached_property
    def roots(self) -> frozenset[str]:
        """Operators of the last node, whose output the pattern matches."""
        return roots(self.pattern)

    @property
    def required_operators(self) -> frozenset[str]:
        """Operators that a graph must contain for the rule to apply."""
        return required_operators(self.pattern)


class Replacement(NamedTuple):
    """A replacement for some nodes of a graph.

    Attributes:
        rule: the name in the report of the import.
        nodes: the nodes to replace; the new nodes are inserted before the first of them.
        old: the outputs of `nodes` that have readers outside.
        added: the new nodes, in execution order.
        new: the values that replace `old`, in the same order.
        sample: sample inputs of the nodes: a shape, to be filled with random numbers, or an array.
        rounds: the rule's.
        larger: sample inputs with other sizes of dynamic dimensions, None where `sample` has none.
        repeats: the rule's.
    """

    rule: str
    nodes: Sequence[ir.Node]
    old: Sequence[ir.Value]
    added: Sequence[ir.Node]
    new: Sequence[ir.Value]
    sample: Mapping[ir.Value, Any]
    rounds: bool = False
    larger: Mapping[ir.Value, Any] | None = None
    repeats: Mapping[str, int] = types.MappingProxyType({})
