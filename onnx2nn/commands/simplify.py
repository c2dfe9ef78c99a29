"""The command `onnx2nn simplify`: folds constants and fuses operators, ONNX to ONNX."""

from __future__ import annotations

import argparse
from typing import Any

import onnx2nn
from onnx2nn.commands.model_inputs import ModelInputs, add_input_options
from onnx2nn.commands.options import add_limit_and_debug, add_onnx_path, count, positive, reading_of
from onnx2nn.commands.statuses import FAILED, OK
from onnx2nn.errors import MissingDependencyError
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.terminal import Terminal
from onnx2nn.output.simplify import Simplification

EXTRAS: tuple[str, ...] = ("simplify",)
"""What `pip install onnx2nn[...]` adds that the command needs."""


def add(commands: Any) -> None:
    """Adds the command to the subcommands of a parser."""
    parser = commands.add_parser("simplify", help="fold constants and fuse operators, ONNX to ONNX")
    parser.set_defaults(command=run)
    add_onnx_path(parser)
    parser.add_argument("simplify_path", metavar="M-simplify.onnx", help="where the simplified model is saved")
    add_input_options(parser)
    add_options(parser)
    add_limit_and_debug(parser)


def add_options(parser: argparse.ArgumentParser) -> None:
    """Adds the simplifier's options, which `convert` takes too."""
    group = parser.add_argument_group("simplifying")
    group.add_argument("--skip_shape_inference", action="store_true", help="leave out shape inference")
    group.add_argument("--skip_optimization", action="store_true", help="leave out the optimiser's rewrites")
    group.add_argument("--skip_constant_folding", action="store_true", help="leave out constant folding")
    group.add_argument(
        "--simplify_comparisons",
        type=count,
        default=3,
        metavar="N",
        help="random comparisons of the model before and after (default 3)",
    )
    group.add_argument(
        "--simplify_time_limit",
        type=positive,
        default=300.0,
        metavar="SECONDS",
        help="end the simplifier after this time and go on with the model as it was (default 300)",
    )


def given_options(arguments: argparse.Namespace) -> list[str]:
    """Returns the simplifier's options that have other values than by default."""
    parser = argparse.ArgumentParser(add_help=False)
    add_options(parser)
    defaults = vars(parser.parse_args([]))
    return [f"--{name}" for name, default in defaults.items() if getattr(arguments, name) != default]


def run(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Simplifies a model and saves it."""
    check_writable(arguments.simplify_path)
    simplification = simplified(arguments, ModelInputs.of(arguments).shapes, terminal)
    return OK if simplification and simplification.simplified else FAILED


def simplified(arguments: argparse.Namespace, given: dict[str, list[int]], terminal: Terminal) -> Simplification | None:
    """Simplifies as the options say; returns None where the simplifier is missing and no result was asked for."""
    try:
        with terminal.step(f"simplifying {arguments.onnx_path}"):
            simplification = onnx2nn.simplify(
                arguments.onnx_path,
                input_shapes=given,
                keep_dynamic=arguments.dynamic_input_shape,
                shape_inference=not arguments.skip_shape_inference,
                optimisation=not arguments.skip_optimization,
                constant_folding=not arguments.skip_constant_folding,
                comparisons=arguments.simplify_comparisons,
                time_limit=arguments.simplify_time_limit,
                **reading_of(arguments),
            )
    except MissingDependencyError as error:
        if arguments.simplify_path:
            raise
        terminal.line(f"not simplified, going on with the model as it was: {error}")
        return None
    terminal.line(simplification.report)
    if arguments.simplify_path and simplification.simplified:
        simplification.save(arguments.simplify_path)
        terminal.line(f"saved {arguments.simplify_path}")
    elif arguments.simplify_path:
        terminal.line(f"not written: {arguments.simplify_path}")
    return simplification
