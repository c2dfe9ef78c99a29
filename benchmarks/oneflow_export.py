"""Measures time and memory of the ONNX export of OneFlow models, beside oneflow-onnx 0.6.2.

    python benchmarks/oneflow_export.py --peer-python /path/to/peer/bin/python [models ...]

The peer, oneflow-onnx, needs a separate environment: oneflow 0.9.0, oneflow-onnx 0.6.2, flowvision 0.2.2, onnx 1.12.0,
onnxsim 0.4.36, numpy 1.23.5, protobuf 3.20.3. Both export the same static job, compiled on CPU beforehand. Each export
runs in a fresh process. The seconds are those of the export without its check; `module s` includes the tracing. Extra
memory is the peak minus the resident memory before the export. The goal for ours is at most 2.2 times the size of the
weights. Both files are run in ONNX Runtime at batch 1.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from memory import forget_peak, resident

ROOT = Path(__file__).resolve().parent.parent
MODELS = (
    *("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50", "alexnet", "efficientnet_b0", "densenet121"),
    *("shufflenet_v2_x1_0", "mnasnet1_0", "mobilenet_v3_small", "vgg13_bn"),
)


def _compiled(flow: Any, model: Any, image: Any) -> Any:
    class Graph(flow.nn.Graph):  # type: ignore[misc]
        def __init__(self) -> None:
            super().__init__()
            self.net = model

        def build(self, x: Any) -> Any:
            return self.net(x)

    graph = Graph()
    graph._compile(image)
    return graph


def measure(name: str, exporter: str) -> dict[str, Any]:
    """Measures one export in this process.

    Returns:
        The row of the table: seconds, extra megabytes, their ratio to the weights, the relative difference to OneFlow.
    """
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    import numpy as np
    import oneflow as flow
    import onnxruntime
    from oneflow_zoo import create, input_size

    model = create(name)
    image = flow.tensor(
        np.random.default_rng(1).normal(size=(1, 3, input_size(name), input_size(name))).astype(np.float32)
    )
    graph = _compiled(flow, model, image)
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        export = _ours if exporter == "ours" else _peer
        if exporter == "ours":
            _ours(_compiled(flow, flow.nn.Linear(2, 2).eval(), flow.randn(1, 2)), flow.randn(1, 2), path)  # imports
        before = resident()["now"]
        forget_peak()
        start = time.perf_counter()
        export(graph, image, path)
        seconds, extra = time.perf_counter() - start, resident()["peak"] - before
        row = {"model": name, "seconds": round(seconds, 3), "extra_mb": round(extra / 1e6)}
        row["of_weights"] = round(extra / sum(p.numel() * p.element_size() for p in model.parameters()), 2)
        if exporter == "ours":
            start = time.perf_counter()
            _ours(model, image, path)
            row["from_module"] = round(time.perf_counter() - start, 3)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        got = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        wanted = model(image).numpy()
        row["difference"] = float(f"{np.abs(got - wanted).max() / np.abs(wanted).max():.2g}")
    return row


def passes(name: str) -> dict[str, float]:
    """Returns the processor ms of each pass of an export with its check, after one that imports packages."""
    sys.path[:0] = [str(ROOT), str(ROOT / "scripts")]
    import oneflow as flow
    from oneflow_zoo import create, input_size

    from oneflow_bridge.to_onnx.exporter import export
    from onnx2nn.ground.pass_times import recorded

    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/model.onnx"
        export(flow.nn.Linear(2, 2).eval(), flow.randn(1, 2), path)
        model, image = create(name), flow.randn(1, 3, input_size(name), input_size(name))
        with recorded() as times:
            export(model, image, path)
    return {label: round(1000 * seconds, 1) for label, seconds in times.items()}


def _ours(graph: Any, image: Any, path: str) -> None:
    from oneflow_bridge.to_onnx.exporter import export

    export(graph, image, path, check=False)


def _peer(graph: Any, image: Any, path: str) -> None:
    from oneflow_onnx.oneflow2onnx.util import export_onnx_model

    export_onnx_model(graph, onnx_model_path=str(Path(path).parent))


def in_process(python: str, name: str, exporter: str) -> dict[str, Any]:
    """Runs `measure` in another Python interpreter; the row of a failure holds the last line of its output."""
    command = [python, __file__, "--one", exporter, name]
    # The peer does not find OneFlow's CUDA libraries by itself.
    libraries = Path(python).parent.parent.glob("lib/python3*/site-packages/nvidia/*/lib")
    environment = {**os.environ, "LD_LIBRARY_PATH": ":".join(map(str, libraries))}
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=1800, env=environment)
    rows = [line for line in done.stdout.splitlines() if line.startswith("{")]
    if rows:
        return dict(json.loads(rows[-1]))
    return {"model": name, "error": ([line for line in done.stderr.splitlines() if line.strip()] or ["?"])[-1][:120]}


def main() -> None:
    """Prints the table."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--peer-python", help="Python interpreter of the environment with oneflow-onnx 0.6.2")

    parser.add_argument("--profile", action="store_true", help="print the time of each pass of our export")
    parser.add_argument("--one", choices=("ours", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.models[0], options.one)))
        return
    if options.profile:
        for name in options.models or MODELS:
            times = passes(name)
            total = sum(times.values())
            print(name, *(f"{label} {ms} ms ({ms / total:.0%})" for label, ms in times.items()), sep="\n    ")
        return
    titles = (
        "ours s",
        "module s",
        "peer s",
        "times",
        "ours MB",
        "x weights",
        "peer MB",
        "share",
        "ours diff",
        "peer diff",
    )
    widths = (9, 10, 9, 7, 9, 11, 9, 7, 11, 11)
    print(f"{'model':22}" + "".join(f"{title:>{width}}" for title, width in zip(titles, widths, strict=True)))
    times, shares = [], []
    for name in options.models or MODELS:
        ours = in_process(sys.executable, name, "ours")
        peer = in_process(options.peer_python, name, "peer") if options.peer_python else {"error": "not run"}
        if "error" in ours or "error" in peer:
            print(f"{name:22} ours: {ours.get('error', ours)}; peer: {peer.get('error', peer)}", flush=True)
            continue
        times.append(peer["seconds"] / ours["seconds"])
        shares.append(ours["extra_mb"] / max(peer["extra_mb"], 1))
        print(
            f"{name:22}{ours['seconds']:9.2f}{ours['from_module']:10.2f}{peer['seconds']:9.2f}{times[-1]:6.1f}x"
            f"{ours['extra_mb']:9}{ours['of_weights']:10.2f}x{peer['extra_mb']:9}{shares[-1]:7.2f}"
            f"{ours['difference']:11.1g}{peer['difference']:11.1g}",
            flush=True,
        )
    if times:
        speed, share = statistics.median(times), statistics.median(shares)
        print(f"median: {speed:.1f} times the speed, {share:.2f} of the extra memory")


if __name__ == "__main__":
    main()
