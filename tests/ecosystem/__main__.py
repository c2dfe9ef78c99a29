"""Uses every tool on every original and import, which takes minutes: `python -m tests.ecosystem --write`.

python -m tests.ecosystem --write                         # the stored results and docs/ecosystem.md
python -m tests.ecosystem --write --tool lora --model gpt2  # likewise, asking only of these anew
python -m tests.ecosystem --write --counts                # likewise, counting modules and calls alone anew
python -m tests.ecosystem --tool lora                     # prints what is found, changes nothing
"""

from __future__ import annotations

import argparse
import datetime
import importlib.metadata
import time
from collections.abc import Iterable

import torch

from tests.ecosystem import cells, stored
from tests.ecosystem.document import DOCUMENT, document
from tests.ecosystem.subjects.subject import SUBJECTS
from tests.installed import is_installed


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--write", action="store_true", help="write tests/ecosystem/results.json and docs/ecosystem.md")
    parser.add_argument("--tool", action="append", choices=cells.tool_names(), help="only this one, may be repeated")
    parser.add_argument("--model", action="append", choices=list(SUBJECTS), help="only this one, may be repeated")
    parser.add_argument("--counts", action="store_true", help="use no tool, count modules and calls")
    options = parser.parse_args()
    torch.set_num_threads(1)  # as the tests do; the ranks are two processes
    old = stored.read() if stored.PATH.exists() else None
    found: dict[str, dict[str, dict[str, stored.Cell]]] = {}
    dates = dict(old.dates) if old else {}
    for name, model in cells.pairs():
        asked = not options.counts and name in (options.tool or [name]) and model in (options.model or [model])
        tool = cells.described(name)
        missing = [package for package in tool.packages if not is_installed(package)]
        kept = old.cells.get(name, {}).get(model) if old else None
        if asked and missing:
            print(f"   -    {name}, {model}: {', '.join(missing)} not installed", flush=True)
        if asked and not missing:
            start = time.perf_counter()
            row = cells.cells(name, model)
            words = " | ".join(f"{cell.status} {cell.reason}".strip() for cell in row.values())
            print(f"{time.perf_counter() - start:5.1f} s  {name}, {model}: {words}", flush=True)
            dates |= {name: datetime.date.today().isoformat()} if tool.held else {}
        elif kept:
            row = dict(kept)
        else:
            continue
        found.setdefault(name, {})[model] = row
    if not options.write:
        return
    models = [model for model in SUBJECTS if model in (options.model or [model]) or not old or model not in old.modules]
    results = stored.Results(
        versions=_versions(found, old),
        tools={name: cells.described(name) for name in found},
        dates={name: date for name, date in dates.items() if name in found},
        cells=found,
        modules={**(old.modules if old else {}), **{model: cells.modules(model) for model in models}},
        calls={**(old.calls if old else {}), **{model: cells.calls(model) for model in models}},
    )
    stored.write(results)
    DOCUMENT.write_text(document(stored.read()), encoding="utf-8")


def _versions(names: Iterable[str], old: stored.Results | None) -> dict[str, str]:
    """Returns the versions of all packages; of those that are not installed the ones of the stored results."""
    packages = [*stored.PACKAGES, *(package for name in names for package in cells.described(name).packages)]
    return {
        package: importlib.metadata.version(package) if is_installed(package) or not old else old.versions[package]
        for package in dict.fromkeys(packages)
    }


if __name__ == "__main__":
    main()
