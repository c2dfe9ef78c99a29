"""What the op table holds, operator by operator, for people."""

from __future__ import annotations

import re
from dataclasses import dataclass

from onnx import defs

from onnx2nn.table import Row, load_rows

_KINDS = (
    ("float", r"float16|float|double|bfloat16"),
    ("float8", r"float8\w*"),
    ("float4", r"float4\w*"),
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
        revisions: the opset versions in which it changed; where onnx has no schema, those from which its rows hold.
        types: what its first input (without inputs: output) may be, in groups.
        built: `calls` of torch functions or layers, `subgraph`, or `one call` that runs on real values.
    """

    domain: str
    operator: str
    revisions: tuple[int, ...]
    types: tuple[str, ...]
    built: str


def entries() -> list[Entry]:
    """Returns what the table holds, by domain and operator; what `onnx2nn.register` added too."""
    rows: dict[tuple[str, str], list[Row]] = {}
    for row in load_rows():
        rows.setdefault((row.domain, row.operator), []).append(row)
    revisions: dict[tuple[str, str], list[int]] = {}
    for schema in defs.get_all_schemas_with_history():
        revisions.setdefault((schema.domain, schema.name), []).append(schema.since_version)
    return [
        Entry(
            domain or "ai.onnx",
            operator,
            tuple(sorted(revisions.get((domain, operator), [row.since for row in held]))),
            _types(domain, operator),
            _built(held[-1]),
        )
        for (domain, operator), held in sorted(rows.items())
    ]


def _built(row: Row) -> str:
    if row.region:
        return "subgraph"
    return "one call" if row.opaque or row.whole else "calls"


def _types(domain: str, operator: str) -> tuple[str, ...]:
    if not defs.has(operator, domain):
        return ()
    schema = defs.get_schema(operator, domain)
    values = [*schema.inputs, *schema.outputs]
    if not values:
        return ()
    names = set(values[0].types)
    elements = {found for name in names for found in re.findall(r"\w+(?=\))", name)}
    kinds = [kind for kind, pattern in _KINDS if any(re.fullmatch(pattern, element) for element in elements)]
    outer = [word for word in ("seq", "optional", "map") if any(name.startswith(f"{word}(") for name in names)]
    return (*kinds, *({"seq": "sequence"}.get(word, word) for word in outer))
