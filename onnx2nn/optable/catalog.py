"""Lists the op table operator by operator, for the documentation and the command line.

Measured facts that no row holds (whether modules pass torch.export, how OneFlow treats the operator) stand in
`measured.json`, written by the runs that measured them (`scripts/measured.py`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from typing import Any

from onnx import defs

from onnx2nn.optable.registry import TABLE
from onnx2nn.optable.row import OWN, Row

_KINDS = (
    ("float", r"float16|float|double|bfloat16"),
    ("float8", r"float8\w*"),
    ("float4", r"float4\w*"),
    ("float6", r"float6\w*"),
    ("int", r"int(8|16|32|64)"),
    ("uint", r"uint(8|16|32|64)"),
    ("int4", r"u?int[24]"),
    ("bool", r"bool"),
    ("string", r"string"),
    ("complex", r"complex\d+"),
)
"""Names of groups of ONNX's element types, and the types themselves."""


@dataclass(frozen=True)
class Entry:
    """One operator of the table.

    Attributes:
        domain: `"ai.onnx"` is written out.
        operator: its name.
        revisions: the opset versions in which it changed; without a schema in onnx, the first versions of its rows.
        types: groups of the element types of the first input or the first output, of the one that admits more types;
            `("PyTorch's",)` where the node names an operator of PyTorch.
        built: `layer` (it has `layers`), `function` (calls of torch functions), `subgraph`, `opaque` (one call on real
            values), or `expanded`: it has no row, and the function in its schema is imported.
        layers: the `torch.nn` layers that replace it where its weights are constants.
        exported: the number of its cases that pass torch.export, and the number of its cases without data-dependent
            shapes: from ONNX's suite, else from this project's case lists; None without such cases.
        oneflow_import: the number of its cases in ONNX's suite that are right on OneFlow, and the number of all; None
            without cases.
        oneflow_export: the OneFlow ops that are exported to it.
    """

    domain: str
    operator: str
    revisions: tuple[int, ...]
    types: tuple[str, ...]
    built: str
    layers: tuple[str, ...]
    exported: tuple[int, int] | None
    oneflow_import: tuple[int, int] | None
    oneflow_export: tuple[str, ...]


def entries() -> list[Entry]:
    """Returns the operators that files may hold, sorted by domain and name, with those from `onnx2nn.register`."""
    measured = json.loads(resources.files("onnx2nn.optable").joinpath("measured.json").read_text(encoding="utf-8"))
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in TABLE:
        if row.domain != OWN:  # no file holds these
            rows.setdefault((row.domain, row.operator), []).append(row)
    revisions: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        revisions.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    expanded: dict[tuple[str, str], list[Row]] = {n: [] for n in revisions if n not in rows and _has_function(*n)}
    found = []
    for (domain, operator), held in sorted({**rows, **expanded}.items()):
        name = f"{domain}.{operator}".lstrip(".")
        layers = measured["layers"].get(name, ())
        standard = (domain, operator) in revisions  # the suite's cases name the operator alone
        found.append(
            Entry(
                domain or "ai.onnx",
                operator,
                tuple(sorted(revisions.get((domain, operator), [row.since for row in held]))),
                _types(domain, operator, held) or tuple(measured["types"].get(name, ())),
                _built(held[-1], layers) if held else "expanded",
                tuple(layers),
                _score(measured["conformance"].get(operator, ()) if standard else (), 3, 2)
                or _score(measured["exported"].get(name, ()), 0, 1),
                _score(measured["oneflow_import"].get(operator, ()) if standard else (), 1, 0),
                tuple(measured["oneflow_export"].get(operator, ()) if standard else ()),
            )
        )
    return found


def _has_function(domain: str, operator: str) -> bool:
    schema: Any = defs.get_schema(operator, domain=domain)
    return not schema.deprecated and (schema.has_function or schema.has_context_dependent_function)


def _built(row: Row, layers: Sequence[str]) -> str:
    if row.call == "subgraph":
        return "subgraph"
    if row.call != "inline":
        return "opaque"
    return "layer" if layers else "function"


def _score(counts: Sequence[int], right: int, of: int) -> tuple[int, int] | None:
    return (counts[right], counts[of]) if counts and counts[of] else None


def _types(domain: str, operator: str, rows: Sequence[Row]) -> tuple[str, ...]:
    if any(row.any_attribute for row in rows):
        return ("PyTorch's",)
    return kinds(defs.get_schema(operator, domain=domain)) if defs.has(operator, domain) else ()


def kinds(schema: Any) -> tuple[str, ...]:
    """Returns groups of the element types of the first input or the first output, of the one that admits more types.

    Args:
        schema: an operator's schema from onnx, or from ONNX Runtime, which has the same fields.
    """
    values = [set(group[0].types) for group in (schema.inputs, schema.outputs) if group]
    names = max(values, key=lambda types: len(_elements(types)), default=set())
    elements = _elements(names)
    found = [kind for kind, pattern in _KINDS if any(re.fullmatch(pattern, element) for element in elements)]
    outer = [word for word in ("seq", "optional", "map") if any(name.startswith(f"{word}(") for name in names)]
    return (*found, *({"seq": "sequence"}.get(word, word) for word in outer))


def _elements(types: Iterable[str]) -> set[str]:
    return {found for name in types for found in re.findall(r"\w+(?=\))", name)}
