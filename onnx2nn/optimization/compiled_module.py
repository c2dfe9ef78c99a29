"""A module of machine code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from torch import nn
from torch.utils._pytree import tree_unflatten, treespec_loads

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
        self._loader = torch._inductor.aoti_load_package(str(package)).loader
        _, outputs = self._loader.get_call_spec()
        self._outputs = treespec_loads(
            outputs
        )  # reading it takes up to 30 us, which the loaded program spends each time
        super().train(False)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name.

        Raises:
            ModuleInputError: inputs for which the code was not compiled.
        """
        return tree_unflatten(self._loader.boxed_run(self.entry.checked(args, kwargs)), self._outputs)

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
