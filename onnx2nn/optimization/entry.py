"""What a compiled program demands of its inputs; the machine code itself reads whatever memory it is given."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch

from onnx2nn.errors import ModuleInputError
from onnx2nn.importing.inputs import InputSpec


@dataclass(frozen=True)
class Entry:
    """The inputs of a program.

    Attributes:
        names: of the inputs.
        dtypes: of each input.
        shapes: of each input: sizes, and names of sizes that may vary.
        ranges: the smallest and largest value of each named size.
        device: the type of device that the program runs on.
    """

    names: tuple[str, ...]
    dtypes: tuple[torch.dtype, ...]
    shapes: tuple[tuple[int | str, ...], ...]
    ranges: Mapping[str, tuple[int, int | None]]
    device: str = "cpu"

    def __str__(self) -> str:
        shapes = (f"{name} {self._shape(shape)}" for name, shape in zip(self.names, self.shapes, strict=True))
        return f"inputs: {', '.join(shapes) or 'none'}"

    def checked(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[torch.Tensor]:
        """Returns the inputs in order and contiguous, as the code reads them.

        Raises:
            ModuleInputError: their number, names, element types, devices or sizes are not those of the program.
        """
        if not kwargs and len(args) == len(self.names):
            given = list(args)
        else:
            given = self._in_order(args, kwargs)
        sizes: dict[str, int] = {}
        for index, value in enumerate(given):
            shape = self.shapes[index]
            if not isinstance(value, torch.Tensor) or value.dtype is not self.dtypes[index]:
                raise ModuleInputError(self._other_kind(index, value))
            if value.device.type != self.device:
                raise ModuleInputError(self._other_kind(index, value))
            found = value.shape
            if found != shape and (len(found) != len(shape) or not self._fits(shape, found, sizes)):
                raise ModuleInputError(self._refusal(self.names[index], shape, value))
        return [value.contiguous() for value in given]

    def _in_order(self, args: Sequence[Any], kwargs: Mapping[str, Any]) -> list[Any]:
        """Returns the inputs in order."""
        given = list(args) + [kwargs[name] for name in self.names[len(args) :] if name in kwargs]
        extra = [name for name in kwargs if name not in self.names[len(args) :]]
        if len(given) != len(self.names) or extra:
            raise ModuleInputError(
                f"The inputs are {', '.join(self.names) or 'none'}; {len(args)} and {[*kwargs]} given."
            )
        return given

    def _other_kind(self, index: int, value: Any) -> str:
        shown = f"{value.dtype} on {value.device}" if isinstance(value, torch.Tensor) else type(value).__name__
        place = "the CPU" if self.device == "cpu" else self.device
        return f"Input {self.names[index]!r} is a tensor of {self.dtypes[index]} on {place}; it was given {shown}."

    def _fits(self, wanted: tuple[int | str, ...], found: torch.Size, sizes: dict[str, int]) -> bool:
        for name, size in zip(wanted, found, strict=True):
            if isinstance(name, int):
                if size != name:
                    return False
                continue
            least, most = self.ranges[name]
            if sizes.setdefault(name, size) != size or size < least or (most is not None and size > most):
                return False
        return True

    def _refusal(self, name: str, shape: tuple[int | str, ...], value: torch.Tensor) -> str:
        return f"Input {name!r} was compiled for the shape {self._shape(shape)}; it was given {list(value.shape)}."

    def _shape(self, shape: tuple[int | str, ...]) -> str:
        named = [size for size in dict.fromkeys(shape) if isinstance(size, str)]
        least = ", ".join(f"{size} from {self.ranges[size][0]}{self._most(size)}" for size in named)
        return f"[{', '.join(map(str, shape))}]" + (f" ({least})" if least else "")

    def _most(self, size: str) -> str:
        most = self.ranges[size][1]
        return "" if most is None else f" to {most}"


def inputs_of(program: torch.export.ExportedProgram) -> list[Any]:
    """Returns what stands for the inputs of an exported program, tensors whose open sizes are `torch.SymInt`."""
    values = {node.name: node.meta.get("val") for node in program.graph.nodes if node.op == "placeholder"}
    return [values[str(name)] for name in program.graph_signature.user_inputs]


def size_range(program: torch.export.ExportedProgram, size: torch.SymInt) -> tuple[int, int | None]:
    """Returns the smallest and the largest value of an open size for which the program holds, None for no largest."""
    bounds = program.range_constraints.get(size.node.expr)
    if bounds is None:
        return 0, None
    return int(bounds.lower), int(bounds.upper) if bounds.upper.is_Integer else None


def entry_of(program: torch.export.ExportedProgram, specs: Sequence[InputSpec], device: torch.device) -> Entry:
    """Returns the entry of an exported program.

    Args:
        program: the program.
        specs: its inputs in the ONNX file, whose names of sizes are taken.
        device: where it runs.

    Raises:
        NotImplementedError: a size of an input is computed from others.
    """
    tensors, titles = inputs_of(program), dict[str, str]()
    shapes: list[tuple[int | str, ...]] = []
    ranges: dict[str, tuple[int, int | None]] = {}
    for tensor, spec in zip(tensors, specs, strict=True):
        shape: list[int | str] = []
        for size, title in zip(tensor.shape, spec.shape or tensor.shape, strict=True):
            if isinstance(size, int) or size.node.expr.is_number:
                shape.append(int(size))
                continue
            if not size.node.expr.is_symbol:
                raise NotImplementedError(f"a size of input {spec.name!r} is {size}")
            symbol = str(size.node.expr)
            free = isinstance(title, str) and title and title not in titles.values()
            name = titles.setdefault(symbol, title if free else symbol)
            shape.append(name)
            ranges[name] = size_range(program, size)
        shapes.append(tuple(shape))
    names = tuple(spec.name for spec in specs)
    return Entry(names, tuple(tensor.dtype for tensor in tensors), tuple(shapes), ranges, device.type)
