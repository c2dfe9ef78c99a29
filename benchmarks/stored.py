"""Results of a benchmark, stored beside its script, and the page of the documentation that is written from them."""

from __future__ import annotations

import json
import os
import platform
from pathlib import Path
from typing import Any

DOCS = Path(__file__).parents[1] / "docs"


def store(results: Path, found: Any, page: Path, text: str) -> None:
    """Writes results, and the page that they make."""
    from onnx2nn.ground.atomic_files import replacing  # a page is made without onnx2nn

    with replacing(results) as temporary:
        temporary.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")
    with replacing(page) as temporary:
        temporary.write_text(text, encoding="utf-8")


def machine() -> str:
    """Returns the processor, the number of its cores, and its vector instructions as torch names them."""
    import torch  # likewise

    flags = Path("/proc/cpuinfo").read_text(encoding="utf-8") if Path("/proc/cpuinfo").exists() else ""
    lines = dict(line.split(":", 1) for line in flags.splitlines() if ":" in line)
    model = next((value.strip() for key, value in lines.items() if key.strip() == "model name"), platform.machine())
    return f"{model}, {os.cpu_count()} cores, {torch.backends.cpu.get_cpu_capability()}"


def quoted(reason: str) -> str:
    """Returns a reason for a failure as a cell of a table shows it."""
    return "`" + reason.replace("`", "'").replace("|", "/")[:160] + "`"
