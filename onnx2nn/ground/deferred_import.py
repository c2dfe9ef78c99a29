"""Imports that wait: of modules that a package imports at its own import and seldom uses."""

from __future__ import annotations

import contextlib
import importlib
import sys
import types
from collections.abc import Iterator
from typing import Any

_UNUSED_BY_ONNX_IR = (
    *("sympy", "onnx_ir._symbolic_shapes"),  # for arithmetic on symbolic dimensions: most of its import
    "packaging.version",
    *("google.protobuf.json_format", "google.protobuf.text_format"),
    *("onnx.compose", "onnx.gen_proto", "onnx.parser", "onnx.printer", "onnx.utils", "onnx.version_converter"),
)
"""Modules that onnx_ir imports, and onnx with it, which the import of a binary file does not use."""


def import_onnx_ir() -> None:
    """Imports onnx_ir without what the import of a model does not use."""
    import_without("onnx_ir", *_UNUSED_BY_ONNX_IR)


def import_without(package: str, *unused: str) -> None:
    """Imports a package, but not some modules that it imports: it gets stand-ins, whose first use imports the module.

    `sys.modules` has a stand-in no longer than the import of the package, and no longer than its first use. A module
    that is imported already is left as it is, and a name that nothing imports does nothing. Where parts of an unused
    package are imported too (`import unused.part`), everything is imported at once. A part of another package may be
    unused alone (`other.part`); that package is then imported.

    Args:
        package: its name.
        unused: the names of the modules.
    """
    if package in sys.modules:
        return
    try:
        with _stand_ins(package, unused):
            importlib.import_module(package)
    except _PartError:
        importlib.import_module(package)


class _PartError(Exception):
    """A part of a package with a stand-in is imported: Python would import the part a second time for the package."""


@contextlib.contextmanager
def _stand_ins(package: str, names: tuple[str, ...]) -> Iterator[None]:
    modules = {name: _stand_in(name) for name in names if name not in sys.modules}
    sys.modules.update(modules)
    try:
        for name, module in modules.items():
            parent, _, part = name.rpartition(".")
            if parent and parent != package:
                # `import parent.part` finds the part in `sys.modules`, and then does not bind it to the parent.
                with contextlib.suppress(ModuleNotFoundError):
                    setattr(importlib.import_module(parent), part, module)
        yield
    finally:
        for module in modules.values():
            _forget(module)


def _stand_in(name: str) -> types.ModuleType:
    module: Any = types.ModuleType(name)

    def attribute(key: str) -> Any:  # what a module lacks is looked up by its `__getattr__` (PEP 562)
        if key == "__path__" and sys.modules.get(name) is module:
            raise _PartError(name)
        _forget(module)
        return getattr(importlib.import_module(name), key)

    module.__getattr__ = attribute
    return module


def _forget(module: types.ModuleType) -> None:
    if sys.modules.get(module.__name__) is module:
        del sys.modules[module.__name__]
