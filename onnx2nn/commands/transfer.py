"""The command `onnx2nn transfer`: writes the state of the author's own module, with the weights of an ONNX file."""

from __future__ import annotations

import argparse
import importlib
import sys
from pathlib import Path
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_shape, add_inputs, add_seed
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.statuses import OK
from onnx2nn.errors import InputError, first_line
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal

EXTRAS: tuple[str, ...] = ("torch", "export")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser(
        "transfer",
        help="fill a module of your own code with the weights of a file whose names are gone",
        description="Calls a function of your code, which builds the module, pairs its layers with those of the file "
        "by structure, and writes the module's state. Nothing is written unless all paired layers and outputs agree.",
    )
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument(
        "--model",
        type=_place,
        required=True,
        metavar="MODULE:CALLABLE",
        help="what builds the module, called without arguments: package.module:Class, or the name of a function; the "
        "current folder is searched first, and importing it runs its code",
    )
    parser.add_argument(
        "-o", "--output", metavar="M.safetensors", help="where the module's state is written; left out: only a report"
    )
    add_input_shape(
        parser, help="shape of an input, such as input:1,3,224,224; once for each input that the file leaves open"
    )
    add_inputs(parser)
    add_seed(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Builds the module, fills it and writes its state."""
    if arguments.output:
        if Path(arguments.output).suffix != ".safetensors":
            raise InputError(f"Cannot write {arguments.output}: the ending says no format. Name a .safetensors file.")
        check_writable(arguments.output)
    inputs = ModelInputs.of(arguments)
    require_extras("Transferring weights", torch="torch", export="onnxscript")
    model = _built(*arguments.model)
    with terminal.step(f"pairing {type(model).__name__} with {arguments.onnx_path}"):
        report = onnx2nn.transfer(arguments.onnx_path, model, **inputs.chosen(), **reading_of(arguments))
    *lines, verdict = str(report).splitlines()
    for line in lines:
        terminal.line(line)
    if arguments.output:
        terminal.line(f"saved {arguments.output}: {onnx2nn.save(model, arguments.output)}")
    terminal.verdict(verdict, good=True)
    return OK


def _place(text: str) -> tuple[str, str]:
    """Parses `MODULE:CALLABLE`."""
    module, colon, name = text.partition(":")
    if not colon or not all(part.isidentifier() for part in (*module.split("."), *name.split("."))):
        raise argparse.ArgumentTypeError(f"{text!r} is not MODULE:CALLABLE, such as package.networks:build")
    return module, name


def _built(module: str, name: str) -> Any:
    """Returns the module that a callable of the user's code builds.

    Raises:
        InputError: it cannot be imported or called, or gives something else; any error of that code is named.
    """
    import torch

    sys.path.insert(0, "")  # the current folder, as for `python -m`; modules of the code are imported later too
    try:
        found: Any = importlib.import_module(module)
        for part in name.split("."):
            found = getattr(found, part)
        model = found()
    except Exception as error:  # the user's code may raise anything
        raise InputError(f"--model {module}:{name}: {type(error).__name__}: {first_line(error)}") from error
    if not isinstance(model, torch.nn.Module):
        raise InputError(f"--model {module}:{name} gives a {type(model).__name__}, not an nn.Module.")
    return model
