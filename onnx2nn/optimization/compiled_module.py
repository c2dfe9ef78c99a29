"""A module of machine code."""

from __future__ import annotations

import operator
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import nn

from onnx2nn.optimization.entry import Entry


class CompiledModule(nn.Module):
    """A program in a package of torch's AOTInductor, which holds its weights.

    Args:
        package: the file.
        entry: what the code demands of its inputs.
        meta: the record of the ONNX file, as the imported module has it.

    Attributes:
        package: the file, which `onnx2nn.save(module, "M.pt2")` copies.
        entry: as given.
        meta: as given.
    """

    def __init__(self, package: Path, entry: Entry, meta: dict[str, Any]):
        super().__init__()
        self.package, self.entry, self.meta = package, entry, meta
        self._program = torch._inductor.aoti_load_package(str(package))
        self._form: Callable[[list[Any]], Any] | None = None
        super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name.

        Raises:
            ModuleInputError: inputs for which the code was not compiled.
        """
        inputs = self.entry.checked(args, kwargs)
        if self._form is None:
            found = self._program(*inputs)
            self._form = _form_of(found)
            return found
        # the program itself reads the structure of its outputs from text in each call, for up to 30 us
        return self._form(self._program.loader.boxed_run(inputs))

    def train(self, mode: bool = True) -> CompiledModule:
        """Refuses `mode=True`: machine code has no gradients.

        Raises:
            RuntimeError: for `mode=True`.
        """
        if mode:
            raise RuntimeError("A compiled module cannot be trained. Train the module of onnx2nn.load.")
        return super().train(mode)

    def __deepcopy__(self, memo: dict[int, Any]) -> CompiledModule:
        """Returns another module of the same package."""
        return CompiledModule(self.package, self.entry, dict(self.meta))

    def __reduce__(self) -> Any:
        """Refuses to be pickled: the package is a file of its own.

        Raises:
            TypeError: always.
        """
        raise TypeError("A compiled module is not pickled. Save it with onnx2nn.save(module, 'M.pt2').")


def _form_of(outputs: Any) -> Callable[[list[Any]], Any] | None:
    """Returns what makes outputs of the same structure from their tensors in order; None for structures in others."""
    if isinstance(outputs, torch.Tensor):
        return operator.itemgetter(0)
    if type(outputs) in (tuple, list) and all(isinstance(output, torch.Tensor) for output in outputs):
        return type(outputs)  # type: ignore[no-any-return]  # of these two
    return None
