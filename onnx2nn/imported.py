"""The module that an import gives: a `torch.fx.GraphModule` that knows where its names come from."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import fx

from onnx2nn.author import NamingReport, naming_report


class ImportedModule(fx.GraphModule):
    """A model as a `torch.fx.GraphModule` that knows where its names come from, also when it was copied or saved."""

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def __reduce__(self) -> tuple[Any, ...]:
        """Torch's own way, which forgets the class and `meta`."""
        rebuild, arguments = super().__reduce__()
        return rebuilt, (rebuild, arguments, self.meta)


def rebuilt(rebuild: Callable[..., fx.GraphModule], arguments: tuple[Any, ...], meta: dict[str, Any]) -> fx.GraphModule:
    """Returns a module that torch rebuilds from a pickle, with its class and `meta`.

    Args:
        rebuild: torch's function.
        arguments: its arguments.
        meta: what the module knew of its file.
    """
    module = rebuild(*arguments)
    module.meta.update(meta)
    type(module).__bases__ = (ImportedModule,)  # torch made a class for this module alone
    return module
