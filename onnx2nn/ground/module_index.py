"""Which modules of a package have what, as a generated file lists it: modules are imported where a model needs them."""

from __future__ import annotations

import json
from importlib import resources


def modules_by_name(package: str, file: str) -> dict[str, tuple[str, ...]]:
    """Returns the modules that have something of a name, by the name.

    Args:
        package: holds the file.
        file: JSON, with the names by module; scripts/tables.py writes it.
    """
    text = resources.files(package).joinpath(file).read_text(encoding="utf-8")
    found: dict[str, tuple[str, ...]] = {}
    for module, names in json.loads(text).items():
        for name in names:
            found[name] = (*found.get(name, ()), module)
    return found
