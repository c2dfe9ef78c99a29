"""The command `oneflow2onnx`: exports the model that a Python function makes, or a saved job."""

from __future__ import annotations

import argparse
import importlib
import logging
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from oneflow_bridge.runtime import error_text, import_oneflow
from onnx2nn.commands import main as onnx2nn_command
from onnx2nn.commands.running import Parser, run
from onnx2nn.commands.statuses import OK
from onnx2nn.errors import InputError, UnsupportedModelError
from onnx2nn.ground.atomic_files import check_writable
from onnx2nn.ground.extras import require_extras

if TYPE_CHECKING:
    import onnx

    from onnx2nn.ground.terminal import Terminal

_EPILOG = (
    "examples:\n"
    "  oneflow2onnx mypackage.models:resnet50 --input x:1,3,224,224 --dynamic-batch -o resnet50.onnx \\\n"
    "      --report resnet50.html\n"
    "  oneflow2onnx mypackage.models:encoder --weights encoder_state --input ids:1,128:int64 \\\n"
    "      --dynamic ids:0=batch --dynamic ids:1=length --opset 18 -o encoder.onnx\n"
    "  oneflow2onnx folder_with_a_saved_job -o later.onnx     (oneflow_bridge.compile_job(model, x).save(folder))\n\n"
    "The model is traced at the sizes of --input, and once more for each dimension of --dynamic. The file is written\n"
    "when ONNX Runtime's outputs agree with OneFlow's; ops without an ONNX form are listed, all of them.\n\n"
    "exit status: 0 the file is written (and, unless --no-check, its outputs agree with OneFlow's),\n"
    "1 with --report, where the import of the written file differs from ONNX Runtime or is refused,\n"
    "2 the model or an option cannot be used, or the outputs differ"
)


def oneflow2onnx(arguments: Sequence[str] | None = None) -> int:
    """Runs the command.

    Args:
        arguments: the command line without the program's name; `sys.argv` if None.

    Returns:
        The exit status.
    """
    return run(_parser(), arguments)


def _parser() -> Parser:
    parser = Parser(prog="oneflow2onnx", description="Exports a OneFlow model to an ONNX file.", epilog=_EPILOG)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.set_defaults(command=_command)
    parser.add_argument(
        "model",
        help="module:factory, a function or class that gives an nn.Module or nn.Graph; or a folder with a saved job",
    )
    parser.add_argument(
        "--input",
        action="append",
        default=[],
        metavar="NAME:DIMS[:DTYPE]",
        help="an example input: x:1,3,224,224 or ids:1,128:int64",
    )
    parser.add_argument("-o", "--output", required=True, type=Path, help="the ONNX file")
    parser.add_argument("--opset", type=int, help="opset version (default: 17, or what the model needs)")
    parser.add_argument(
        "--extra-opset",
        action="append",
        default=[],
        metavar="DOMAIN:VERSION",
        help="a further operator set that the file declares, for a runtime's own operators: com.microsoft:1",
    )
    parser.add_argument(
        "--dynamic", action="append", default=[], metavar="NAME:AXIS=DIM", help="a dynamic dimension: x:0=batch"
    )
    parser.add_argument("--dynamic-batch", action="store_true", help="axis 0 of every input is dynamic")
    parser.add_argument("--weights", type=Path, help="a state dict (oneflow.save) that is loaded into the model")
    parser.add_argument("--output-name", action="append", dest="output_names", help="name of an output, in order")
    parser.add_argument("--external-data", action="store_true", default=None, help="write the weights to a file beside")
    parser.add_argument(
        "--report",
        type=Path,
        metavar="M.html",
        help="also the page that `onnx2nn report` writes of the file: its modules, graphs, weights, and the difference "
        "of its import from ONNX Runtime; needs PyTorch",
    )
    parser.add_argument("--no-optimize", action="store_true", help="write the job's ops one by one, unsimplified")
    parser.add_argument("--no-check", action="store_true", help="do not run the file in ONNX Runtime")
    parser.add_argument(
        "--continue-on-error", action="store_true", help="write ops without an ONNX form as custom operators"
    )
    parser.add_argument("-v", "--verbose", action="store_true", help="print the comparison's figures")
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")
    return parser


def _command(options: argparse.Namespace, terminal: Terminal) -> int:
    logging.basicConfig(level=logging.INFO if options.verbose else logging.WARNING, format="%(message)s")
    if options.report:
        check_writable(options.report)
        require_extras("--report", torch="torch", verify="onnxruntime")
    try:
        with terminal.step(f"exporting {options.model}"):
            proto = _export(options)
    except UnsupportedModelError as error:
        terminal.line(str(error))
        types = ", ".join(sorted({problem.operator for problem in error.problems}))
        raise InputError(f"ops without an ONNX form: {types}; reasons and advice stand above") from error
    terminal.line(f"{options.output}: opset {proto.opset_import[0].version}, {len(proto.graph.node)} nodes")
    return _report(options, terminal) if options.report else OK


def _report(options: argparse.Namespace, terminal: Terminal) -> int:
    """Writes the page of the file; returns the status that `onnx2nn report` ends with."""
    arguments = ["report", str(options.output), "-o", str(options.report)]
    for text in options.input:
        name, dims, *_ = text.split(":")
        arguments += ["--input_shape", f"{name}:{dims}"]
    parsed = onnx2nn_command.parser().parse_args(arguments)
    status: int = parsed.command(parsed, terminal)
    return status


def _export(options: argparse.Namespace) -> onnx.ModelProto:
    from oneflow_bridge.to_onnx.compiled_job import CompiledJob
    from oneflow_bridge.to_onnx.exporter import export

    saved = Path(options.model).is_dir()
    model = CompiledJob.load(options.model) if saved else _model(options.model, options.weights)
    named = [_input(text) for text in options.input]
    inputs = dict(named)
    if len(inputs) < len(named):
        raise InputError("--input names one input twice; give each name once.")
    if not inputs and not saved:
        raise InputError("No example input was given; name each one, as in --input x:1,3,224,224.")
    return export(
        model,
        () if saved else tuple(inputs.values()),
        options.output,
        opset=options.opset,
        dynamic=True if options.dynamic_batch else _dynamic(options.dynamic),
        external_data=options.external_data,
        optimize=not options.no_optimize,
        continue_on_error=options.continue_on_error,
        check=not options.no_check,
        input_names=None if saved else list(inputs),
        output_names=options.output_names,
        extra_opsets=dict(map(_opset, options.extra_opset)),
    )


def _model(text: str, weights: Path | None) -> Any:
    """Returns the model that `module:factory` makes, in eval mode."""
    module, _, factory = text.partition(":")
    if not factory:
        raise InputError(
            f"{text!r} is neither module:factory (as in mypackage.models:resnet50) nor a folder with a saved job."
        )
    flow = import_oneflow()
    sys.path.insert(0, str(Path.cwd()))
    try:
        make = getattr(importlib.import_module(module), factory)
    except (ImportError, AttributeError) as error:
        raise InputError(f"{text!r} cannot be imported: {error}") from error
    model = make() if callable(make) and not isinstance(make, (flow.nn.Module, flow.nn.Graph)) else make
    if weights is not None:
        _load_weights(flow, model, weights)
    return model.eval() if isinstance(model, flow.nn.Module) else model


def _load_weights(flow: Any, model: Any, path: Path) -> None:
    """Loads a state dict that `oneflow.save` wrote."""
    try:
        model.load_state_dict(flow.load(str(path)))
    except Exception as error:  # OneFlow raises errors of many kinds
        raise InputError(f"--weights {path} does not fit the model: {error_text(error)}") from error


def _input(text: str) -> tuple[str, Any]:
    """NAME:DIMS[:DTYPE] → name and a random tensor; an integer tensor holds zeros, which are valid indices."""
    flow = import_oneflow()
    parts = text.split(":")
    if len(parts) not in (2, 3):
        raise InputError(f"{text!r} is not NAME:DIMS or NAME:DIMS:DTYPE, as in x:1,3,224,224.")
    try:
        dims = [int(size) for size in parts[1].split(",") if size]
    except ValueError as error:
        raise InputError(f"{parts[1]!r} in {text!r} is not a list of sizes.") from error
    if min(dims, default=1) < 1:
        raise InputError(f"{parts[1]!r} in {text!r} has a size below 1; an example has at least one element.")
    dtype = getattr(flow, parts[2] if len(parts) == 3 else "float32", None)
    if not isinstance(dtype, flow.dtype):
        raise InputError(f"{parts[-1]!r} in {text!r} is not a OneFlow dtype.")
    return parts[0], flow.randn(*dims).to(dtype) if dtype.is_floating_point else flow.zeros(*dims, dtype=dtype)


def _opset(text: str) -> tuple[str, int]:
    """DOMAIN:VERSION → domain and version."""
    domain, _, version = text.rpartition(":")
    if not domain or not version.isdecimal():
        raise InputError(f"{text!r} is not DOMAIN:VERSION, as in com.microsoft:1.")
    return domain, int(version)


def _dynamic(texts: Sequence[str]) -> dict[str | int, dict[int, str]] | None:
    """NAME:AXIS=DIM → input name → axis → dimension name."""
    found: dict[str | int, dict[int, str]] = {}
    for text in texts:
        try:
            place, dimension = text.split("=")
            name, axis = place.rsplit(":", 1)
            found.setdefault(name, {})[int(axis)] = dimension
        except ValueError as error:
            raise InputError(f"{text!r} is not NAME:AXIS=DIM, as in x:0=batch.") from error
    return found or None
