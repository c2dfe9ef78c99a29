"""Imported modules as Python source: nested `nn.Module` classes that need only torch, and their weights beside them."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from onnx2nn.errors import InputError
from onnx2nn.ground.atomic_files import check_folder_writable, made_folder, replacing
from onnx2nn.ground.device_placement import device_of
from onnx2nn.ground.extras import require
from onnx2nn.ground.limits import Limits
from onnx2nn.loading import load
from onnx2nn.output.stored_types import check_types
from onnx2nn.output.weight_files import written_by_safetensors
from onnx2nn.verification.module_runs import check_same, inputs_for

if TYPE_CHECKING:
    import torch
    from torch import nn

__all__ = ["check_folder", "source_of", "to_python", "write_source"]


def to_python(
    model: Any,
    folder: str | os.PathLike[str],
    *,
    example_inputs: Sequence[np.ndarray | torch.Tensor] | None = None,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> str:
    """Writes a model as `model.py` and `weights.safetensors`.

    The file holds a class for every part of the model that the names in the ONNX file distinguish, one class for parts
    that differ only in numbers, and `load_model()`. It imports torch and safetensors, numpy where an operator needs it,
    and never onnx2nn. Its outputs and the keys of its state_dict are the imported module's. If, Loop and Scan are
    written as modules that run their graphs; operators that run as one function are written as functions.

    Args:
        model: an imported `torch.fx.GraphModule`, or a source of `load`: a path, bytes, an open file, a `ModelProto`.
        folder: of the files; made where it is missing. Each of the two files appears complete or not at all.
        example_inputs: one array or tensor for each input; the file is run on them and compared with the module first.
        follow_links: as for `load`, where `model` is a source.
        limits: as for `load`, where `model` is a source.

    Returns:
        A line that describes the files.

    Raises:
        InputError: the folder cannot be written, or has the name of a file, `*.py`; or parts of the model cannot be
            written with torch, such as operators on strings; the error says which nodes and why.
        MissingDependencyError: torch or safetensors is not installed.
        VerificationError: the file gives other outputs on `example_inputs`.
        UnsupportedModelError, LimitError, ModelFileError: as for `load`.
    """
    require("torch", extra="torch", purpose="Writing a model as source")
    from torch import nn

    check_folder(folder)
    if not isinstance(model, nn.Module):
        model = load(model, follow_links=follow_links, limits=limits)
    return write_source(model, Path(folder), example_inputs)


def check_folder(folder: str | os.PathLike[str]) -> None:
    """Checks before long work that `folder` can be written, and is not meant as the name of one file.

    Raises:
        InputError: it cannot, or is.
    """
    path = Path(folder)
    if path.suffix == ".py" and not path.is_dir():
        raise InputError(f"{path} is the name of a file. Name a folder, {path.with_suffix('')}: model.py and weights.")
    check_folder_writable(path)


def write_source(
    model: nn.Module,
    target: Path,
    example_inputs: Sequence[np.ndarray | torch.Tensor] | None,
    *,
    weights: str = "weights.safetensors",
    others: Mapping[str, str] | None = None,
) -> str:
    """Writes an imported module to a folder, see `to_python`.

    Args:
        model: the module.
        target: the folder.
        example_inputs: as for `to_python`.
        weights: name of the file of the weights.
        others: texts of further files, by name.

    Raises:
        InputError, MissingDependencyError, VerificationError: as for `to_python`.
    """
    safetensors = require("safetensors.torch", extra="torch", purpose="Writing a model as source")
    source, moved = _source(model, weights)
    namespace: dict[str, Any] = {"__name__": __name__, "__file__": "model.py"}  # dataclasses look their module up
    exec(compile(source, "model.py", "exec", dont_inherit=True), namespace)
    tensors = _tensors(model, namespace, moved)
    check_types(safetensors, tensors)
    texts = {**(others or {}), "model.py": source}
    with contextlib.ExitStack() as files:
        files.enter_context(made_folder(target))
        stored = files.enter_context(replacing(target / weights))
        with written_by_safetensors(stored):
            safetensors.save_file(tensors, str(stored))
        for name, text in texts.items():
            files.enter_context(replacing(target / name)).write_text(text, encoding="utf-8")
        if example_inputs is not None:
            written = namespace["load_model"](stored).to(device_of(model, "cpu"))
            check_same(model, written, inputs_for(model, example_inputs), "exported program")
    count = source.count("\nclass ")
    classes = f"{count} class{'es' * (count != 1)}"
    return f"{target / 'model.py'}: {len(source.splitlines())} lines, {classes}; {target / weights}"


def source_of(model: nn.Module) -> str:
    """Returns the text of `model.py` for an imported module.

    Raises:
        InputError: as for `to_python`.
    """
    return _source(model)[0]


def _source(model: nn.Module, weights: str = "weights.safetensors") -> tuple[str, dict[str, str]]:
    """Returns the text of `model.py`, and the new → old keys of buffers that another class holds than in `model`."""
    from torch import fx

    from onnx2nn.fx.blocks.partition import divide
    from onnx2nn.output.python_source.classes import make_classes
    from onnx2nn.output.python_source.model_file import document
    from onnx2nn.output.python_source.program import read_program
    from onnx2nn.unfreeze.vectorised import Vectorised

    arrangement = None
    if isinstance(model, Vectorised):
        arrangement, model = model.batch_arrangement, model.one_sample
    if not isinstance(model, fx.GraphModule):
        raise InputError(
            f"Source is written of imported modules, not of a {type(model).__name__}. Give a module of onnx2nn.load."
        )
    program = read_program(model)
    kinds, moved = make_classes(divide(program))
    return document(program, kinds, arrangement, weights), moved


def _tensors(model: nn.Module, namespace: Mapping[str, Any], moved: Mapping[str, str]) -> dict[str, torch.Tensor]:
    """Returns the tensors of the source's module, each once, after checking that they are the tensors of `model`."""
    import torch

    with torch.device("meta"):
        kind = namespace["load_model"].__annotations__["return"]
        written = namespace[kind]() if isinstance(kind, str) else kind()
    ours = dict([*model.named_parameters(remove_duplicate=False), *model.named_buffers(remove_duplicate=False)])
    ours |= {new: ours[old] for new, old in moved.items()}
    theirs = dict([*written.named_parameters(), *written.named_buffers()])
    wrong = set(written.state_dict()) ^ set(model.state_dict())
    wrong |= {
        name
        for name, tensor in theirs.items()
        if name not in ours or (tensor.shape, tensor.dtype) != (ours[name].shape, ours[name].dtype)
    }
    if wrong:
        raise InputError(
            f"The source's weights differ from the model's: {', '.join(sorted(wrong)[:5])}. Please report it."
        )
    found: dict[str, torch.Tensor] = {}
    memory: set[int] = set()
    for name in theirs:
        own = ours[name].detach().contiguous()
        address = own.untyped_storage().data_ptr()  # a safetensors file holds no two views of one memory
        found[name] = own.clone() if address in memory else own
        memory.add(address)
    return found
