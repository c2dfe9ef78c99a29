"""What the command line says of a model's inputs: their sizes, their values, or the seed of random ones."""

from __future__ import annotations

import argparse
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from onnx2nn.commands.options import count, limits_of
from onnx2nn.errors import InputError
from onnx2nn.ground.limits import Account
from onnx2nn.importing import inputs
from onnx2nn.importing.inputs import InputSpec
from onnx2nn.reading import reader
from onnx2nn.verification.input_files import load_arrays

Shapes = Mapping[str, Sequence[int]]


@dataclass(frozen=True)
class ModelInputs:
    """The inputs of the model that a command line names.

    Attributes:
        specs: as the file has them.
        shapes: the sizes of those that `--input_shape` gives, and of those that follow from them.
        arrays: the values of `--inputs`, None without it.
        seed: of random values.
    """

    specs: Sequence[InputSpec]
    shapes: dict[str, list[int]]
    arrays: dict[str, np.ndarray] | None
    seed: int

    @classmethod
    def of(cls, arguments: argparse.Namespace) -> ModelInputs:
        """Reads the model's inputs, and what the arguments say of them.

        Raises:
            InputError: a limit, a shape or an array does not fit.
            LimitError: the file costs more than a limit allows.
            ModelFileError: it is not a readable model.
        """
        account = Account(limits_of(arguments))
        with reader.opened(arguments.onnx_path, follow_links=arguments.follow_links, account=account) as model:
            specs = inputs.input_specs(model)
        shapes = named_shapes(arguments.input_shape, specs)
        path = getattr(arguments, "inputs", None)
        return cls(specs, shapes, load_arrays(path, specs) if path else None, arguments.seed)

    def sizes(self, *, batch: int = 1) -> dict[str, tuple[int, ...]]:
        """Returns the sizes of all inputs, with a default for each that neither the file nor an option gives."""
        return inputs.resolve_shapes(self.specs, self.shapes, batch=batch)

    def examples(self, sizes: Shapes) -> list[Any]:
        """Returns random values of these sizes, in the model's order."""
        return list(inputs.example_inputs(self.specs, sizes, seed=self.seed).values())

    def chosen(self) -> dict[str, Any]:
        """Returns the arguments by which the package's functions take the sizes, the values and the seed."""
        given = {} if self.arrays is None else {"inputs": self.arrays}
        return {"input_shapes": self.shapes or None, "seed": self.seed, **given}


def add_inputs(parser: argparse._ActionsContainer, more: str = "") -> None:
    """Adds `--inputs`, the file of values; `more` stands behind its help."""
    parser.add_argument("--inputs", metavar="X.npz", help=f"arrays by input name, used instead of random inputs{more}")


def add_input_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    """Adds the options for the sizes and values of a model's inputs, and returns their group."""
    group = parser.add_argument_group("inputs")
    add_input_shape(
        group,
        help="shape of an input, such as input:1,3,224,224; once for each input that the file leaves open; the name "
        "may contain ':'; dims alone (1,3,224,224) mean the only input",
    )
    group.add_argument(
        "--dynamic_input_shape",
        action="store_true",
        help="use --input_shape for the comparisons only: sizes that the file leaves open stay open",
    )
    add_seed(group)
    return group


def add_input_shape(parser: argparse._ActionsContainer, *, help: str) -> None:
    """Adds `--input_shape`, which `named_shapes` reads."""
    parser.add_argument("--input_shape", action="append", type=input_shape, default=[], metavar="NAME:DIMS", help=help)


def add_seed(parser: argparse._ActionsContainer) -> None:
    """Adds `--seed`."""
    parser.add_argument("--seed", type=count, default=0, help="of the random inputs (default 0)")


def named_shapes(
    shapes: Sequence[tuple[str | None, list[int]]], specs: Sequence[InputSpec], option: str = "--input_shape"
) -> dict[str, list[int]]:
    """Returns the shapes by input name, with the shapes of other inputs that follow from them.

    Args:
        shapes: the values of `option`; a shape without a name is the only input's.
        specs: the model's inputs.
        option: for messages.

    Raises:
        InputError: a bare shape for a model with several inputs, an input named twice, or shapes that do not fit.
    """
    named: dict[str, list[int]] = {}
    for name, sizes in shapes:
        if name is None and len(specs) != 1:
            names = ", ".join(spec.name for spec in specs)
            dims = ",".join(map(str, sizes))
            raise InputError(f"{option} {dims}: the model has {len(specs)} inputs ({names}). Write NAME:{dims}.")
        name = specs[0].name if name is None else name
        if name in named:
            raise InputError(f"{option} gives input {name!r} twice. Give it once.")
        named[name] = sizes
    return {name: list(sizes) for name, sizes in inputs.fixed_shapes(specs, named).items()}


def input_shape(text: str) -> tuple[str | None, list[int]]:
    """Parses `NAME:DIMS` or `DIMS`."""
    name, colon, dims = text.rpartition(":")
    try:
        sizes = [int(size) for size in dims.split(",")] if dims or not colon else []
        if any(size < 1 for size in sizes):
            raise ValueError
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"{text!r} is not NAME:DIMS with positive sizes, such as input:1,3,224,224"
        ) from None
    return (name if colon else None), sizes
