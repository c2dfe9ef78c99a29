"""Goes through the atoms of sizes and conditions without recursion: operations may lie thousands deep in each other."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from onnx2nn.sizes.conditions import Condition
from onnx2nn.sizes.expression import Atom, Number, Size, Symbol


def ordered_atoms(
    value: Any,
    wanted: Callable[[Atom], bool],
    instead: Callable[[Size], Iterable[Number] | None] = lambda size: None,
) -> list[Atom]:
    """Returns the atoms in a number or condition, each of them once and after those in its operands.

    An atom is younger than those in its operands, which its key holds; so their order is that of their numbers.

    Args:
        value: the number or condition.
        wanted: returns whether an atom is asked for; one that is not hides those in its operands.
        instead: returns the numbers that are gone through in the place of a sum; None for the sum itself.
    """
    pending, found = [value], set[Atom]()
    while pending:
        item = pending.pop()
        if isinstance(item, Condition):
            pending.extend(item.operands)
        elif isinstance(item, Size):
            numbers = instead(item)
            if numbers is not None:
                pending.extend(numbers)
                continue
            new = {atom for monomial, _ in item.terms for atom in monomial if atom not in found and wanted(atom)}
            found |= new
            pending.extend(operand for atom in new if not isinstance(atom, Symbol) for operand in atom.key[1:])
    return sorted(found, key=lambda atom: atom.number)
