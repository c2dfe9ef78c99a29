"""The command `onnx2nn compile`: a model as a package of machine code."""

from __future__ import annotations

import argparse
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_options
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, reading_of
from onnx2nn.commands.verdict import report
from onnx2nn.errors import InputError
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras
from onnx2nn.ground.terminal import Terminal

_ENDING = ".pt2"

EXTRAS: tuple[str, ...] = ("torch", "verify")
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser(
        "compile",
        help="compile a model to machine code that runs without onnx2nn, compare it with ONNX Runtime",
        description="Compiles a model for this processor with torch's AOTInductor, which needs a C++ compiler. "
        "The package is read back with torch._inductor.aoti_load_package.",
    )
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument("-o", "--output", required=True, metavar="M.pt2", help="where the package is saved")
    add_input_options(parser)
    add_limit_and_debug(parser)


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Imports, compiles, saves and compares a model."""
    if not str(arguments.output).endswith(_ENDING):
        raise InputError(f"Cannot save {arguments.output}: a package ends in {_ENDING}.")
    check_writable(arguments.output)
    inputs, reading = ModelInputs.of(arguments), reading_of(arguments)
    open_ = arguments.dynamic_input_shape or not inputs.shapes
    sizes = inputs.sizes(batch=2 if open_ else 1)  # torch.export takes a 1 for a constant
    require_extras("Compiling a model", torch="torch", verify="onnxruntime")
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(arguments.onnx_path, input_shapes=None if open_ else inputs.shapes, **reading)
    with terminal.step("compiling, which takes minutes for large models"):
        module = onnx2nn.optimize(module, "compile", example_inputs=inputs.examples(sizes))
    with terminal.step(f"saving {arguments.output}"):
        written = onnx2nn.save(module, arguments.output, compiled=True)
    terminal.line(f"saved {arguments.output}: {written}")
    with terminal.step("comparing with ONNX Runtime"):
        result = onnx2nn.verify(arguments.onnx_path, module, input_shapes=sizes, seed=arguments.seed, **reading)
    return report(result, terminal)
