"""What becomes of the tree of random nested modules after an export and an import.

python -m tests.module_trees --modules 300 --seed 0         # both exporters; the smallest module of each fault
python -m tests.module_trees --seed 17 --modules 1 --show   # one module: its original and its import
"""

from __future__ import annotations

import argparse
import contextlib
import copy
import functools
import inspect
import io
import itertools
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import torch
from torch import nn
from torch.overrides import TorchFunctionMode

import onnx2nn
from onnx2nn.errors import ModelFileError
from tests.module_calls import Calls, Fault, calls_of, close
from tests.module_programs import check_program
from tests.random_layers import FEATURES, TIME
from tests.random_modules import (
    Model,
    Part,
    Values,
    draw,
    draw_attending,
    draw_backwards,
    draw_extended,
    draw_modulated,
    draw_sized,
    draw_weighted,
    original_of,
    shrunk,
)

BATCH, BATCHES = 3, (1, 4, 7)
"""The batch size that calls are compared at, and further ones that outputs are compared at."""


def inputs_of(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Returns inputs for a batch size."""
    generator = torch.Generator().manual_seed(batch)
    x, y = (torch.randn(batch, TIME, FEATURES, generator=generator) for _ in range(2))
    return x, y


def exported(original: nn.Module, exporter: str, path: Path) -> None:
    """Writes an ONNX file with a dynamic batch size."""
    options: dict[str, Any] = {"input_names": ["x", "y"]}
    if exporter == "dynamo":
        batch = torch.export.Dim.DYNAMIC
        options |= {"dynamo": True, "verbose": False, "dynamic_shapes": ({0: batch}, {0: batch})}
    else:
        options |= {"dynamo": False, "dynamic_axes": {"x": {0: "batch"}, "y": {0: "batch"}}, "opset_version": 17}
    with (
        contextlib.redirect_stdout(io.StringIO()),
        contextlib.redirect_stderr(io.StringIO()),
        warnings.catch_warnings(),
    ):
        warnings.simplefilter("ignore")
        torch.onnx.export(original, inputs_of(2), str(path), **options)


class _Transposes(TorchFunctionMode):
    """Notes the values that are transposed, and at once transposed back: exporters write neither of both.

    Attributes:
        undone: these values. Where a module returns one, its import gives what the file has at this place.
    """

    def __init__(self) -> None:
        super().__init__()
        self._made: list[torch.Tensor] = []
        self.undone: list[torch.Tensor] = []

    def __torch_function__(
        self, function: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Calls a function of torch."""
        result = function(*args, **(kwargs or {}))
        if function is torch.Tensor.transpose:
            self._made.append(result)
            self.undone += [args[0]] if _holds(self._made, args[0]) else []
        return result


def _holds(values: list[torch.Tensor], value: torch.Tensor) -> bool:
    return any(other is value for other in values)


@dataclass
class Count:
    """How many modules run in originals, and how many of them run as often in the imports."""

    modules: int = 0
    found: int = 0

    def __add__(self, other: Count) -> Count:
        """Returns the sum."""
        return Count(self.modules + other.modules, self.found + other.found)


def check(model: Model, exporter: str, folder: Path, *, long: bool = False, as_called: bool = False) -> Count:
    """Exports, imports and compares.

    Args:
        model: to check.
        exporter: `torchscript` or `dynamo`.
        folder: for files.
        long: also whether what is saved, copied and exported again is the same.
        as_called: also the blocks called as their author calls them.

    Raises:
        Fault: what differs.
    """
    original, path = original_of(model), folder / "model.onnx"
    try:
        exported(original, exporter, path)
        _check_file(path, original)
    except Exception as error:  # torch's exporters, and their files' runs, raise errors of many classes
        raise Fault("export fails", f"{type(error).__name__}: {str(error)[:200]}") from error
    try:
        module = onnx2nn.load(path)
    except ModelFileError as error:  # an input that is an output
        raise Fault("export fails", str(error)) from error
    except Exception as error:
        raise Fault("load fails", f"{type(error).__name__}: {error}") from error
    inputs = inputs_of(BATCH)
    with _Transposes() as transposes:
        theirs, expected = calls_of(original, inputs)
    ours, result = calls_of(module, inputs)
    if not close(result, expected):
        raise Fault("outputs differ", "")
    for others in map(inputs_of, BATCHES):
        with torch.no_grad():
            if not close(module(*others), original(*others)):
                raise Fault("outputs differ", f"at a batch size of {len(others[0])}")
    _check_keys(original, module, exporter)
    _check_order(original, module, path, exporter)
    _check_blocks(module, ours)
    if as_called:
        _check_calls_of_the_author(module, theirs)
    _check_nodes(path, module, inputs)
    count = _compare(theirs, ours, transposes.undone)
    if long:
        once = all(len(calls) == 1 for name, calls in theirs.items() if isinstance(original.get_submodule(name), Part))
        _check_copies(module, inputs, result, folder, once)
        check_program(module, [dict(zip("xy", inputs_of(batch), strict=True)) for batch in (BATCH, *BATCHES)])
    return count


def _check_file(path: Path, original: nn.Module) -> None:
    """The file of an exporter gives at each batch size what the original gives, or is at fault itself."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4  # an error is raised too
    session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    names = {value.name for value in session.get_inputs()}
    for batch in (BATCH, *BATCHES):
        inputs = inputs_of(batch)
        given = {name: value.numpy() for name, value in zip("xy", inputs, strict=True) if name in names}
        with torch.no_grad():
            expected = original(*inputs)
        written = [torch.from_numpy(value) for value in session.run(None, given)]
        if not close(written, [expected] if isinstance(expected, torch.Tensor) else list(expected)):
            raise ValueError(f"the file differs at a batch size of {batch}")


def _check_nodes(path: Path, module: nn.Module, inputs: Values) -> None:
    """Each call is compared with its own node of the file, also of a module that is called several times."""
    given = {name: value.numpy() for name, value in zip("xy", inputs, strict=True)}
    names = {value.name for value in onnx.load(path).graph.input}
    found = onnx2nn.verify_nodes(path, module, inputs={name: value for name, value in given.items() if name in names})
    if not found.ok:
        raise Fault("nodes differ", str(found.first))
    outputs = Counter(node.output for node in found.nodes)
    if several := [name for name, count in outputs.items() if count > 1]:
        raise Fault("nodes are compared more than once", ", ".join(several))


def _check_keys(original: nn.Module, module: nn.Module, exporter: str) -> None:
    wanted, found = original.state_dict(keep_vars=True), module.state_dict()
    written = dict(_written_state(original)) if exporter == "torchscript" else {}
    more = found.keys() - wanted.keys()
    if invented := [name for name in more if name not in written or not torch.equal(written[name], found[name])]:
        raise Fault("keys that the original has not", ", ".join(sorted(invented)))
    held = {(written if name in more else wanted)[name].data_ptr() for name in found}
    missing = [name for name, value in wanted.items() if name not in found and value.data_ptr() not in held]
    reported = onnx2nn.naming_report(module).missing
    if missing := [name for name in missing if name not in reported]:
        raise Fault("keys are missing", ", ".join(missing))


def _check_order(original: nn.Module, module: nn.Module, path: Path, exporter: str) -> None:
    """Parameters, buffers and the modules around them are in the author's order, as far as the file tells it.

    The newer exporter's files do not tell which of two modules is first if only one has parameters.
    """
    if exporter == "torchscript":
        names = {value.name for value in onnx.load(path).graph.initializer}
        orders = [([key for key in module.state_dict() if key in names], list(original.state_dict()))]
    else:
        ours, theirs = ([key for key, _ in net.named_parameters()] for net in (module, original))
        buffers = [{key for key, _ in net.named_buffers(remove_duplicate=False)} for net in (module, original)]
        modules = dict(original.named_modules(remove_duplicate=False))
        places = [name for name, _ in module.named_modules() if name in modules]
        keys = set.intersection(*buffers)
        orders = [(ours, theirs)]
        orders += [tuple(_without_parameters(net, name, keys) for net in (module, original)) for name in places]
    for ours, theirs in orders:
        found, wanted = [key for key in ours if key in theirs], [key for key in theirs if key in ours]
        if found != wanted:
            raise Fault("another order", f"{', '.join(found)} are {', '.join(wanted)}")


def _without_parameters(root: nn.Module, path: str, keys: Set[str]) -> list[str]:
    """Returns what a module holds itself of buffers, and of modules that have some but no parameters, of known keys."""
    module, start = root.get_submodule(path), f"{path}." if path else ""
    held = {name: inner for name, inner in module.named_children() if next(inner.parameters(), None) is None}
    found = [[name] for name, _ in module.named_buffers(recurse=False)]
    found += [[f"{name}.{key}" for key, _ in inner.named_buffers()] for name, inner in held.items()]
    return [names[0].partition(".")[0] for names in found if any(f"{start}{name}" in keys for name in names)]


def _written_state(original: nn.Module) -> Iterator[tuple[str, torch.Tensor]]:
    """Yields weights with the keys that the scopes of a file tell, of layers of which the exporter computes with them.

    It has no names of linear layers' matrices and of group normalisations' scales.

    Torch's older exporter writes of each module the end of its first name, from the last step on that is no number. A
    module has this name in all modules that call it, and the module 0 of a list `mixer` in a module `mixer` is written
    as that of an `nn.Sequential` is. `test_what_a_file_does_not_tell` has files that are the same bytes.
    """
    steps = {module: _end_of_name(name) for name, module in original.named_modules()}

    def inside(caller: nn.Module, path: list[str]) -> Iterator[tuple[str, torch.Tensor]]:
        for module in _called_by(caller):
            end, start = steps[module], steps[caller]
            known = start if start == end[: len(start)] else []
            place = [*path, *end[len(known) :]]
            weights = module.named_parameters() if isinstance(module, (nn.Linear, nn.GroupNorm)) else ()
            yield from ((".".join([*place, name]), value) for name, value in weights)
            yield from inside(module, place)

    return inside(original, [])


def _end_of_name(name: str) -> list[str]:
    """Returns the steps of a module's name from the last one on that is no number."""
    steps = name.split(".")
    return steps[max((i for i, step in enumerate(steps) if not step.isdecimal()), default=0) :]


def _called_by(module: nn.Module) -> Iterator[nn.Module]:
    """Yields the modules that a module holds itself, or in lists, which have no calls."""
    for _, child in module.named_children():
        yield from _called_by(child) if isinstance(child, nn.ModuleList) else [child]


def _check_blocks(module: nn.Module, calls: Calls) -> None:
    """Each block gives for the arguments of its calls what it gave."""
    for name in module.meta["onnx2nn"]["tree"]["blocks"]:
        if name not in calls:
            raise Fault("a block is not called", name)
        block = module.get_submodule(name)
        for args, result in calls[name]:
            with torch.no_grad():
                again = block(*args)
            if not close(again, result):
                raise Fault("a block called alone differs", name)


def _check_calls_of_the_author(module: nn.Module, calls: Calls) -> None:
    """A block that takes as many values as the author's gives for the author's what the author's gave, or an error.

    A file tells no order of arguments: any will do. Some differ, as exporters merge equal functions too: `x * 0.5` of a
    module and of the one around it stands in a file once, and the block takes it in place of `x`. Left out are modules
    that give several values, of which a file has those that are used, those that may take another's from the context,
    those with a call that another repeats, and calls with one value twice.
    """
    repeated = _repeated(calls)
    for name in module.meta["onnx2nn"]["tree"]["blocks"]:
        block = module.get_submodule(name)
        for args, expected in calls.get(name, ()):
            given = [value for value in args if isinstance(value, torch.Tensor)]
            alone = not any(isinstance(value, dict) and value for value in args) and not any(
                other == name or other.startswith(f"{name}.") for other in repeated
            )
            told = alone and len(set(map(id, given))) == len(inspect.signature(block.forward).parameters)
            if not (told and isinstance(expected, torch.Tensor)):
                continue
            results = [result for result in _results(block, given) if isinstance(result, torch.Tensor)]
            if results and not any(close(result, expected) for result in results):
                raise Fault("a block called as its author's differs", name)


def _repeated(calls: Calls) -> set[str]:
    """Returns the modules of two values that give what another call of one gives.

    An exporter writes such a call once, and its result, which is all that stands in the file, may as well be what the
    author gave to the other.
    """
    found: list[tuple[str, torch.Tensor]] = []
    repeated: set[str] = set()
    for name, made in calls.items():
        for args, result in made:
            if len(args) > 1 and isinstance(result, torch.Tensor):
                same = [other for other, value in found if close(result, value)]
                repeated |= {name, *same} if same else set()
                found.append((name, result))
    return repeated


def _results(block: nn.Module, given: Values) -> Iterator[Any]:
    """Yields what a block gives for its arguments in any order, but for those that it refuses."""
    for ordered in itertools.permutations(given):
        with contextlib.suppress(Exception), torch.no_grad():  # of many classes: shapes that do not fit
            yield block(*ordered)


def _compare(theirs: Calls, ours: Calls, undone: list[torch.Tensor]) -> Count:
    """Counts the modules that run as often as the original's; those that give tensors give the same ones.

    Args:
        theirs: the calls of the original.
        ours: the calls of the import.
        undone: results of the original that stand in the file before their transpose.
    """
    count = Count()
    for name, calls in theirs.items():
        if name not in ("", "body"):
            count.modules += 1
            count.found += len(ours.get(name, ())) == len(calls)
        results = [result for _, result in calls]
        rest = [result for _, result in ours.get(name, ())]
        if len(rest) != len(results) or not all(isinstance(value, torch.Tensor) for value in (*results, *rest)):
            continue
        for result in results:  # calls that do not depend on each other have no order in a file
            forms = [result, result.transpose(1, 2)] if _holds(undone, result) else [result]
            position = next((i for i, value in enumerate(rest) if any(close(value, form) for form in forms)), None)
            if position is None:
                raise Fault("a module gives another result", name)
            del rest[position]
    return count


def tree_of(module: nn.Module) -> list[tuple[str, str]]:
    """Returns the paths of all modules with the names of their classes."""
    return [(name, type(inner).__name__) for name, inner in module.named_modules()]


def _check_copies(module: nn.Module, inputs: Values, result: Any, folder: Path, once: bool) -> None:
    """What is saved, copied and exported again gives the same.

    Args:
        module: the import.
        inputs: of the run that gave `result`.
        result: what it gives.
        folder: for files.
        once: whether each part is called once. Of one whose calls are not told apart, the functions belong to the
            module around it; where the file then says so, what remains of it may be a block.
    """
    file = io.BytesIO()
    torch.save(module, file)
    file.seek(0)
    onnx2nn.export_onnx(module, folder / "again.onnx")
    again = onnx2nn.load(folder / "again.onnx")
    program = torch.export.export(module, inputs).module()
    copies = {"pickle": torch.load(file, weights_only=False), "copy": copy.deepcopy(module), "second import": again}
    for what, other in {**copies, "torch.export": program}.items():
        with torch.no_grad():
            if not close(other(*inputs), result):
                raise Fault(f"{what}: outputs differ", "")
        if what in copies and (once or what != "second import") and set(tree_of(other)) != set(tree_of(module)):
            lines = set(tree_of(other)) ^ set(tree_of(module))
            raise Fault(f"{what}: another tree", ", ".join(map(str, sorted(lines)[:6])))
        if what in copies and other.state_dict().keys() != module.state_dict().keys():
            raise Fault(f"{what}: other keys", ", ".join(other.state_dict().keys() ^ module.state_dict().keys()))


def fault_of(model: Model, exporter: str, *, long: bool = False, as_called: bool = False) -> tuple[str, Count]:
    """Returns the fault of a model, `""` where it has none, `export fails` where torch's exporter has one."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            return "", check(model, exporter, Path(folder), long=long, as_called=as_called)
        except Fault as fault:
            return str(fault), Count()
        except Exception as error:
            return f"{type(error).__name__}: {str(error)[:200]}", Count()


def _has(kind: str, exporter: str, long: bool, as_called: bool, model: Model) -> bool:
    return fault_of(model, exporter, long=long, as_called=as_called)[0].startswith(kind)


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--modules", type=int, default=100, help="number of random modules")
    parser.add_argument("--seed", type=int, default=0, help="of the first")
    parser.add_argument("--exporter", action="append", choices=["torchscript", "dynamo"], help="default: both")
    parser.add_argument("--long", action="store_true", help="also copies, saved modules and a second round")
    parser.add_argument("--sized", action="store_true", help="with functions of sizes and choices by data")
    parser.add_argument("--modulated", action="store_true", help="with layers that activate the same second value")
    parser.add_argument("--extended", action="store_true", help="with layers that do more than torch's plain ones")
    parser.add_argument("--attending", action="store_true", help="with attention by nn.MultiheadAttention")
    parser.add_argument("--weighted", action="store_true", help="with computations of weights alone")
    parser.add_argument("--backwards", action="store_true", help="with modules that declare first what they use last")
    parser.add_argument(
        "--as_called",
        action="store_true",
        help="also call blocks as their author does: one may take what an exporter merged with a value outside",
    )
    parser.add_argument("--show", action="store_true", help="print the modules")
    options = parser.parse_args()
    torch.set_num_threads(1)
    chosen = {
        draw_sized: options.sized,
        draw_modulated: options.modulated,
        draw_extended: options.extended,
        draw_attending: options.attending,
        draw_weighted: options.weighted,
        draw_backwards: options.backwards,
    }
    drawn = next((kind for kind, wanted in chosen.items() if wanted), draw)
    kinds: Counter[str] = Counter()
    total = Count()
    for seed in range(options.seed, options.seed + options.modules):
        for exporter in options.exporter or ["torchscript", "dynamo"]:
            fault, count = fault_of(drawn(seed), exporter, long=options.long, as_called=options.as_called)
            total += count
            kind = fault.partition(":")[0] or "right"
            kinds[kind] += 1
            if fault:
                print(f"seed {seed}, {exporter}: {fault}", flush=True)
            if options.show or (fault and kinds[kind] == 1 and kind != "export fails"):
                model = drawn(seed)
                if fault:
                    model = shrunk(model, functools.partial(_has, kind, exporter, options.long, options.as_called))
                print(original_of(model), model, sep="\n")
    print(dict(kinds), total)


if __name__ == "__main__":
    main()
