"""A model's file in a folder: `model.onnx`, and beside it `model.npz` and `model.json`, what its author says of it.

`model.npz` holds `input0`, `input1` ... in the graph's order, at sizes that the exporter did not see where dimensions
are open, and `output0` ..., the framework's own answer. `model.json` has the keys of the author's state_dict, and why
dimensions are fixed that were to be open.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx

from onnx2nn.verification.oracle import Oracle
from scripts.conversions.rows import Facts, File

Arrays = Sequence[np.ndarray[Any, Any]]


class NotExported(Exception):
    """The model's own framework cannot run it, or its exporter cannot write it."""


@dataclasses.dataclass(frozen=True)
class Exported:
    """A file in a folder.

    Attributes:
        path: the ONNX file.
        inputs: arrays in the graph's order.
        outputs: the framework's, None where it is not known.
        author: `keys`, the author's state_dict, and `fixed`, the reason for fixed dimensions; each may be missing.
    """

    path: Path
    inputs: Arrays
    outputs: Arrays | None
    author: Facts

    def write(self) -> None:
        """Writes what stands beside the file."""
        arrays = {f"input{i}": array for i, array in enumerate(self.inputs)}
        arrays |= {f"output{i}": array for i, array in enumerate(self.outputs or ())}
        np.savez(self.path.with_suffix(".npz"), **arrays)
        self.path.with_suffix(".json").write_text(json.dumps(self.author), encoding="utf-8")

    @classmethod
    def read(cls, path: Path) -> Exported:
        """Reads what `write` wrote."""
        with np.load(path.with_suffix(".npz"), allow_pickle=False) as arrays:
            inputs, outputs = (
                [arrays[f"{kind}{i}"] for i in range(sum(key.startswith(kind) for key in arrays))]
                for kind in ("input", "output")
            )
        author = json.loads(path.with_suffix(".json").read_text("utf-8")) if path.with_suffix(".json").exists() else {}
        return cls(path, inputs, outputs or None, author)


@dataclasses.dataclass(frozen=True)
class TorchModel:
    """How a model of PyTorch is made and called.

    Attributes:
        build: makes it, with any weights.
        inputs: makes the inputs, tensors, from the batch size.
        prepare: changes the model after its weights were made random.
        max_difference: how far ONNX Runtime's answer may be from the framework's; above it the exporter wrote another
            model.
    """

    build: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]
    prepare: Callable[[Any], None] = lambda module: None
    max_difference: float = 1e-3


BATCH, OTHER_BATCH = 2, 3
"""The batch that the exporter sees, and the one that conversions are compared at."""


def export_torch(file: File, model: TorchModel, path: Path) -> Exported:
    """Exports a model with random weights and an open batch, or with a fixed one where its exporter fixes it.

    Raises:
        NotExported: the model does not run, its exporter refuses it, or writes a file that does something else.
    """
    import torch

    from scripts.torch_exports import seeded

    torch.set_num_threads(1)
    try:
        module = seeded(model.build)
        model.prepare(module)
        inputs, other = model.inputs(BATCH), model.inputs(OTHER_BATCH)
        _call(module, inputs)
    except Exception as error:  # whatever a package of models raises
        raise NotExported(f"the model does not run: {reason(error)}") from error
    author: dict[str, Any] = {"keys": list(module.state_dict())}
    try:
        return _written(file, path, module, inputs, other, author, model.max_difference)
    except NotExported as error:
        fixed = {**author, "fixed": str(error)}
        return _written(file, path, module, inputs, None, fixed, model.max_difference)


def _written(
    file: File, path: Path, module: Any, inputs: Any, other: Any, author: Facts, max_difference: float
) -> Exported:
    """Exports with the dimensions open in which `other` differs from `inputs`, with none where it is None."""
    from scripts.torch_exports import WRITERS

    called = inputs if other is None else other
    try:
        WRITERS[file.exporter](path, module, inputs, other)
        expected = _call(module, called)
        arrays = [x.numpy() for x in called]
        answers = Oracle(path, threads=1).run(dict(zip(input_names(path), arrays, strict=True)))
        apart = difference(answers, expected)
    except Exception as error:  # exporters have no common error; a file of theirs may not run at all
        raise NotExported(f"torch.onnx.export: {reason(error)}") from error
    if apart > max_difference:
        raise NotExported(f"torch.onnx.export: ONNX Runtime's answer to its file differs by {apart:.1e}")
    return Exported(path, arrays, expected, author)


def input_names(path: Path) -> list[str]:
    """Returns the names of a file's inputs that are no initializers."""
    graph = onnx.load(str(path), load_external_data=False).graph
    stored = {tensor.name for tensor in graph.initializer}
    return [value.name for value in graph.input if value.name not in stored]


def difference(ours: Arrays, theirs: Arrays) -> float:
    """Returns the largest difference of an element, relative to the largest magnitude of its output.

    Raises:
        ValueError: another count, shape or type, infinities or NaN in other places.
    """
    worst = 0.0
    for a, b in zip(ours, theirs, strict=True):
        if a.shape != b.shape or a.dtype != b.dtype:
            raise ValueError(f"{a.dtype}{list(a.shape)} instead of {b.dtype}{list(b.shape)}")
        finite = np.isfinite(b) if b.dtype.kind in "fc" else np.ones(b.shape, bool)
        if not np.array_equal(a[~finite], b[~finite], equal_nan=True):
            raise ValueError("infinities or NaN in other places")
        a64, b64 = a[finite].astype(np.float64), b[finite].astype(np.float64)
        worst = max(worst, float(np.abs(a64 - b64).max(initial=0.0) / np.abs(b64).max(initial=1e-30)))
    return worst


def _call(module: Any, inputs: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    import torch

    with torch.no_grad():
        outputs = module(*(x.clone() for x in inputs))
    return [x.numpy() for x in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]


def reason(error: BaseException) -> str:
    """Returns an error in one line of at most 300 letters: its text, or the first line and what it came from.

    The other lines of torch's exporters are advice, the same for all models.
    """
    first = error
    while first.__cause__ is not None:
        first = first.__cause__
    lines = [str(error)] if first is error else [str(error).partition("\n")[0], f"From {type(first).__name__}: {first}"]
    return f"{type(error).__name__}: {' '.join(' '.join(lines).split())}"[:300]
