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

from scripts.conversions.rows import Facts, File


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
    inputs: Sequence[np.ndarray[Any, Any]]
    outputs: Sequence[np.ndarray[Any, Any]] | None
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
    """

    build: Callable[[], Any]
    inputs: Callable[[int], tuple[Any, ...]]


BATCH, OTHER_BATCH = 2, 3
"""The batch that the exporter sees, and the one that conversions are compared at."""


def export_torch(file: File, model: TorchModel, path: Path) -> Exported:
    """Exports a model with random weights and an open batch, or with a fixed one where its exporter fixes it.

    Raises:
        NotExported: the model does not run, or its exporter refuses it.
    """
    import torch

    from scripts.torch_exports import WRITERS, seeded

    torch.set_num_threads(1)
    try:
        module = seeded(model.build)
        inputs, other = model.inputs(BATCH), model.inputs(OTHER_BATCH)
        expected = _call(module, inputs)
    except Exception as error:  # whatever a package of models raises
        raise NotExported(f"the model does not run: {reason(error)}") from error
    fixed = ""
    try:
        WRITERS[file.exporter](path, module, inputs, other)
        inputs, expected = other, _call(module, other)
    except Exception as error:  # exporters have no common error
        fixed = reason(error)
        try:
            WRITERS[file.exporter](path, module, inputs)
        except Exception as again:  # likewise
            raise NotExported(f"torch.onnx.export: {reason(again)}") from again
    author = {"keys": list(module.state_dict()), **({"fixed": fixed} if fixed else {})}
    return Exported(path, [x.numpy() for x in inputs], expected, author)


def _call(module: Any, inputs: tuple[Any, ...]) -> list[np.ndarray[Any, Any]]:
    import torch

    with torch.no_grad():
        outputs = module(*(x.clone() for x in inputs))
    return [x.numpy() for x in ((outputs,) if isinstance(outputs, torch.Tensor) else outputs)]


def reason(error: BaseException) -> str:
    """Returns an error in one line of at most 300 letters."""
    return f"{type(error).__name__}: {' '.join(str(error).split())}"[:300]
