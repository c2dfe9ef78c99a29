"""What an import found, decided and changed, as notes under titles; read from `meta["onnx2nn"]`."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from onnx2nn.importing.plan import HOLDERS
from onnx2nn.reporting.model_report import Note


def notes_of(known: Mapping[str, Any]) -> dict[str, list[Note]]:
    """Returns the notes of an import; titles without notes are left out.

    Args:
        known: `meta["onnx2nn"]` of the module.
    """
    naming = known.get("naming", {})
    raising = known.get("raising", {})
    found = {
        "Conditions on sizes": [_guard(guard) for guard in known.get("guards", ())],
        "Dynamic dimensions": _dynamic(known.get("signature", ())),
        "Dimensions that the file declares dynamic and fixes": _pairs(known.get("fixed", {}), "{}"),
        "Raised patterns": _pairs(raising.get("raised", {}), "raised {} times"),
        "Dropped replacements": [Note(str(line), "it differed from the nodes") for line in raising.get("dropped", ())],
        "Restored keys": _pairs(naming.get("restored", {}), "{}"),
        "Missing keys of the author's": _pairs(naming.get("missing", {}), "{}"),
        "Keys that are not the author's": _pairs(naming.get("extra", {}), "{}"),
        "Weights without the author's name": _pairs(naming.get("unnamed", {}), "{}"),
        "Containers that cannot be called alone": _pairs(
            {path: why for path, why in known.get("tree", {}).get("flat", {}).items() if why not in HOLDERS}, "{}"
        ),
        "Modules of which others call parts": _pairs(known.get("tree", {}).get("entered", {}), "{}"),
        "Constants left to run time": [Note(str(text), "") for text in known.get("left_to_run_time", ())],
        "Dequantised operators": _pairs(known.get("dequantized", {}).get("operators", {}), "{} nodes"),
        "Nodes that stay quantised": [Note(name, "") for name in known.get("dequantized", {}).get("kept", ())],
        "Freed dimensions": [Note(name, str(value)) for name, value in known.get("thawed", {}).items()],
    }
    return {title: notes for title, notes in found.items() if notes}


def _guard(guard: Mapping[str, Any]) -> Note:
    places = [
        f"{name} is dimension {place[1]} of {place[0]}" if place is not None else f"{name} depends on data"
        for name, place in guard["dimensions"].items()
    ]
    where = f"{guard['node']} ({guard['operator']})" if guard["node"] else "the inputs"
    return Note(guard["condition"], "; ".join([guard["reason"], *places]), where)


def _dynamic(signature: Sequence[Mapping[str, Any]]) -> list[Note]:
    places: dict[str, list[str]] = {}
    for spec in signature:
        for axis, size in enumerate(spec["shape"] or ()):
            if isinstance(size, str):
                places.setdefault(size, []).append(f"dimension {axis} of {spec['name']}")
    return [Note(name, ", ".join(where)) for name, where in places.items()]


def _pairs(found: Mapping[str, Any], form: str) -> list[Note]:
    return [Note(str(name), form.format(value)) for name, value in found.items()]
