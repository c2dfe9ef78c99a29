"""Case distinctions of sizes: what a minimum, a choice or a truncated quotient is, and when."""

from __future__ import annotations

from onnx2nn.sizes.conditions import Truth, at_least_zero, negation
from onnx2nn.sizes.expression import Atom, Number, Size, Truncated, floor_divide, multiply, subtract
from onnx2nn.sizes.selection import MOST_ALIKE, Choice, Extreme
from onnx2nn.sizes.traversal import ordered_atoms


def cases_of(size: Size) -> list[tuple[Atom, Number, list[Truth]]] | None:
    """Returns the cases of one atom: what it is, and the conditions that hold then; None where no atom has cases.

    Choices inside of other atoms, such as the divisor of a quotient, come last.
    """
    outer = sorted({atom for monomial, _ in size.terms for atom in monomial}, key=lambda atom: -atom.number)
    inner = (atom for atom in ordered_atoms(size, lambda atom: bool(atom.symbols)) if isinstance(atom, Choice))
    for atom in (*outer, *inner):
        if isinstance(atom, Extreme):
            kind, *numbers = atom.key
            if len(numbers) > MOST_ALIKE:
                continue
            sign = 1 if kind == "max" else -1
            return [
                (
                    atom,
                    one,
                    [at_least_zero(multiply(subtract(one, other), sign)) for other in numbers if other is not one],
                )
                for one in numbers
            ]
        if isinstance(atom, Choice):
            _, condition, a, b = atom.key
            return [(atom, a, [condition]), (atom, b, [negation(condition)])]
        if isinstance(atom, Truncated):
            _, a, b = atom.key
            if isinstance(b, int) and b > 0:
                below = multiply(floor_divide(multiply(a, -1), b), -1)
                positive = at_least_zero(a)
                return [(atom, floor_divide(a, b), [positive]), (atom, below, [negation(positive)])]
    return None
