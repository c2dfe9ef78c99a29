"""Sums the differences of a comparison node by node for each block of the module's tree."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from torch import fx

    from onnx2nn.verification.node_reports import NodeComparison

MOST_ROWS, MOST_LEVELS = 15, 4
"""Limits of the table of blocks: its rows, and the depth of blocks whose nodes all agree."""


@dataclass(frozen=True)
class BlockComparison:
    """The differences of the nodes in one block, those of blocks inside of it included.

    Attributes:
        path: of the block; `""` is the module itself.
        kind: the name of its class.
        nodes: how many values were compared in it.
        introduced: the sum over its nodes of the largest difference of an element that each introduces itself.
        inherited: the largest difference of an element in the values that come into it.
        total: the largest difference of an element in the values that others take from it.
        worst: the name of its node that introduces most; one over the threshold comes first, `""` is none.
        worst_introduced: what that node introduces.
        ok: whether no node in it introduces more than allowed.
    """

    path: str
    kind: str
    nodes: int
    introduced: float
    inherited: float
    total: float
    worst: str
    worst_introduced: float
    ok: bool

    @property
    def depth(self) -> int:
        """The number of blocks and lists around it."""
        return len(self.path.split(".")) if self.path else 0


def blocks_around(node: fx.Node, blocks: Mapping[str, str]) -> tuple[str, ...]:
    """Returns the paths of the blocks around a call of a flat program, from the module itself inwards."""
    from onnx2nn.fx.blocks.scopes import declared_scope

    path = declared_scope(node) or ()
    return ("", *(step for end in range(1, len(path) + 1) if (step := ".".join(path[:end])) in blocks))


def compare_blocks(program: fx.GraphModule, nodes: Sequence[NodeComparison]) -> list[BlockComparison]:
    """Returns the comparison of each block with compared nodes, each after the block around it.

    Args:
        program: the flat program of the module.
        nodes: the comparisons of its nodes.
    """
    blocks: dict[str, str] = program.meta.get("onnx2nn", {}).get("tree", {}).get("blocks", {})
    compared: dict[str, list[NodeComparison]] = {}
    for comparison in nodes:
        compared.setdefault(comparison.fx_node, []).append(comparison)
    members: dict[str, list[NodeComparison]] = {}
    taken: dict[str, float] = {}
    given: dict[str, float] = {}
    around: dict[fx.Node, tuple[str, ...]] = {}
    apart: dict[fx.Node, float] = {}  # the difference of a node's value; an unnamed one has that of what it reads
    for node in program.graph.nodes:
        around[node] = blocks_around(node, blocks)
        own = compared.get(node.name, ())
        totals = [comparison.total.max_abs for comparison in own]
        apart[node] = max(totals or (apart[used] for used in node.all_input_nodes), default=0.0)
        for path in around[node]:
            members.setdefault(path, []).extend(own)
        for used in node.all_input_nodes:
            for path in around[node]:
                if path and path not in around[used]:
                    taken[path] = max(taken.get(path, 0.0), apart[used])
            for path in around[used]:
                if path not in around[node] or node.op == "output":
                    given[path] = max(given.get(path, 0.0), apart[used])
    found = []
    for path, inside in members.items():
        if inside:
            worst = max(inside, key=lambda comparison: (not comparison.introduced.ok, comparison.introduced.max_abs))
            found.append(
                BlockComparison(
                    path,
                    blocks.get(path, type(program).__name__),
                    len(inside),
                    sum(comparison.introduced.max_abs for comparison in inside),
                    taken.get(path, 0.0),
                    given.get(path, 0.0),
                    worst.node if worst.introduced.max_abs or not worst.introduced.ok else "",
                    worst.introduced.max_abs,
                    all(comparison.introduced.ok for comparison in inside),
                )
            )
    # By their first calls: the flat program has no module for a block whose weights stay outside of it.
    first = {path: number for number, path in enumerate(members)}

    def place(path: str) -> list[int]:
        steps = path.split(".")
        return [first[step] for end in range(1, len(steps) + 1) if (step := ".".join(steps[:end])) in first]

    return sorted(found, key=lambda block: place(block.path))


def shown_blocks(blocks: Sequence[BlockComparison]) -> list[BlockComparison]:
    """Returns the blocks for a table: those with a node over the threshold, then those that introduce most."""
    known = [block for block in blocks if not block.ok or block.depth <= MOST_LEVELS]
    chosen = sorted(known, key=lambda block: (block.ok, bool(block.path), -block.introduced))[:MOST_ROWS]
    return [block for block in blocks if block in chosen]
