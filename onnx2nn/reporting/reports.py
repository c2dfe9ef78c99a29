"""`report`: collects what there is to know of a model and of its import."""

from __future__ import annotations

import contextlib
import importlib.metadata
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import onnx

from onnx2nn.errors import InputError, MissingDependencyError, UnsupportedModelError, VerificationError
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.importing.inputs import specs_of
from onnx2nn.importing.model_report import report as checked_operators
from onnx2nn.loading import load
from onnx2nn.reading import reader
from onnx2nn.reporting.file_facts import facts_of, nodes_of, operators_of, producers_of
from onnx2nn.reporting.model_report import ModelReport
from onnx2nn.reporting.notes import notes_of
from onnx2nn.verification.example_runs import example_feeds
from onnx2nn.verification.node_by_node import verify_nodes
from onnx2nn.verification.oracle import Stored, stored
from onnx2nn.verification.outputs import verify

if TYPE_CHECKING:
    from torch import fx

    from onnx2nn.reporting.module_tree import ModuleTree

Step = Callable[[str], contextlib.AbstractContextManager[Any]]
"""Takes the name of a long step; the context manager is open while it runs."""

_PACKAGES = ("onnx2nn", "torch", "onnx", "onnxruntime", "numpy")


def report(
    source: Stored | BinaryIO,
    module: fx.GraphModule | None = None,
    *,
    input_shapes: Mapping[str, Sequence[int]] | None = None,
    inputs: Mapping[str, np.ndarray] | None = None,
    seed: int = 0,
    compared: bool = True,
    blocks: str = "named",
    follow_links: bool = False,
    limits: Limits | None = None,
    step: Step = contextlib.nullcontext,
) -> ModelReport:
    """Returns a report of a model: its file, its modules, its weights, and how far it is from ONNX Runtime.

    The module runs on one set of inputs, call by call, for shapes and times. A file that cannot be imported has a
    report too, with all its problems.

    Args:
        source: the ONNX file: a path, bytes, a ModelProto or an open binary file.
        module: the module of `onnx2nn.load` for it, never pickled, which loses the nodes' names; loaded here if left
            out.
        input_shapes: input name → sizes, for inputs with dynamic dimensions.
        inputs: input name → array, used instead of generated ones.
        seed: of the generated inputs.
        compared: whether the module is compared with ONNX Runtime, as by `verify` and `verify_nodes`.
        blocks: as for `load`.
        follow_links: as for `load`.
        limits: as for `load`.
        step: shows progress: takes the name of a step, and returns a context manager that is open during the step.

    Returns:
        The report; its `save` writes it as one HTML file. Where inputs with dynamic dimensions get no sizes, or ONNX
        Runtime cannot run the file, `unverified` says so, and the rest of the report is there.

    Raises:
        InputError: shapes or inputs do not fit the model, or `load` did not make the module.
        LimitError: the file costs more than a limit allows.
        MissingDependencyError: torch is not installed.
        ModelFileError: the source is not a readable model.
    """
    source = stored(source)
    reading: dict[str, Any] = {"follow_links": follow_links, "limits": limits}
    with reader.opened(source, follow_links=follow_links, account=Account(limits)) as model:
        checked = checked_operators(model)
        result = ModelReport(facts_of(model, _name_of(source), checked), operators_of(checked, checked.problems))
        result.versions = _versions()
        result.nodes, producers = nodes_of(model), producers_of(model)
    if module is None:
        try:
            with step(f"importing {result.file.name}"):
                module = load(source, blocks=blocks, **reading)
        except UnsupportedModelError as error:
            result.problems = [str(problem) for problem in error.problems]
            result.operators = operators_of(checked, error.problems)
            return result
    chosen = {"input_shapes": input_shapes, "inputs": inputs, "seed": seed, **reading}
    with step("running the modules"):
        tree = _describe(result, module, producers, chosen)
    if compared and result.run:
        with step("comparing with ONNX Runtime"), _noting(result.unverified):
            _compare(result, source, module, tree, producers, chosen)
    return result


def _describe(
    result: ModelReport,
    module: fx.GraphModule,
    producers: Mapping[str, tuple[int, list[str]]],
    chosen: Mapping[str, Any],
) -> ModuleTree:
    """Adds what the module shows, and returns its tree."""
    from onnx2nn.reporting.module_runs import ModuleRun, measured_run
    from onnx2nn.reporting.module_tree import ModuleTree
    from onnx2nn.reporting.weights import weights_of

    if not hasattr(module, "graph"):
        raise InputError(f"A {type(module).__name__} has no program of blocks. Give a module of onnx2nn.load.")
    known: Mapping[str, Any] = module.meta["onnx2nn"]
    run = ModuleRun()
    with _noting(result.unverified):
        specs = specs_of(module)
        feeds, _ = next(iter(example_feeds(specs, chosen["input_shapes"], chosen["inputs"], 1, chosen["seed"])))
        run = measured_run(module, list(feeds.values()))
        result.run = {name: list(np.shape(array)) for name, array in feeds.items()}
        result.unverified += [run.failed] if run.failed else []
    result.weights = weights_of(module, known.get("naming", {}).get("restored", {}))
    tree = ModuleTree(module, result.weights, result.nodes, producers, run)
    result.modules, result.programs = tree.modules, tree.programs
    result.notes = notes_of(known)
    return tree


def _compare(
    result: ModelReport,
    source: Stored,
    module: fx.GraphModule,
    tree: ModuleTree,
    producers: Mapping[str, tuple[int, list[str]]],
    chosen: Mapping[str, Any],
) -> None:
    from onnx2nn.reporting.verified import verified

    outputs = verify(source, module, **chosen)
    result.verified = verified(outputs, verify_nodes(source, module, **chosen), tree, producers)


@contextlib.contextmanager
def _noting(reasons: list[str]) -> Iterator[None]:
    """Notes why a step that is no condition of a report ended early."""
    try:
        yield
    except (InputError, MissingDependencyError, VerificationError) as error:
        reasons.append(str(error))


def _name_of(source: Stored) -> str:
    if isinstance(source, (str, os.PathLike)):
        return Path(source).name
    return source.graph.name or "a model" if isinstance(source, onnx.ModelProto) else "a model"


def _versions() -> dict[str, str]:
    found = {}
    for name in _PACKAGES:
        with contextlib.suppress(importlib.metadata.PackageNotFoundError):
            found[name] = importlib.metadata.version(name)
    return found
