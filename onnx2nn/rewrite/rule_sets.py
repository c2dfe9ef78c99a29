"""The rules of each sweep over a graph, imported where the graph has the operators that they need.

Most models need few of them, and a third of what an import of this package took was the parsing of all patterns.
"""

from __future__ import annotations

import functools
import importlib
import json
from collections.abc import Iterable, Iterator, Set
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from onnx2nn.rewrite.rewrite_rule import Rule

SWEEPS: tuple[tuple[str, ...], ...] = (
    ("reshape_transpose.POOLS", "sequences.RULES", "embeddings.RULES"),
    ("reshape_transpose.RULES", "normalization.CHANNELS_LAST", "count_nonzero.RULES"),
    ("linear_conv.RULES", "normalization.OF_JAX", "normalization.RULES", "activation.RULES", "rotary_embedding.RULES"),
    ("attention.RULES",),
    ("multihead_attention.RULES",),
)
"""The sets of rules of each sweep, from end to start: module of this package and name. Later sweeps match nodes that
earlier ones made."""

FOR_INFERENCE: tuple[tuple[str, ...], ...] = (("quantised_convolutions.RULES", "quantised_products.RULES"),)
"""The sets of further sweeps, whose replacements round otherwise."""


def all_rules(rule_sets: Iterable[str]) -> Iterator[Rule]:
    """Yields the rules of some sets, in their order."""
    for name in rule_sets:
        module, attribute = name.split(".")
        yield from getattr(importlib.import_module(f"onnx2nn.rewrite.{module}"), attribute)


def applicable_rules(rule_sets: Iterable[str], present: Set[str]) -> list[Rule]:
    """Returns the rules of some sets that may apply to a graph with the operators `present`."""
    sets = (name for name in rule_sets if any(needed <= present for needed in _needed().get(name, [frozenset()])))
    return [rule for rule in all_rules(sets) if rule.required_operators <= present]


@functools.cache
def _needed() -> dict[str, list[frozenset[str]]]:
    """Returns what `rule_sets.json` has: the operators one of which sets of them a graph needs, by set of rules.

    scripts/tables.py writes the file. A set of rules that it lacks is imported for every graph.
    """
    text = resources.files("onnx2nn.rewrite").joinpath("rule_sets.json").read_text(encoding="utf-8")
    return {name: list(map(frozenset, needed)) for name, needed in json.loads(text).items()}
