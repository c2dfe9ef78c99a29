"""Runs ONNX's conformance suite through `onnx2nn.backend`, or through `oneflow_bridge.backend` under OneFlow.

    python scripts/conformance.py --write                      # stores what became of each case
    python scripts/conformance.py --framework oneflow --write  # the same, in an environment that has OneFlow

The results are stored in `scripts/conformance_results`, a line a case. The slow tests compare each case with its line;
`python scripts/tables.py` writes docs/conformance.md and `onnx2nn/optable/measured.json` from them.
"""

from __future__ import annotations

import argparse
import collections
import contextlib
import functools
import importlib
import io
import json
import logging
import multiprocessing
import queue
import re
import sys
import threading
import time
import unittest
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import astuple, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnx

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

RESULTS = Path(__file__).resolve().parent / "conformance_results"
"""A file a framework, written by `store`."""

GROUPS = {
    "OnnxBackendNodeModelTest": "node",
    "OnnxBackendSimpleModelTest": "simple",
    "OnnxBackendPyTorchConvertedModelTest": "pytorch-converted",
    "OnnxBackendPyTorchOperatorModelTest": "pytorch-operator",
    "OnnxBackendRealModelTest": "light",
}
"""The suite's test groups, by the kinds that it has them in."""

RANDOM = re.compile(r"test_(bernoulli|training_dropout)(?!.*zero_ratio)")
"""Cases whose outputs are random. The suite stores the draw of one generator for them, "for informational purpose: the
operator may not produce the same values in different implementations even if a seed is specified" (its own comment), so
that they are judged on dtype, shape and distribution."""

_FOUR_BITS = "the stored values saturate; ONNX Runtime wraps around, as the import does"
WRONG_DATA = {
    "test_adam_multiple": "the node lacks the epsilon that the stored values were computed with",
    **{f"test_cast_{a}_to_{b}": _FOUR_BITS for a in ("FLOAT", "FLOAT16") for b in ("INT4", "UINT4")},
    "test_loop16_seq_none": "the suite compares an element without dimensions by its length",
}
"""Cases of onnx 1.17 whose comparison cannot hold and that ONNX Runtime, through Python, does not decide."""

DRAWS = 400

LAST_PLACES = 2
"""How far float outputs may be from the suite's, see `Suite.only_rounding`."""

SHAPED_BY_DATA = {"Compress", "ImageDecoder", "NonMaxSuppression", "NonZero", "Unique"}
"""Operators whose output shapes depend on what is in their inputs, besides those with shapes among their inputs."""

TIME_LIMIT = 300
"""Seconds that one case may take."""

EXPORT_TOLERANCE = 1e-5
"""How far an exported program may be from the eager module, relative to the output's scale."""


@dataclass(frozen=True)
class Result:
    """What became of one case.

    Attributes:
        name: the case's name in the suite.
        kind: `node`, `expanded` (a node case whose operator is replaced by its function), `simple` ...
        operator: what it is a case of; the model's last operator.
        verdict: `passed`, `refused` (an error of this library), `wrong`, `failed` (any other error), `aborted` (the
            process ended), `disputed` (it is the stored values that are wrong) or `skipped`.
        reason: the beginning of the error's text.
        exported: `passed`, `failed`, or `not eligible`: torch.export of the module of a case that passed.
        export_reason: why not.
    """

    name: str
    kind: str
    operator: str
    verdict: str
    reason: str = ""
    exported: str = ""
    export_reason: str = ""


class Recorder:
    """A framework's backend that remembers what it ran last, so that more can be asked of it than the suite does."""

    def __init__(self, framework: str) -> None:
        package = {"torch": "onnx2nn", "oneflow": "oneflow_bridge"}[framework]
        self._backend: Any = importlib.import_module(f"{package}.backend")
        self.framework = framework
        self.model: onnx.ModelProto | None = None
        self.module: Any = None
        self.inputs: Any = None

    def prepare(self, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> Recorder:
        """Imports `model`."""
        self.model, self.module, self.inputs = model, None, None
        self.module = self._backend.prepare(model, device, **kwargs)
        return self

    def run(self, inputs: Any) -> Any:
        """Runs the model imported last."""
        self.inputs = inputs
        return self.module.run(inputs)

    def supports_device(self, device: str) -> bool:
        """Returns whether `device` is the CPU."""
        return bool(self._backend.supports_device(device))

    def is_compatible(self, model: onnx.ModelProto, device: str = "CPU", **kwargs: Any) -> bool:
        """Returns True: a model that cannot be imported raises."""
        return True


class Suite:
    """ONNX's cases, run one at a time in this process."""

    def __init__(self, framework: str) -> None:
        import onnx.backend.test

        self.backend = Recorder(framework)
        self.cases: dict[str, unittest.TestCase] = {}
        self.kinds: dict[str, str] = {}
        for group, members in onnx.backend.test.BackendTest(self.backend, __name__).test_cases.items():
            for name in dir(members):
                if name.startswith("test_") and name.endswith("_cpu"):
                    short = name.removesuffix("_cpu")
                    self.cases[short] = members(name)
                    self.kinds[short] = "expanded" if "_expanded" in short else GROUPS[group]

    def run(self, name: str, export: bool) -> Result:
        """Runs one case, and torch.export on its module where `export` says so and shapes do not depend on data."""
        from onnx2nn.errors import Onnx2nnError

        verdict, reason, operator = "passed", "", ""
        try:
            self.judge_random(name) if RANDOM.match(name) else self.cases[name].debug()
        except Onnx2nnError as error:
            verdict, reason = "refused", str(error).strip()
        except AssertionError as error:
            node = self.kinds[name] in ("node", "expanded") and self.backend.module is not None
            if not (node and self.only_rounding(name)):
                verdict, reason = "wrong", str(error).strip()
            if verdict == "wrong" and self.disputed(name):
                verdict, reason = "disputed", f"onnx {onnx.__version__}: {self.disputed(name)}"
        except unittest.SkipTest as error:
            verdict, reason = "skipped", str(error)
        except Exception as error:
            if name in WRONG_DATA and self.disputed(name):
                verdict, reason = "disputed", f"onnx {onnx.__version__}: {self.disputed(name)}"
            elif not ("Unable to compare" in str(error) and self.sequences_agree(name)):
                verdict, reason = "failed", f"{type(error).__name__}: {error}"
        model = self.backend.model
        if model is not None:
            operator = model.graph.node[-1].op_type if model.graph.node else ""
        exported = ("", "")
        if export and verdict == "passed" and model is not None:
            why = shapes_depend_on_data(model)
            exported = ("not eligible", why) if why else export_again(self.backend)
        return Result(name, self.kinds[name], operator, verdict, _short(reason), exported[0], _short(exported[1]))

    def only_rounding(self, name: str) -> bool:
        """Returns whether what the case gives differs from the stored values in their last places alone.

        The suite computes the values of node cases with numpy, in their own precision, on the machine that it runs on,
        so that they differ from machine to machine, and compares elements beside 0 to 1e-7. What is no further away
        than `LAST_PLACES` units in the last place of the output's largest magnitude is equal.
        """
        compared = self.outputs_of(name)
        for outputs, stored in compared:
            for ours, theirs in zip(outputs, stored, strict=True):
                if not (isinstance(theirs, np.ndarray) and theirs.dtype.kind == "f" and ours.dtype == theirs.dtype):
                    return False
                if ours.shape != theirs.shape or not np.isfinite(theirs).all():
                    return False
                unit = np.spacing(np.abs(theirs).max(initial=0), dtype=theirs.dtype)
                if not (np.abs(ours.astype(np.float64) - theirs) <= LAST_PLACES * np.float64(unit)).all():
                    return False
        return bool(compared)

    def sequences_agree(self, name: str) -> bool:
        """Returns whether the case's lists of tensors equal the stored ones, by the suite's own tolerances.

        The suite asks the elements of a list for their length to see whether they are lists themselves, which ends with
        a TypeError where an element has no dimensions.
        """
        compared = self.outputs_of(name)
        for outputs, stored in compared:
            for ours, theirs in zip(outputs, stored, strict=True):
                if not (isinstance(ours, list) and isinstance(theirs, list) and len(ours) == len(theirs)):
                    return False
                for a, b in zip(ours, theirs, strict=True):
                    if a.dtype != b.dtype or a.shape != b.shape or not np.allclose(a, b, rtol=1e-3, atol=1e-7):
                        return False
        return bool(compared)

    def outputs_of(self, name: str) -> list[tuple[Any, Any]]:
        """Returns the outputs of the node case that ran last, once more, with the stored ones.

        None where onnx keeps what are no tensors in the case's folder.
        """
        from onnx.backend.test.loader import load_model_tests

        test = next(test for test in load_model_tests(kind="node") if test.name == name)
        data_sets = test.data_sets
        if not data_sets and self.backend.model is not None:
            graph = self.backend.model.graph
            if all(value.type.HasField("tensor_type") for value in [*graph.input, *graph.output]):
                data_sets = [stored_case(test.model_dir)]
        return [(self.backend.module.run(inputs), stored) for inputs, stored in data_sets or []]

    def disputed(self, name: str) -> str:
        """Returns why the values stored for the case that ran last are not to be trusted, `""` where they are."""
        if name in WRONG_DATA:
            return WRONG_DATA[name] if onnx.__version__.startswith("1.17.") else ""
        try:
            import onnxruntime

            model = self.backend.model
            assert model is not None
            session = onnxruntime.InferenceSession(model.SerializeToString(), providers=["CPUExecutionProvider"])
            feeds = {value.name: item for value, item in zip(session.get_inputs(), self.backend.inputs, strict=True)}
            theirs, ours = session.run(None, feeds), self.backend.module.run(self.backend.inputs)
            for a, b in zip(ours, theirs, strict=True):
                np.testing.assert_array_equal(a, b) if a.dtype == object else np.testing.assert_allclose(
                    a, b, 1e-5, 1e-6
                )
        except Exception:
            return ""  # it does not run the case, or does not agree with the import either
        return "ONNX Runtime gives what the import gives"

    def judge_random(self, name: str) -> None:
        """Runs a case of `RANDOM` often enough to judge it: each element is 0, or with probability `p` a known value.

        Raises:
            AssertionError: dtype or shape are not those of the stored draw, an element has another value, or the share
                of the draws in which it has that value is further than five standard deviations from `p`.
        """
        from onnx.backend.test.loader import load_model_tests

        test = next(test for test in load_model_tests(kind="node") if test.name == name)
        model, (inputs, stored) = test.model, (test.data_sets or [stored_case(test.model_dir)])[0]
        data = np.asarray(inputs[0])
        if "dropout" in name:
            keep = 1 - np.float64(inputs[1])
            value, p = data / keep, np.full(data.shape, keep)
        else:
            # The function body compares the wrong way round, Greater(random, input), so that it gives 1 with 1 - p.
            p = data.astype(np.float64)
            value, p = np.ones(data.shape), 1 - p if name.endswith("_expanded") else p
        module = self.backend.prepare(model or onnx.load(f"{test.model_dir}/model.onnx"))
        draws: list[Any] = [module.run(inputs) for _ in range(DRAWS)]
        for draw in [stored, *draws]:
            assert len(draw) == len(stored)
            for output, expected in zip(draw, stored, strict=True):
                assert output.dtype == expected.dtype and output.shape == expected.shape, (output.dtype, output.shape)
            kept = draw[0] != 0
            np.testing.assert_allclose(draw[0][kept], value[kept], rtol=1e-6)
            if len(draw) > 1:
                np.testing.assert_array_equal(draw[1][data != 0], kept[data != 0])
        share = np.mean([draw[0] != 0 for draw in draws], axis=0)
        deviation = np.abs(share - p)[data != 0]
        limit = 5 * np.sqrt(p * (1 - p) / DRAWS)[data != 0]
        assert (deviation <= limit).all(), f"shares {share}, expected {p}"


def stored_case(folder: str) -> tuple[list[Any], list[Any]]:
    """Returns the inputs and outputs that onnx before 1.18 keeps in a case's folder; the case has tensors only."""
    found = []
    for kind in ("input", "output"):
        paths = sorted(Path(folder, "test_data_set_0").glob(f"{kind}_*.pb"))
        found.append([onnx.numpy_helper.to_array(onnx.load_tensor(path)) for path in paths])
    return found[0], found[1]


def shapes_depend_on_data(model: onnx.ModelProto) -> str:
    """Returns why torch.export is not asked of a model: shapes that depend on data, or values that are no tensors."""
    for value in [*model.graph.input, *model.graph.output]:
        kind = value.type.WhichOneof("value")
        if kind is not None and (kind != "tensor_type" or value.type.tensor_type.elem_type == onnx.TensorProto.STRING):
            return f"{value.name} is no numeric tensor"
    versions = {opset.domain: opset.version for opset in model.opset_import}
    return _depends(model.graph, versions, {value.name for value in model.graph.input})


def _depends(graph: onnx.GraphProto, versions: dict[str, int], outer: set[str]) -> str:
    from onnx2nn.optable.registry import TABLE

    data = set(outer)
    for node in graph.node:
        domain = "" if node.domain == "ai.onnx" else node.domain
        row = TABLE.find(domain, node.op_type, versions.get(domain, 1))
        if node.op_type in SHAPED_BY_DATA:
            return f"{node.op_type}: its output's shape depends on data"
        bodies = [a.g for a in node.attribute if a.type == onnx.AttributeProto.GRAPH]
        reads = bool(data & set(node.input)) or (bool(bodies) and bool(data))
        for position, name in enumerate(node.input):
            if row is not None and name in data and row.input_name(position) in row.static:
                return f"{node.op_type}: input {row.input_name(position)} is no constant"
        if node.op_type == "Loop" and data & set(node.input[:2]) and len(node.output) > len(node.input) - 2:
            return "Loop: it may end at any length"
        for body in bodies:
            why = _depends(body, versions, data | {value.name for value in body.input})
            if why:
                return why
        if reads and not (row is not None and row.reads_shape):
            data |= set(node.output)
    return ""


def export_again(recorded: Recorder) -> tuple[str, str]:
    """Returns whether torch.export takes the module that ran last and gives the same values."""
    import torch

    from onnx2nn.backend import OnnxModule

    module = recorded.module
    torch.manual_seed(0)
    expected = module.run(recorded.inputs)
    try:
        values = module.arguments(recorded.inputs)
        program = torch.export.export(module.module, tuple(values)).module()
    except Exception as error:  # its errors share no base class
        return "failed", f"{type(error).__name__}: {_line(error)}"
    try:
        again = OnnxModule(recorded.model, module.module, program)
        torch.manual_seed(0)
        for ours, theirs in zip(again.run(recorded.inputs), expected, strict=True):
            assert ours.dtype == theirs.dtype and ours.shape == theirs.shape, (ours.dtype, ours.shape, theirs.shape)
            if theirs.dtype.kind == "V":  # float8 and its like
                ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
            if theirs.dtype.kind in "fc":
                scale = np.abs(theirs[np.isfinite(theirs)], dtype=np.float64).max(initial=1e-30)
                np.testing.assert_allclose(ours, theirs, rtol=EXPORT_TOLERANCE, atol=EXPORT_TOLERANCE * scale)
            else:
                np.testing.assert_array_equal(ours, theirs)
    except Exception as error:
        return "failed", f"exported, but {type(error).__name__}: {_line(error)}"
    return "passed", ""


def _line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")[:200]


def _short(reason: str) -> str:
    return " ".join(reason.split())[:200]


@functools.cache
def suite(framework: str) -> Suite:
    """Returns the suite of this process, which takes seconds to build."""
    return Suite(framework)


def run_case(framework: str, name: str, export: bool) -> Result:
    """Runs one case in this process."""
    with quiet():
        return suite(framework).run(name, export)


def store(framework: str, results: Sequence[Result]) -> None:
    """Stores the results of a whole run, a line each."""
    rows = ",\n".join(f"  {json.dumps(astuple(result), ensure_ascii=False)}" for result in results)
    text = f'{{\n "onnx": {json.dumps(onnx.__version__)},\n "results": [\n{rows}\n ]\n}}\n'
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / f"{framework}.json").write_text(text, encoding="utf-8")


def stored(framework: str) -> tuple[str, list[Result]]:
    """Returns the version of onnx whose suite was run last, and the results by name."""
    found = json.loads((RESULTS / f"{framework}.json").read_text(encoding="utf-8"))
    return found["onnx"], [Result(*row) for row in found["results"]]


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Hides warnings and what is logged below an error."""
    logging.disable(logging.WARNING)
    with warnings.catch_warnings(), contextlib.redirect_stderr(io.StringIO()):
        warnings.simplefilter("ignore")
        yield


def _serve(connection: Any, framework: str, export: bool) -> None:
    """Runs the cases whose names come in, in a process of its own."""
    for name in iter(connection.recv, None):
        connection.send(run_case(framework, name, export))


def _work(names: queue.SimpleQueue[str | None], results: list[Result], framework: str, export: bool) -> None:
    """Runs cases until `names` gives None; a process that ends before its case does is replaced."""
    context = multiprocessing.get_context("spawn")
    worker = None
    for name in iter(names.get, None):
        if worker is None:
            connection, other = context.Pipe()
            worker = context.Process(target=_serve, args=(other, framework, export), daemon=True)
            worker.start()
            other.close()
        connection.send(name)
        try:
            if not connection.poll(TIME_LIMIT):
                raise EOFError
            results.append(connection.recv())
        except (EOFError, ConnectionError):
            worker.kill()
            worker.join()
            results.append(Result(name, "", "", "aborted", f"exit code {worker.exitcode}"))
            worker = None
    if worker is not None:
        connection.send(None)
        worker.join()


def run(only: str = "", jobs: int = 2, export: bool = True, framework: str = "torch") -> list[Result]:
    """Runs the cases whose name contains `only`, in `jobs` processes; returns their results by name."""
    cases: queue.SimpleQueue[str | None] = queue.SimpleQueue()
    for name in sorted(name for name in suite(framework).cases if only in name):
        cases.put(name)
    results: list[Result] = []
    threads = [threading.Thread(target=_work, args=(cases, results, framework, export)) for _ in range(jobs)]
    for thread in threads:
        cases.put(None)
        thread.start()
    for thread in threads:
        thread.join()
    return sorted(results, key=lambda result: result.name)


def score(results: Sequence[Result]) -> str:
    """Returns the score in one line."""
    verdicts = collections.Counter(result.verdict for result in results)
    exported = collections.Counter(result.exported for result in results)
    eligible = exported["passed"] + exported["failed"]
    rest = ", ".join(f"{count} {verdict}" for verdict, count in sorted(verdicts.items()) if verdict != "passed")
    line = f"{verdicts['passed']} of {len(results)} passed" + (f" ({rest})" if rest else "")
    return line + (f"; torch.export: {exported['passed']} of {eligible} eligible" if eligible else "")


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--only", default="", help="run the cases whose name contains this")
    parser.add_argument("--framework", choices=("torch", "oneflow"), default="torch")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--show", type=int, default=0, help="print so many of the cases that did not pass")
    parser.add_argument("--no-export", action="store_true", help="leave torch.export out")
    parser.add_argument("--write", action="store_true", help="store the results, see scripts/tables.py")
    options = parser.parse_args()
    if options.write and options.only:
        parser.error("--write needs the whole suite.")
    start = time.perf_counter()
    export = options.framework == "torch" and not options.no_export
    results = run(options.only, options.jobs, export, options.framework)
    missed = [(r.verdict, r.name, r.reason) for r in results if r.verdict != "passed"]
    missed += [("export", r.name, r.export_reason) for r in results if r.exported == "failed"]
    for kind, name, reason in missed[: options.show]:
        print(f"{kind:8} {name}: {' '.join(reason.split())[:300]}")
    print(score(results), f"{time.perf_counter() - start:.0f} s")
    if options.write:
        store(options.framework, results)
    sys.exit(any(result.verdict == "wrong" for result in results))


if __name__ == "__main__":
    main()
