"""The dimensions that a caller wants to be dynamic."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Request:
    """Dimensions to make dynamic.

    Attributes:
        opened: the dimensions of every input, dynamic ones by name, None for one without a name.
        sizes: name of each dimension to make dynamic → its size in the file.
    """

    opened: Mapping[str, Sequence[int | str | None]]
    sizes: Mapping[str, int]

    def fixed(self) -> dict[str, list[int | str | None]]:
        """Returns the dimensions of every input as they are in the file."""
        return {
            name: [self.sizes.get(d, d) if isinstance(d, str) else d for d in dims]
            for name, dims in self.opened.items()
        }

    def axes(self, name: str) -> dict[str, int]:
        """Returns the first axis with a dimension for each input that has it."""
        return {key: list(dims).index(name) for key, dims in self.opened.items() if name in dims}

    def batch(self) -> str | None:
        """Returns the dimension that counts samples, None where none or several may do so.

        It is 1 in the file, and the first dimension of 1 of at least one of its inputs, such as `[1, C, H, W]` and,
        with the sequence first, `[T, 1, C]`. A length of 1 in `[1, 1]` is none.
        """
        fixed = self.fixed()
        found = [
            name
            for name, size in self.sizes.items()
            if size == 1
            and all(list(self.opened[key]).count(name) == 1 for key in self.axes(name))
            and any(fixed[key].index(1) == axis for key, axis in self.axes(name).items())
        ]
        return found[0] if len(found) == 1 else None
