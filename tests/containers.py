"""Says how many containers of imports run: blocks and lists, of all modules that hold modules or weights.

    python -m tests.containers FOLDER...

It counts the ONNX files of folders, such as the models of `scripts/behaviour.py`: as they are, without all names but
the weights', and without any name, where `blocks="repeated"` finds what is equal. A file without containers, or that
cannot be imported, is left out.
"""

from __future__ import annotations

import argparse
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from torch import nn

import onnx2nn
from onnx2nn.errors import Onnx2nnError
from tests.stripped import without_names, without_scopes


def containers_of(module: Any) -> Counter[str]:
    """Counts the containers of an import: `blocks`, `lists`, and those that are `flat`; `calls`, and those `inside`."""
    tree = module.meta["onnx2nn"]["tree"]
    kinds = [type(inner) for name, inner in module.named_modules() if name]
    return Counter(
        blocks=len(tree["blocks"]),
        lists=kinds.count(nn.ModuleList) + kinds.count(nn.ModuleDict),
        flat=kinds.count(nn.Module),
        calls=tree["calls"],
        inside=tree["inside"],
        lines=max(len(inner.code.splitlines()) for inner in module.modules() if hasattr(inner, "code")),
    )


def _scopes_removed(path: Path, folder: Path) -> Path:
    copied = folder / path.name
    copied.write_bytes(path.read_bytes())
    for beside in path.parent.glob(f"{path.name}*"):  # external data
        (folder / beside.name).write_bytes(beside.read_bytes())
    return without_scopes(copied)


def _as_it_is(path: Path, folder: Path) -> Path:
    return path


def _names_removed(path: Path, folder: Path) -> Path:
    return without_names(path, folder / path.name)


FORMS: dict[str, tuple[Callable[[Path, Path], Path], str]] = {
    "as they are": (_as_it_is, "named"),
    "names of weights alone": (_scopes_removed, "named"),
    "no names": (_names_removed, "repeated"),
}
"""What a file is made into, and the `blocks` that are asked for."""


def counted(paths: list[Path], form: str) -> Iterator[tuple[str, Counter[str]]]:
    """Yields the names of files with their containers."""
    change, blocks = FORMS[form]
    for path in paths:
        with tempfile.TemporaryDirectory() as folder:
            try:
                module = onnx2nn.load(change(path, Path(folder)), blocks=blocks)
            except Onnx2nnError:
                continue
        found = containers_of(module)
        if found["blocks"] + found["lists"] + found["flat"]:
            yield path.stem, found


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="+", type=Path, help="with ONNX files, also in folders inside")
    parser.add_argument("--each", action="store_true", help="print a line for each file")
    options = parser.parse_args()
    warnings.simplefilter("ignore")
    logging.disable(logging.WARNING)
    paths = sorted(path for folder in options.folders for path in folder.rglob("*.onnx"))
    for form in FORMS:
        total, files, longest = Counter[str](), 0, 0
        for name, found in counted(paths, form):
            longest = max(longest, found.pop("lines"))
            total, files = total + found, files + 1
            if options.each:
                print(f"{form}: {name}: {dict(found)}", flush=True)
        run, every = total["blocks"] + total["lists"], total["blocks"] + total["lists"] + total["flat"]
        print(
            f"{form}: {files} files, {total['blocks']} blocks and {total['lists']} lists of {every} containers "
            f"({100 * run / max(every, 1):.1f} %); {total['inside']} of {total['calls']} calls inside of blocks "
            f"({100 * total['inside'] / max(total['calls'], 1):.1f} %); the longest program has {longest} lines"
        )


if __name__ == "__main__":
    main()
