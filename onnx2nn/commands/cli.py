"""The commands `onnx2pytorch` and `onnx2nn`: each subcommand is one function of the parsed arguments."""

from __future__ import annotations

import argparse
import contextlib
import importlib.metadata
import json
import os
import signal
import sys
import threading
import traceback
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from onnx2nn.errors import InputError, MissingDependencyError, Onnx2nnError, UnsupportedModelError
from onnx2nn.ground.terminal import Terminal

if TYPE_CHECKING:
    import onnx

    from onnx2nn.importing.inputs import InputSpec
    from onnx2nn.output.simplify import Simplification
    from onnx2nn.verification.node_by_node import Gap, NodeVerification
    from onnx2nn.verification.outputs import Verification

# Exit status: what was asked for holds; a comparison or check failed; the input or the arguments cannot be used.
OK, FAILED, UNUSABLE, INTERRUPTED, UNREAD = 0, 1, 2, 130, 141

_EXIT_STATUS = (
    "exit status: 0 outputs agree, 1 they differ or the check failed, 2 the input or an option cannot be used"
)


def onnx2pytorch(arguments: Sequence[str] | None = None) -> int:
    """The command `onnx2pytorch`: convert one ONNX file, compare with ONNX Runtime, save.

    Args:
        arguments: the command line without the program's name; `sys.argv` if left out.

    Returns:
        The exit status.
    """
    parser = _Parser(
        prog="onnx2pytorch",
        description="Turn an ONNX file into a PyTorch module with its weights, compare its outputs with ONNX Runtime's "
        "on the same seeded input, and save it.",
        epilog=_EXIT_STATUS,
    )
    files = parser.add_argument_group("files")
    files.add_argument("--onnx_path", required=True, metavar="M.onnx", help="the ONNX file")
    files.add_argument("--pytorch_path", metavar="M.pth", help=_PYTORCH_PATH_HELP)
    _add_convert_options(parser, simplify_by_default=True)
    parser.set_defaults(python=None)
    return _run(parser, arguments, convert)


def main(arguments: Sequence[str] | None = None) -> int:
    """The command `onnx2nn`, with its subcommands.

    Args:
        arguments: the command line without the program's name; `sys.argv` if left out.

    Returns:
        The exit status.
    """
    parser = _Parser(prog="onnx2nn", description="ONNX files as live nn.Modules.", epilog=_EXIT_STATUS)
    parser.add_argument("--version", action="version", version=f"onnx2nn {_version()}")
    commands = parser.add_subparsers(title="commands", metavar="COMMAND", required=True)
    for add in (_add_convert, _add_check, _add_verify, _add_simplify, _add_ncnn, _add_ops):
        add(commands)
    return _run(parser, arguments, None)


def _add_convert(commands: Any) -> None:
    parser = commands.add_parser("convert", help="import a model, compare it with ONNX Runtime, save it")
    parser.set_defaults(command=convert)
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")
    parser.add_argument("pytorch_path", metavar="M.pth", nargs="?", help=_PYTORCH_PATH_HELP)
    parser.add_argument("--python", metavar="FOLDER", help="gets the model as source: model.py, weights.safetensors")
    _add_convert_options(parser, simplify_by_default=False)


def _add_check(commands: Any) -> None:
    parser = commands.add_parser("check", help="list everything in a model that cannot be imported")
    parser.set_defaults(command=check)
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")
    _add_debug(parser)


def _add_verify(commands: Any) -> None:
    parser = commands.add_parser("verify", help="compare the imported model with ONNX Runtime, node by node")
    parser.set_defaults(command=verify)
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")
    _add_input_options(parser)
    parser.add_argument(
        "--inputs", metavar="X.npz", help="arrays by input name, used instead of random inputs (then one comparison)"
    )
    parser.add_argument(
        "--tolerance",
        type=_positive,
        metavar="T",
        help="largest difference that a node may introduce, relative to the largest magnitude of its output",
    )
    parser.add_argument(
        "--memory_limit",
        type=_positive,
        default=2.0,
        metavar="GIB",
        help="intermediate values held at a time; more come from several sessions of ONNX Runtime (default 2)",
    )
    parser.add_argument("--repro", metavar="FOLDER", help="write the first node over the threshold there, as a model")
    parser.add_argument("--json", action="store_true", help="print the comparison as JSON, and nothing else")
    parser.add_argument(
        "--comparisons", type=_count, default=3, metavar="N", help="number of random inputs (default 3)"
    )
    _add_debug(parser)


def _add_simplify(commands: Any) -> None:
    parser = commands.add_parser("simplify", help="fold constants and fuse operators, ONNX to ONNX")
    parser.set_defaults(command=simplify)
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")
    parser.add_argument("simplify_path", metavar="M-simplify.onnx", help="where the simplified model is saved")
    _add_input_options(parser)
    _add_simplify_options(parser)
    _add_debug(parser)


def _add_ncnn(commands: Any) -> None:
    parser = commands.add_parser("ncnn", help="take a model on to NCNN and compare it there, in fp32 and fp16")
    parser.set_defaults(command=ncnn)
    parser.add_argument("onnx_path", metavar="M.onnx", help="the ONNX file")
    parser.add_argument("-o", "--output", required=True, metavar="FOLDER", help="gets M.param, M.bin and M.fp16.*")
    parser.add_argument(
        "--input_shape",
        action="append",
        type=_input_shape,
        default=[],
        metavar="NAME:DIMS",
        help="shape of an input that the file leaves open, as for convert; an open batch is 1",
    )
    parser.add_argument("--seed", type=_count, default=0, help="of the random inputs (default 0)")
    _add_debug(parser)


def _add_ops(commands: Any) -> None:
    parser = commands.add_parser("ops", help="list the operators that can be imported")
    parser.set_defaults(command=ops)
    _add_debug(parser)


_PYTORCH_PATH_HELP = (
    "where the PyTorch model is saved; the ending says how: .pth or .pt the whole module, .safetensors its weights, "
    ".pt2 a torch.export program, .torchscript a traced module; left out: only compared"
)


def _add_convert_options(parser: argparse.ArgumentParser, *, simplify_by_default: bool) -> None:
    parser.add_argument(
        "--simplify_path",
        metavar="M-simplify.onnx",
        help="where the simplified ONNX model is saved (dropout and constants folded)",
    )
    inputs = _add_input_options(parser)
    inputs.add_argument(
        "--dynamic",
        action="append",
        type=_dynamic_axis,
        default=[],
        metavar="NAME:AXIS=DIM",
        help="free a dimension that the file fixes, such as input:0=batch; once for each; equal names are equal sizes; "
        "the file is then imported as it is, unsimplified",
    )
    _add_simplify_options(parser)
    if simplify_by_default:
        parser.add_argument(
            "--skip_simplify", dest="simplify", action="store_false", help="import the file as it is, unsimplified"
        )
    else:
        parser.add_argument(
            "--simplify", action="store_true", help="simplify before the import (--simplify_path implies it)"
        )
    _add_debug(parser)


def _add_input_options(parser: argparse.ArgumentParser) -> argparse._ArgumentGroup:
    group = parser.add_argument_group("inputs")
    group.add_argument(
        "--input_shape",
        action="append",
        type=_input_shape,
        default=[],
        metavar="NAME:DIMS",
        help="shape of an input, such as input:1,3,224,224; once for each input that the file leaves open; the name "
        "may contain ':'; dims alone (1,3,224,224) mean the only input",
    )
    group.add_argument(
        "--dynamic_input_shape",
        action="store_true",
        help="use --input_shape for the comparisons only: sizes that the file leaves open stay open",
    )
    group.add_argument("--seed", type=_count, default=0, help="of the random inputs (default 0)")
    return group


def _add_simplify_options(parser: argparse.ArgumentParser) -> None:
    group = parser.add_argument_group("simplifying")
    group.add_argument("--skip_shape_inference", action="store_true", help="leave out shape inference")
    group.add_argument("--skip_optimization", action="store_true", help="leave out the optimiser's rewrites")
    group.add_argument("--skip_constant_folding", action="store_true", help="leave out constant folding")
    group.add_argument(
        "--simplify_comparisons",
        type=_count,
        default=3,
        metavar="N",
        help="random comparisons of the model before and after (default 3)",
    )
    group.add_argument(
        "--simplify_time_limit",
        type=float,
        default=300.0,
        metavar="SECONDS",
        help="end the simplifier after this time and go on with the model as it was (default 300)",
    )


def _add_debug(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--debug", action="store_true", help="show warnings, and the traceback of an error")


def convert(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Simplify, import, compare, save."""
    import onnx2nn
    from onnx2nn.ground.atomic_files import check_writable
    from onnx2nn.ground.extras import require
    from onnx2nn.importing import inputs
    from onnx2nn.output.save import check_target
    from onnx2nn.reading import reader

    if arguments.pytorch_path:
        check_target(arguments.pytorch_path)
    if arguments.simplify_path:
        check_writable(arguments.simplify_path)
    specs = inputs.input_specs(reader.read(arguments.onnx_path))
    given = _named_shapes(arguments.input_shape, specs)
    sizes = inputs.resolve_shapes(specs, given)
    with terminal.step("loading PyTorch and ONNX Runtime"):
        require("torch", extra="torch", purpose="Importing into PyTorch")
        require("onnxruntime", extra="verify", purpose="Comparing with ONNX Runtime")

    model: str | onnx.ModelProto = arguments.onnx_path
    freed = _freed_axes(arguments.dynamic)
    if (arguments.simplify and not freed) or arguments.simplify_path:
        simplification = _simplify(arguments, given, terminal)
        model = simplification.model if simplification and simplification.simplified and not freed else model
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(
            model, input_shapes=None if arguments.dynamic_input_shape else given, dynamic=freed or None
        )
    with terminal.step("comparing with ONNX Runtime"):
        result = onnx2nn.verify(arguments.onnx_path, module, input_shapes=given, seed=arguments.seed)
    if arguments.pytorch_path:
        with terminal.step(f"saving {arguments.pytorch_path}"):
            open_axes = _open_axes(specs, () if arguments.dynamic_input_shape else given)
            open_axes = {name: axes | freed.get(name, {}) for name, axes in open_axes.items()}
            example = inputs.example_inputs(specs, _export_sizes(sizes, open_axes, result), seed=arguments.seed)
            written = onnx2nn.save(
                module,
                arguments.pytorch_path,
                example_inputs=list(example.values()),
                dynamic_axes=[open_axes[spec.name] for spec in specs],
            )
        terminal.line(f"saved {arguments.pytorch_path}: {written}")
    if arguments.python:
        with terminal.step(f"writing source to {arguments.python}"):
            given_inputs = list(inputs.example_inputs(specs, sizes, seed=arguments.seed).values())
            written = onnx2nn.to_python(module, arguments.python, example_inputs=given_inputs)
        terminal.line(f"wrote {written}")
    return _report(result, terminal)


def _simplify(arguments: argparse.Namespace, given: dict[str, list[int]], terminal: Terminal) -> Simplification | None:
    """Simplify as the options say; None where the simplifier is not installed and its result was not asked for."""
    import onnx2nn

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


def _open_axes(specs: Sequence[InputSpec], fixed: Any) -> dict[str, dict[int, str]]:
    """The axes of every input that stay open, axis → name."""
    return {
        spec.name: {}
        if spec.name in fixed
        else {axis: size for axis, size in enumerate(spec.shape or ()) if isinstance(size, str)}
        for spec in specs
    }


def _export_sizes(
    sizes: dict[str, tuple[int, ...]], open_axes: dict[str, dict[int, str]], result: Verification
) -> dict[str, tuple[int, ...]]:
    """Sizes to trace with: 2 instead of 1 on open axes, as torch.export takes a 1 for a constant."""
    if result.notes:  # the file only claims that the axis is open
        return sizes
    return {
        name: tuple(2 if size == 1 and axis in open_axes[name] else size for axis, size in enumerate(shape))
        for name, shape in sizes.items()
    }


def check(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print everything that cannot be imported."""
    import onnx2nn

    report = onnx2nn.check(arguments.onnx_path)
    terminal.line(str(report))
    return FAILED if report.problems else OK


def verify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Import, compare the outputs, then every node."""
    import onnx2nn
    from onnx2nn.importing import inputs
    from onnx2nn.reading import reader
    from onnx2nn.verification import node_by_node

    terminal = Terminal(silent=True) if arguments.json else terminal
    specs = inputs.input_specs(reader.read(arguments.onnx_path))
    given = _named_shapes(arguments.input_shape, specs)
    arrays = node_by_node.load_arrays(arguments.inputs, specs) if arguments.inputs else None
    if arrays is not None:
        given = {name: list(array.shape) for name, array in arrays.items()}
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(arguments.onnx_path, input_shapes=None if arguments.dynamic_input_shape else given)
    chosen: dict[str, Any] = {"input_shapes": given, "inputs": arrays, "seed": arguments.seed}
    with terminal.step("comparing with ONNX Runtime"):
        result = onnx2nn.verify(arguments.onnx_path, module, runs=arguments.comparisons, **chosen)
    status = _report(result, terminal)
    with terminal.step("comparing node by node"):
        nodes = onnx2nn.verify_nodes(
            arguments.onnx_path,
            module,
            tolerance=arguments.tolerance,
            memory_limit=int(arguments.memory_limit * 2**30),
            **chosen,
        )
    if arguments.json:
        outputs = {"outputs_verdict": result.verdict, "ok": nodes.ok and result.ok}
        print(json.dumps({**nodes.to_dict(), **outputs}, indent=1, allow_nan=False))
    _report_nodes(nodes, terminal)
    if arguments.repro and nodes.first is not None:
        terminal.line(f"wrote {nodes.write_repro(arguments.repro)}, its inputs and what ONNX Runtime makes of them")
    return status if nodes.ok else FAILED


def _report_nodes(nodes: NodeVerification, terminal: Terminal) -> None:
    """Print the table of the nodes and which one is the first over the threshold."""
    head = ["operator", "node", "introduced abs", "rel", "ULP", "inherited abs", "rel", "ULP", ""]
    rows = []
    for node in nodes.nodes:
        cells = [cell for gap in (node.introduced, node.inherited) for cell in _cells(gap)]
        verdict = "" if node.introduced.ok else node.introduced.reason or "over the threshold"
        rows.append([node.operator, node.node, *cells, verdict])
    terminal.table(head, rows, numeric=range(2, 8), bad=[not node.introduced.ok for node in nodes.nodes])
    for note in nodes.notes:
        terminal.line(note)
    terminal.verdict(nodes.verdict, good=nodes.ok)


def _cells(gap: Gap) -> list[str]:
    return [f"{gap.max_abs:.2g}", f"{gap.max_rel:.2g}", "" if gap.ulp is None else str(gap.ulp)]


def simplify(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Simplify and save."""
    from onnx2nn.ground.atomic_files import check_writable
    from onnx2nn.importing import inputs
    from onnx2nn.reading import reader

    check_writable(arguments.simplify_path)
    given = _named_shapes(arguments.input_shape, inputs.input_specs(reader.read(arguments.onnx_path)))
    simplification = _simplify(arguments, given, terminal)
    return OK if simplification and simplification.simplified else FAILED


def ncnn(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Import with fixed sizes, convert to NCNN, compare; print what stands in the way."""
    import onnx2nn
    from onnx2nn.errors import NcnnError
    from onnx2nn.importing import inputs
    from onnx2nn.reading import reader

    specs = inputs.input_specs(reader.read(arguments.onnx_path))
    sizes = inputs.resolve_shapes(specs, _named_shapes(arguments.input_shape, specs))
    with terminal.step(f"importing {arguments.onnx_path}"):
        module = onnx2nn.load(arguments.onnx_path, input_shapes=sizes)
    example = list(inputs.example_inputs(specs, sizes, seed=arguments.seed).values())
    name = Path(arguments.onnx_path).stem
    try:
        with terminal.step("converting to NCNN and comparing"):
            model = onnx2nn.to_ncnn(module, arguments.output, name=name, example_inputs=example)
    except NcnnError as error:
        terminal.line(str(error))
        terminal.verdict(f"NOT CONVERTED: {len(error.obstacles)} obstacles", good=False)
        return FAILED
    terminal.line(str(model))
    terminal.verdict(f"OK saved {arguments.output}/{name}.param, .bin, .fp16.param and .fp16.bin", good=True)
    return OK


def ops(arguments: argparse.Namespace, terminal: Terminal) -> int:
    """Print the op table: operator, revisions, types of its first input or output, how it is built, what runs found."""
    from onnx2nn.optable.catalog import entries

    def score(pair: tuple[int, int] | None) -> str:
        return f"{pair[0]}/{pair[1]}" if pair else "-"

    table = entries()
    rows = [
        [
            *(e.domain, e.operator, " ".join(map(str, e.revisions)), " ".join(e.types) or "-", e.built),
            *(score(e.exported), score(e.oneflow_import), str(len(e.oneflow_export)) if e.oneflow_export else "-"),
        ]
        for e in table
    ]
    head = ["domain", "operator", "revisions", "types", "built", "torch.export", "OneFlow import", "OneFlow export"]
    terminal.table(head, rows, numeric=(5, 6, 7), bad=[False] * len(rows))
    terminal.line("torch.export: cases that pass, of ONNX's suite, else of this project; OneFlow import: of the suite;")
    terminal.line("OneFlow export: OneFlow ops written so")
    terminal.line(f"{len(table)} operators")
    return OK


def _report(result: Verification, terminal: Terminal) -> int:
    terminal.line(f"compared with {result.oracle}:")
    for output in result.outputs:
        terminal.line(f"  {output}")
    for note in result.notes:
        terminal.line(f"  {note}")
    terminal.verdict(result.verdict, good=result.ok)
    return OK if result.ok else FAILED


def _named_shapes(shapes: Sequence[tuple[str | None, list[int]]], specs: Sequence[InputSpec]) -> dict[str, list[int]]:
    """Give the bare shape the name of the only input, and add the shapes that follow from those given.

    Raises:
        InputError: a bare shape for a model with several inputs, an input named twice, or shapes that do not fit.
    """
    from onnx2nn.importing.inputs import fixed_shapes

    named: dict[str, list[int]] = {}
    for name, sizes in shapes:
        if name is None and len(specs) != 1:
            inputs = ", ".join(spec.name for spec in specs)
            dims = ",".join(map(str, sizes))
            raise InputError(f"--input_shape {dims}: the model has {len(specs)} inputs ({inputs}); write NAME:{dims}")
        name = specs[0].name if name is None else name
        if name in named:
            raise InputError(f"--input_shape gives input {name!r} twice")
        named[name] = sizes
    return {name: list(sizes) for name, sizes in fixed_shapes(specs, named).items()}


def _input_shape(text: str) -> tuple[str | None, list[int]]:
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


def _dynamic_axis(text: str) -> tuple[str, int, str]:
    place, _, label = text.rpartition("=")
    name, _, axis = place.rpartition(":")
    if not name or not axis.isdecimal() or not label.isidentifier():
        raise argparse.ArgumentTypeError(f"{text!r} is not NAME:AXIS=DIM, such as input:0=batch")
    return name, int(axis), label


def _freed_axes(given: Sequence[tuple[str, int, str]]) -> dict[str, dict[int, str]]:
    """The dimensions to free, as `onnx2nn.load` takes them.

    Raises:
        InputError: one has two names.
    """
    freed: dict[str, dict[int, str]] = {}
    for name, axis, label in given:
        if freed.setdefault(name, {}).setdefault(axis, label) != label:
            raise InputError(f"--dynamic calls axis {axis} of {name!r} both {freed[name][axis]!r} and {label!r}")
    return freed


def _count(text: str) -> int:
    if not text.isdecimal():
        raise argparse.ArgumentTypeError(f"{text!r} is not a whole number of at least 0")
    return int(text)


def _positive(text: str) -> float:
    try:
        number = float(text)
    except ValueError:
        number = 0.0
    if not 0 < number < float("inf"):
        raise argparse.ArgumentTypeError(f"{text!r} is not a number above 0")
    return number


def _version() -> str:
    try:
        return importlib.metadata.version("onnx2nn")
    except importlib.metadata.PackageNotFoundError:
        return "(not installed)"


class _Parser(argparse.ArgumentParser):
    """Reports a wrong command line in one line."""

    def __init__(self, **options: Any):
        super().__init__(**{"allow_abbrev": False, **options})

    def error(self, message: str) -> NoReturn:
        self.exit(UNUSABLE, f"{self.prog}: error: {message} (see {self.prog} --help)\n")


_Command = Callable[[argparse.Namespace, Terminal], int]


def _run(parser: argparse.ArgumentParser, argv: Sequence[str] | None, command: _Command | None) -> int:
    arguments = parser.parse_args(argv)
    command = command or arguments.command
    try:
        with _quiet(arguments.debug):
            status = command(arguments, Terminal())
            sys.stdout.flush()
            return status
    except KeyboardInterrupt:
        return _fail(parser, "interrupted", INTERRUPTED)
    except BrokenPipeError:  # `onnx2nn ops | head`: who reads has seen enough, and the rest goes nowhere
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return UNREAD
    except (Exception, _Terminated) as error:
        if arguments.debug:
            traceback.print_exc()
        if isinstance(error, UnsupportedModelError):
            print(error)  # the whole list; stderr gets its summary
        return _fail(parser, _message(error), UNUSABLE)


def _fail(parser: argparse.ArgumentParser, message: str, status: int) -> int:
    sys.stdout.flush()
    print(f"{parser.prog}: error: {' '.join(message.split())}", file=sys.stderr)
    return status


def _message(error: BaseException) -> str:
    if isinstance(error, UnsupportedModelError):
        counts: Counter[str] = Counter()
        for problem in error.problems:
            counts[f"{problem.domain}::{problem.operator}" if problem.domain else problem.operator] += len(
                problem.nodes
            )
        listed = ", ".join(f"{name} ({count})" for name, count in counts.most_common())
        return f"nodes that cannot be imported: {listed}; reasons and advice stand above"
    if isinstance(error, Onnx2nnError | _Terminated):
        return str(error)
    if isinstance(error, MemoryError):
        return "out of memory"
    if isinstance(error, OSError):
        return str(error)
    return f"internal error, please report it: {type(error).__name__}: {error} (--debug shows where)"


class _Terminated(BaseException):
    """SIGTERM arrived; raised so that temporary files are deleted and subprocesses ended."""


@contextlib.contextmanager
def _quiet(debug: bool) -> Iterator[None]:
    """Keep libraries' warnings off stderr, and turn SIGTERM into an exception."""

    def terminate(*_: Any) -> NoReturn:
        raise _Terminated("terminated")

    with warnings.catch_warnings():
        if not debug:
            warnings.simplefilter("ignore")
        if threading.current_thread() is not threading.main_thread():  # only the main thread may set handlers
            yield
            return
        previous = signal.signal(signal.SIGTERM, terminate)
        try:
            yield
        finally:
            signal.signal(signal.SIGTERM, previous)
