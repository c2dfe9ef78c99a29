"""The table of language models in docs/language_models.md: what works on files of onnxruntime-genai's builder.

    python scripts/language_model_table.py                     # asks everything again, which takes half an hour
    python scripts/language_model_table.py --only llama gemma  # only these; the others stay as they are stored
    python scripts/language_model_table.py --check             # fails where the document is not what is stored

What was found is stored in `scripts/conformance_results/language_models.json`. The models are those of
scripts/language_models.py, small and with random weights.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import json
import sys
import time
import warnings
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

import onnx2nn  # noqa: E402  # likewise
from onnx2nn.language.caches import Decoder  # noqa: E402  # likewise
from scripts import language_models  # noqa: E402  # needs the path above
from scripts.language_models import ARCHITECTURES, feeds, tensors  # noqa: E402  # likewise

STORED = ROOT / "scripts" / "conformance_results" / "language_models.json"
DOCUMENT = ROOT / "docs" / "language_models.md"
BEGIN, END = "<!-- Written by scripts/language_model_table.py; do not edit. -->", "<!-- End of the table. -->"
PRECISIONS = ("fp32", "fp16", "bf16", "int4")
PACKAGES = ("torch", "onnxruntime", "onnxruntime-genai", "transformers", "peft")
PROMPT, STEPS, ADAPTED = 6, 16, 10
LARGEST = {"fp32": 2e-6, "fp16": 4e-3, "bf16": 8e-2, "int4": 2e-2}
"""Differences, relative to the largest logit, up to which outputs agree. Of int4, ONNX Runtime rounds activations to
int8: a rounding that falls otherwise moves logits by a step."""


class Subject:
    """A file and its module.

    Attributes:
        name: of the architecture.
        precision: of `PRECISIONS`.
        path: of the file; for bf16, for which ONNX Runtime's CPU has no kernels, the file of fp32.
    """

    def __init__(self, name: str, precision: str):
        self.name, self.precision = name, precision
        self.path = language_models.built(name, "fp32" if precision == "bf16" else precision)
        self.dtype = torch.bfloat16 if precision == "bf16" else None

    def load(self, **options: Any) -> Any:
        """Returns the module in the precision's type."""
        return onnx2nn.load(self.path, dtype=self.dtype, **options)

    def inputs(self, batch: int, length: int, past: int) -> tuple[torch.Tensor, ...]:
        """Returns arguments of the module, see `language_models.feeds`."""
        given = tensors(feeds(self.path, batch, length, past))
        return tuple(x.to(self.dtype) if self.dtype and x.is_floating_point() else x for x in given)


def _gap(found: Any, expected: Any) -> float:
    found, expected = (np.asarray(x, np.float32) for x in (found, expected))
    return float(np.abs(found - expected).max() / np.abs(expected).max())


def _text(gap: float, subject: Subject) -> str:
    if not gap <= LARGEST[subject.precision]:
        raise ValueError(f"differs by {gap:.0e}")
    return f"{gap:.0e}"


def prefill(subject: Subject) -> str:
    """Logits of two prompts, and the caches, beside ONNX Runtime's."""
    found = subject.load()(*subject.inputs(2, PROMPT, 0))
    expected = language_models.session(subject.path).run(None, feeds(subject.path, 2, PROMPT, 0))
    gaps = (_gap(a.float().numpy()[..., :PROMPT, :], b[..., :PROMPT, :]) for a, b in zip(found, expected, strict=True))
    return _text(max(gaps), subject)


def steps(subject: Subject) -> str:
    """Logits of tokens one after the other, each runtime with its own cache; the tokens are ONNX Runtime's.

    Of int4 also those of a file whose activations are not rounded, which must agree as closely as floats.
    """
    worst = _text(_largest_of_steps(subject, subject.path), subject)
    if subject.precision != "int4":
        return worst
    exact = _largest_of_steps(subject, language_models.built(subject.name, "int4", "accuracy_level=1"))
    if not exact <= LARGEST["fp32"]:
        raise ValueError(f"without rounding differs by {exact:.0e}")
    return f"{worst} ({exact:.0e})"


def _largest_of_steps(subject: Subject, path: Path) -> float:
    decoder, session = Decoder.of(onnx2nn.load(path, dtype=subject.dtype)), language_models.session(path)
    names = [value.name for value in session.get_outputs()]
    tokens = torch.from_numpy(feeds(path, 2, PROMPT, 0)["input_ids"])
    ours = decoder.empty(2, torch.device("cpu"))
    theirs = feeds(path, 2, PROMPT, 0)
    past, worst = 0, 0.0
    for _ in range(STEPS + 1):
        total = past + tokens.shape[1]
        theirs["input_ids"], theirs["attention_mask"] = tokens.numpy(), np.ones((2, total), np.int64)
        if "position_ids" in theirs:
            theirs["position_ids"] = np.arange(past, total)[None].repeat(2, 0)
        results = dict(zip(names, session.run(None, theirs), strict=True))
        logits, ours = decoder.step(tokens, past, ours)
        worst = max(worst, _gap(logits.float().numpy(), results["logits"]))
        theirs.update({name: results[name.replace("past_key_values", "present")] for name in theirs if "past" in name})
        tokens, past = torch.from_numpy(results["logits"][:, -1:].argmax(-1)), total
    return worst


def _agrees(run: Callable[..., Any], subject: Subject, module: Any, *sizes: tuple[int, int, int]) -> None:
    for size in sizes:
        inputs = subject.inputs(*size)
        gap = _gap(run(*inputs)[0].float().numpy(), module(*inputs)[0].float().numpy())
        _text(gap, subject)


def export(subject: Subject) -> str:
    """`torch.export` with dynamic batch, length and cache; the program runs other sizes."""
    module, shapes = subject.load(), language_models.dynamic_shapes(subject.path)
    if subject.precision != "fp16":
        run = torch.export.export(module, subject.inputs(3, 4, 5), dynamic_shapes=shapes).module()
        _agrees(run, subject, module, (2, 6, 0), (3, 1, 5), (1, 3, 4))
        return "yes"
    auto = tuple(dict.fromkeys(axes, torch.export.Dim.AUTO) for axes in shapes)
    for example, other in (((2, 6, 0), (3, 4, 0)), ((3, 1, 5), (2, 1, 8))):
        run = torch.export.export(module, subject.inputs(*example), dynamic_shapes=auto).module()
        _agrees(run, subject, module, other)
    return "two programs"


def compiled(subject: Subject) -> str:
    """`torch.compile` of the full graph with dynamic sizes."""
    torch._dynamo.reset()
    module = subject.load()
    run = torch.compile(module, backend="eager", dynamic=True, fullgraph=True)
    _agrees(run, subject, module, (2, 6, 0), (3, 1, 5))
    return "yes"


def adapters(subject: Subject) -> str:
    """The loss of PEFT's LoRA, before and after training; of int4 on dequantised weights."""
    import peft

    with torch.enable_grad(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        config = peft.LoraConfig(r=4, target_modules=["q_proj", "v_proj", "down_proj"])
        model = peft.get_peft_model(subject.load(quantized="dequantize", trainable=False), config)
        trained = [parameter for parameter in model.parameters() if parameter.requires_grad]
        optimizer, losses, inputs = torch.optim.Adam(trained, 1e-2), [], subject.inputs(2, 8, 0)
        for _ in range(ADAPTED):
            optimizer.zero_grad()
            logits = model(*inputs)[0][:, :-1].flatten(0, 1).float()
            loss = torch.nn.functional.cross_entropy(logits, inputs[0][:, 1:].flatten())
            loss.backward()
            optimizer.step()
            losses.append(loss.item())
    if not losses[-1] < 0.8 * losses[0]:
        raise ValueError(f"{losses[0]:.1f} → {losses[-1]:.1f}")
    return f"{losses[0]:.1f} → {losses[-1]:.1f}"


def keys(subject: Subject) -> str:
    """How many keys of the model of transformers are in the `state_dict`."""
    import transformers

    wanted = transformers.AutoModelForCausalLM.from_pretrained(language_models.original(subject.name)).state_dict()
    found = subject.load(quantized="dequantize").state_dict()
    parts = {"qkv_proj": ("q_proj", "k_proj", "v_proj"), "gate_up_proj": ("gate_proj", "up_proj")}
    held, split = 0, False
    for key, value in wanted.items():
        pieces = next(
            ([key.replace(whole, part) for part in names] for whole, names in parts.items() if whole in key), [key]
        )
        split = split or (len(pieces) > 1 and all(piece in found for piece in pieces))
        held += (
            all(piece in found for piece in pieces) and sum(found[piece].numel() for piece in pieces) == value.numel()
        )
    return f"{held} of {len(wanted)}{', split' if split else ''}"


def tokens(subject: Subject) -> str:
    """Most probable tokens of two prompts, beside onnxruntime-genai's."""
    if subject.precision == "bf16":
        return "-"
    import onnxruntime_genai as genai

    prompts = feeds(subject.path, 2, PROMPT, 0)["input_ids"]
    model = genai.Model(str(subject.path.parent))
    parameters = genai.GeneratorParams(model)
    length = PROMPT + 2 * STEPS
    parameters.set_search_options(max_length=length, min_length=length, do_sample=False, batch_size=2)
    generator = genai.Generator(model, parameters)
    try:
        generator.append_tokens(prompts.astype(np.int32))
        while not generator.is_done():
            generator.generate_next_token()
    except Exception as error:  # genai has no class of its own
        return f"genai fails: {str(error).partition(' Name')[0]}"
    theirs = [list(generator.get_sequence(row)) for row in range(2)]
    module = subject.load()
    ours = onnx2nn.generate(module, torch.from_numpy(prompts), max_new_tokens=length - PROMPT)
    ties = 0
    for row, other in zip(ours, theirs, strict=True):
        end = row.tolist().index(2) if 2 in row else length  # min_length bans the end for genai
        apart = [i for i in range(end) if int(row[i]) != int(other[i])]
        if apart:
            _tie(subject, module, row[None, : apart[0]], int(row[apart[0]]), int(other[apart[0]]))
            ties += 1
    return f"equal, {ties} to a tie" if ties else "equal"


def _tie(subject: Subject, module: Any, before: torch.Tensor, ours: int, theirs: int) -> None:
    """Checks that two tokens are equally probable, up to the largest difference of logits."""
    decoder = Decoder.of(module)
    logits = decoder.step(before, 0, decoder.empty(1, before.device))[0][0, -1].float()
    gap = float(logits[ours] - logits[theirs]) / float(logits.abs().max())
    if not gap <= LARGEST[subject.precision]:
        raise ValueError(f"token {before.shape[1]} is {ours}, not {theirs}, whose logit differs by {gap:.0e}")


COLUMNS: Mapping[str, Callable[[Subject], str]] = {
    "prefill": prefill,
    f"{STEPS} steps": steps,
    "torch.export": export,
    "torch.compile": compiled,
    "LoRA's loss": adapters,
    "keys": keys,
    "tokens": tokens,
}


def _refused(subject: Subject) -> bool:
    """Returns whether ONNX Runtime cannot run a prompt of the file."""
    try:
        language_models.session(subject.path).run(None, feeds(subject.path, 2, PROMPT, 0))
    except Exception:  # its exceptions share no base class
        return True
    return False


def ask(name: str, precision: str, columns: Collection[str]) -> dict[str, str]:
    """Returns cells of a model; a reason in brackets where something does not work."""
    row = {}
    refused = _refused(Subject(name, precision))
    for column in columns:
        cell = COLUMNS[column]
        if refused and cell is not keys:
            row[column] = "ONNX Runtime fails"
            continue
        try:
            with warnings.catch_warnings(), torch.no_grad():
                warnings.simplefilter("ignore")  # of the size of a cache's rows
                row[column] = cell(Subject(name, precision))
        except Exception as error:  # of any class: the reason is in the table
            row[column] = f"({str(error).splitlines()[0][:90] if str(error) else type(error).__name__})"
    return row


def table(stored: Mapping[str, Any]) -> str:
    """Returns the part of the document between its marks."""
    versions = ", ".join(f"{package} {version}" for package, version in stored["versions"].items())
    lines = [BEGIN, "", f"| model | weights | {' | '.join(COLUMNS)} |", f"|---|---|{'---|' * len(COLUMNS)}"]
    for name in ARCHITECTURES:
        for precision in PRECISIONS:
            row = stored["rows"].get(name, {}).get(precision, {})
            lines.append(f"| {name} | {precision} | {' | '.join(row.get(column, '') for column in COLUMNS)} |")
    return "\n".join([*lines, "", f"Versions: {versions}.", "", END])


def document(stored: Mapping[str, Any]) -> str:
    """Returns the document with the table."""
    before, _, rest = DOCUMENT.read_text(encoding="utf-8").partition(BEGIN)
    return before + table(stored) + rest.partition(END)[2]


def read() -> dict[str, Any]:
    """Returns what is stored."""
    found: dict[str, Any] = json.loads(STORED.read_text(encoding="utf-8"))
    return found


def store(name: str, precision: str, row: Mapping[str, str]) -> None:
    """Replaces cells of what is stored."""
    rows: dict[str, Any] = read()["rows"] if STORED.exists() else {}
    rows.setdefault(name, {}).setdefault(precision, {}).update(row)
    versions = {package: importlib.metadata.version(package) for package in PACKAGES}
    STORED.write_text(json.dumps({"versions": versions, "rows": rows}, indent=1) + "\n", encoding="utf-8")


def main() -> int:
    """Command line; returns 1 where `--check` finds a difference."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="ask nothing, fail where the document is out of date")
    parser.add_argument("--column", action="append", choices=list(COLUMNS), help="ask only of this, may be repeated")
    parser.add_argument("--precision", action="append", choices=PRECISIONS, help="ask only of this, may be repeated")
    parser.add_argument("--only", nargs="+", choices=list(ARCHITECTURES), help="ask only of these")
    options = parser.parse_args()
    if options.check:
        current = document(read()) == DOCUMENT.read_text(encoding="utf-8")
        print("current" if current else f"{DOCUMENT} is out of date")
        return 0 if current else 1
    torch.set_num_threads(1)
    for name in options.only or ARCHITECTURES:
        for precision in options.precision or PRECISIONS:
            start = time.perf_counter()
            row = ask(name, precision, options.column or COLUMNS)
            print(f"{time.perf_counter() - start:.0f} s {name} {precision} {row}", flush=True)
            store(name, precision, row)
    DOCUMENT.write_text(document(read()), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
