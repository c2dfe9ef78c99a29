"""Scopes of torch's older exporter that several modules share, and whose calls stand in them."""

from __future__ import annotations

import bisect
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from onnx2nn.ground.naming import without_call_number

P = TypeVar("P")


@dataclass
class _Run(Generic[P]):
    """Layers of one module, one after the other: where the first is, the module, the highest number of a call."""

    first: int
    module: P
    number: int


@dataclass
class SharedScope(Generic[P]):
    """A scope, and the modules of the layers in it in the order of the file.

    Where no `down` is called, `down[0].block[0](x)` and `down[1].block[0](x)` are both in the scope `block.0`. What
    stands in the second call has its number, `block.0.conv_1` and `block.0_1`; a layer that the first lacks has a
    lower one.
    """

    runs: list[_Run[P]] = field(default_factory=list)

    def add(self, position: int, module: P, number: int) -> None:
        """Adds a layer of a module, behind all others: its position in the file, and the number of its call."""
        if self.runs and self.runs[-1].module == module:
            self.runs[-1].number = max(self.runs[-1].number, number)
        else:
            self.runs.append(_Run(position, module, number))

    @property
    def is_shared(self) -> bool:
        """Whether layers of several modules stand in it."""
        return any(run.module != self.runs[0].module for run in self.runs)

    def module_of(self, position: int, number: int) -> P | None:
        """Returns the module of a call: of the layers next to it, those of the same number; None if none has it."""
        at = bisect.bisect(self.runs, position, key=lambda run: run.first)
        near = [run.module for run in self.runs[max(at - 1, 0) : at + 1] if run.number == number]
        return near[0] if len(near) == 1 else None


def numbered(step: str) -> tuple[str, int]:
    """Returns the name of a module and the number of its call, 0 for the first: `("gate", 1)` for `gate_1`."""
    name = without_call_number(step)
    return name, int(step[len(name) + 1 :] or 0)
