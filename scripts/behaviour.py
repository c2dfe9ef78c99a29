"""Records what imports are, and says what a later version of this tree makes of the same files.

    python scripts/behaviour.py record FOLDER              # before a change; makes the models where they are missing
    python scripts/behaviour.py compare FOLDER             # after it
    python scripts/behaviour.py compare FOLDER --only digits bert_dynamo+unraised
    python scripts/behaviour.py compare FOLDER --framework oneflow    # in OneFlow's environment

The models (`scripts/behaviour_models.py`) stand in `FOLDER/models`, a record of each import, text files and
`outputs.npz`, in `FOLDER/torch/NAME` or `FOLDER/oneflow/NAME`: the parameters and buffers with a digest of each, the
layers, the program of each graph, `meta` of modules and of the program's nodes, what `check` says, what the calls give
and the source that `to_python` writes. An import or a source that is refused is recorded by its error.

It uses onnx2nn's face alone, so that it runs wherever the modules stand. Outputs are compared bit by bit, with what
torch or OneFlow computes on one thread; they hold for one machine and one version of the framework.
"""

from __future__ import annotations

import argparse
import difflib
import hashlib
import importlib
import json
import re
import sys
import tempfile
import time
import warnings
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]

import onnx2nn  # noqa: E402

IMPORTS, CALLS = "imports.json", "{model}.npz"


def make_models(folder: Path) -> None:
    """Writes the models, the inputs of their calls, and the list of imports, where they are missing."""
    folder.mkdir(parents=True, exist_ok=True)
    import behaviour_models

    for name, recipe in behaviour_models.recipes().items():
        path = folder / f"{name}.onnx"
        calls = path.with_suffix(".npz")
        if not calls.exists():
            print(f"making {name}", flush=True)
            inputs = recipe(path)
            arrays = {f"{i}_{j}": array for i, call in enumerate(inputs) for j, array in enumerate(call)}
            np.savez(calls, **arrays)
    listed = {name: {"model": it.model, "options": it.options} for name, it in behaviour_models.imports().items()}
    (folder / IMPORTS).write_text(json.dumps(listed, indent=1))


def options_of(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the keywords of `load`; the keys that JSON has as text are axes."""
    options = dict(entry["options"])
    if "dynamic" in options:
        options["dynamic"] = {
            name: {int(axis): dim for axis, dim in axes.items()} for name, axes in options["dynamic"].items()
        }
    return options


def read_calls(path: Path) -> list[list[np.ndarray]]:
    """Returns the stored inputs of each call."""
    calls: list[list[np.ndarray]] = []
    with np.load(path, allow_pickle=False) as stored:
        for key in sorted(stored.files, key=lambda key: tuple(map(int, key.split("_")))):
            if int(key.split("_")[0]) == len(calls):
                calls.append([])
            calls[-1].append(stored[key])
    return calls


class Torch:
    """How modules of PyTorch are called and read."""

    def __init__(self) -> None:
        import torch

        self.library = torch
        torch.set_num_threads(1)

    def call(self, module: Any, inputs: Sequence[np.ndarray]) -> Any:
        """Returns what the module gives."""
        self.library.manual_seed(0)
        with self.library.no_grad():
            return module(*[self.library.from_numpy(array.copy()) for array in inputs])

    def array(self, tensor: Any) -> np.ndarray:
        """Returns a tensor's values; of bfloat16 and smaller floats, which NumPy lacks, their bits."""
        tensor = tensor.detach()
        try:
            return tensor.numpy()
        except TypeError:
            return tensor.contiguous().view(self.library.uint8).numpy()


class OneFlow:
    """How modules of OneFlow are called and read."""

    def __init__(self) -> None:
        onnx2nn.load(ROOT / "examples" / "digits" / "digits.onnx", framework="oneflow")  # which prepares the libraries
        self.library = importlib.import_module("oneflow")

    def call(self, module: Any, inputs: Sequence[np.ndarray]) -> Any:
        """Returns what the module gives."""
        self.library.manual_seed(0)
        with self.library.no_grad():
            return module(*[self.library.tensor(array) for array in inputs])

    def array(self, tensor: Any) -> np.ndarray:
        """Returns a tensor's values."""
        return tensor.detach().numpy()


FRAMEWORKS = {"torch": Torch, "oneflow": OneFlow}


def plain(value: Any) -> Any:
    """Returns what `json` writes, the same in every process."""
    if value is None or isinstance(value, str | bool | int | float):
        return value
    if isinstance(value, Mapping):
        return {key if isinstance(key, str) else repr(key): plain(item) for key, item in value.items()}
    if isinstance(value, np.ndarray):
        return f"array {value.dtype} {value.tolist()}"
    if isinstance(value, set | frozenset):
        return sorted((plain(item) for item in value), key=repr)
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    if hasattr(value, "__dataclass_fields__"):
        return {type(value).__name__: plain(vars(value))}
    return re.sub(r"0x[0-9a-f]+", "0x", repr(value))


def text_of_state(module: Any, framework: Any) -> str:
    """Returns a line for each entry of the state_dict: key, shape, dtype, whether it is trained, digest."""
    lines = []
    for key, tensor in module.state_dict(keep_vars=True).items():
        array = np.ascontiguousarray(framework.array(tensor))
        digest = hashlib.sha256(array.tobytes()).hexdigest()[:16]
        lines.append(
            f"{key} {tuple(tensor.shape)} {tensor.dtype} {'trained' if tensor.requires_grad else 'fixed'} {digest}"
        )
    return "\n".join(lines)


def text_of_layers(module: Any) -> str:
    """Returns a line for each module: its path, class and settings, and how many hooks it has."""
    lines = []
    for path, part in module.named_modules():
        hooks = len(part._forward_pre_hooks) + len(part._forward_hooks)
        settings = part.extra_repr().replace("\n", "; ")
        lines.append(f"{path or '.'}: {type(part).__name__}({settings}){f' {hooks} hooks' if hooks else ''}")
    return "\n".join(lines)


def text_of_code(module: Any) -> str:
    """Returns the program of every graph."""
    programs = ((path, part.code) for path, part in module.named_modules() if hasattr(part, "code"))
    return "\n".join(f"# {path or '.'}\n{code.strip()}\n" for path, code in programs)


def text_of_meta(module: Any) -> str:
    """Returns `meta` of every graph, and of its nodes."""
    found: dict[str, Any] = {}
    for path, part in module.named_modules():
        if hasattr(part, "meta"):
            found[path or "."] = plain(part.meta)
        if hasattr(part, "graph"):
            nodes = {node.name: " ".join(map(str, plain(node.meta).items())) for node in part.graph.nodes}
            found[f"{path or '.'} nodes"] = nodes
    return json.dumps(found, indent=1, ensure_ascii=False)


def text_of_python(module: Any) -> str:
    """Returns the source that `to_python` writes."""
    with tempfile.TemporaryDirectory() as folder:
        try:
            onnx2nn.to_python(module, folder)
        except Exception as error:
            return text_of_error(error)
        return (Path(folder) / "model.py").read_text(encoding="utf-8")


def text_of_error(error: BaseException) -> str:
    """Returns an error's class and text, without the places of this run."""
    text = f"{type(error).__name__}: {error}"
    return re.sub(r"0x[0-9a-f]+", "0x", re.sub(r"/\S*/", "", text))


def flat(value: Any, name: str) -> Iterator[tuple[str, Any]]:
    """Returns the tensors and other values of nested results, by their places."""
    if isinstance(value, list | tuple):
        for index, item in enumerate(value):
            yield from flat(item, f"{name}_{index}")
    elif isinstance(value, Mapping):
        yield from flat([*value.items()], name)
    else:
        yield name, value


def call(module: Any, calls: Sequence[Sequence[np.ndarray]], framework: Any) -> tuple[str, dict[str, np.ndarray]]:
    """Returns what the calls give: a line for each result, and the arrays."""
    lines, arrays = [], {}
    for number, inputs in enumerate(calls):
        try:
            results = framework.call(module, inputs)
        except Exception as error:
            lines.append(f"{number}: {text_of_error(error)}")
            continue
        for name, value in flat(results, str(number)):
            if hasattr(value, "dtype") and hasattr(value, "detach"):
                arrays[name] = framework.array(value)
                lines.append(f"{name}: {tuple(value.shape)} {value.dtype}")
            else:
                lines.append(f"{name}: {plain(value)}")
    return "\n".join(lines), arrays


def record(models: Path, entry: Mapping[str, Any], kind: str, target: Path) -> None:
    """Imports a model and writes what the import is."""
    framework = FRAMEWORKS[kind]()
    path = models / f"{entry['model']}.onnx"
    texts = {"check": str(onnx2nn.check(path))}
    arrays: dict[str, np.ndarray] = {}
    try:
        module = onnx2nn.load(path, framework=kind, **options_of(entry))
    except Exception as error:
        texts["error"] = text_of_error(error)
    else:
        texts |= {"state": text_of_state(module, framework), "layers": text_of_layers(module)}
        texts |= {"code": text_of_code(module), "meta": text_of_meta(module)}
        texts["outputs"], arrays = call(module, read_calls(path.with_suffix(".npz")), framework)
        if kind == "torch":
            texts["python"] = text_of_python(module)
    target.mkdir(parents=True, exist_ok=True)
    for stale in target.iterdir():
        stale.unlink()
    for name, text in texts.items():
        (target / f"{name}.txt").write_text(text + "\n", encoding="utf-8")
    np.savez(target / "outputs.npz", **arrays)  # type: ignore[arg-type]  # mypy takes an array for `allow_pickle`


def differences(before: Path, after: Path) -> list[str]:
    """Returns what differs between two records of an import: lines of a unified diff, and the largest differences."""
    names = sorted({path.stem for folder in (before, after) for path in folder.glob("*.txt")})
    found = []
    for name in names:
        files = [folder / f"{name}.txt" for folder in (before, after)]
        old, new = (file.read_text(encoding="utf-8").splitlines() if file.exists() else [] for file in files)
        found += difflib.unified_diff(old, new, f"recorded {name}", f"{name} now", lineterm="", n=2)
    with np.load(before / "outputs.npz") as old, np.load(after / "outputs.npz") as new:
        for key in [key for key in old.files if key in new.files]:
            found += different(key, old[key], new[key])
    return found


def different(name: str, old: np.ndarray, new: np.ndarray) -> list[str]:
    """Returns a line where two outputs are not the same bits; other shapes and dtypes are in `outputs.txt`."""
    if old.shape != new.shape or old.dtype != new.dtype or old.tobytes() == new.tobytes():
        return []
    if old.dtype.kind not in "fc":
        return [f"output {name}: {np.count_nonzero(old != new)} of {old.size} elements differ"]
    with np.errstate(all="ignore"):
        gap = np.nan_to_num(np.abs(old.astype(np.complex128) - new.astype(np.complex128)), nan=np.inf)
    gap[(old == new) | (np.isnan(old) & np.isnan(new))] = 0
    scale = np.nanmax(np.abs(old), initial=0)
    return [f"output {name}: largest difference {gap.max():.3g} beside values up to {scale:.3g}"]


def chosen(folder: Path, only: Sequence[str], kind: str) -> dict[str, Any]:
    """Returns the imports to make; OneFlow has no options of PyTorch's alone.

    Raises:
        SystemExit: there is no such import.
    """
    listed = json.loads((folder / "models" / IMPORTS).read_text())
    unknown = sorted({*only} - {*listed})
    if unknown:
        sys.exit(f"{', '.join(unknown)}: not recorded in {folder}")
    torch_only = {"dynamic", "quantized", "trainable"}
    found = {name: entry for name, entry in listed.items() if not only or name in only}
    return {name: entry for name, entry in found.items() if kind == "torch" or not torch_only & {*entry["options"]}}


def main() -> int:
    """Runs the command line; returns 1 where something differs."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["record", "compare"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--framework", choices=[*FRAMEWORKS], default="torch")
    parser.add_argument("--only", nargs="+", default=[], metavar="NAME", help="some of the imports")
    parser.add_argument("--lines", type=int, default=60, help="of a difference to show for an import, 60")
    arguments = parser.parse_args()
    warnings.simplefilter("ignore")
    models, records = arguments.folder / "models", arguments.folder / arguments.framework
    start, recording = time.perf_counter(), arguments.action == "record"
    if recording and arguments.framework == "torch":
        make_models(models)
    entries = chosen(arguments.folder, arguments.only, arguments.framework)
    changed: list[str] = []
    for name, entry in entries.items():
        with tempfile.TemporaryDirectory() as temporary:
            target = records / name if recording else Path(temporary)
            record(models, entry, arguments.framework, target)
            if not recording:
                lines = differences(records / name, target) if (records / name).exists() else ["was not recorded"]
                shown, left = lines[: arguments.lines], len(lines) - arguments.lines
                if lines:
                    changed.append(name)
                    print(
                        "\n".join([f"== {name}", *shown, *([f"... {left} lines more"] if left > 0 else [])]), flush=True
                    )
    seconds = f"{time.perf_counter() - start:.0f} s"
    if recording:
        print(f"{len(entries)} imports are recorded in {records}, in {seconds}.")
    elif changed:
        print(
            f"{len(changed)} of {len(entries)} imports differ from their records, in {seconds}: {', '.join(changed)}."
        )
    else:
        print(f"All {len(entries)} imports are as they were recorded, in {seconds}.")
    return bool(changed)


if __name__ == "__main__":
    sys.exit(main())
