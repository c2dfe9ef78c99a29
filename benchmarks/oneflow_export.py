"""Time and memory of exporting OneFlow models, beside oneflow-onnx 0.6.2.

    python benchmarks/oneflow_export.py --peer-python /path/to/peer/bin/python [models ...]

The peer needs an environment of its own: oneflow 0.9.0, oneflow-onnx 0.6.2, flowvision 0.2.2, onnx 1.12.0, onnxsim
0.4.36, numpy 1.23.5, protobuf 3.20.3. Both export the same static job, compiled on CPU beforehand; each model and each
exporter gets a process of its own. Seconds are the export alone (no check); `module s` adds the tracing. Extra memory
is the peak over what the process held before the export; ours is to be at most 2.2 times the weights. Both files are
run in ONNX Runtime at batch 1.
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

ROOT = Path(__file__).resolve().parent.parent
MODELS = (
    *("squeezenet1_1", "mobilenet_v2", "resnet18", "resnet50", "alexnet", "efficientnet_b0", "densenet121"),
    *("shufflenet_v2_x1_0", "mnasnet1_0", "mobilenet_v3_small", "vgg13_bn"),
)


def _held() -> float:
    """Megabytes that the process holds now."""
    pages = int(Path("/proc/self/statm").read_text().split()[1])
    return pages * 4096 / 1e6


def _peak() -> float:
    """Megabytes that the process held at most since `_reset_peak`."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith("VmHWM"):
            return int(line.split()[1]) * 1024 / 1e6
    raise RuntimeError("/proc/self/status has no VmHWM")


def _reset_peak() -> None:
    Path("/proc/self/clear_refs").write_text("5")


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
    """One export in this process: seconds, extra megabytes, difference to OneFlow."""
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
        held = _held()
        _reset_peak()
        start = time.perf_counter()
        export(graph, image, path)
        seconds, peak = time.perf_counter() - start, _peak()
        row = {"model": name, "seconds": round(seconds, 3), "extra_mb": round(peak - held)}
        row["of_weights"] = round(
            (peak - held) * 1e6 / sum(p.numel() * p.element_size() for p in model.parameters()), 2
        )
        if exporter == "ours":
            start = time.perf_counter()
            _ours(model, image, path)
            row["from_module"] = round(time.perf_counter() - start, 3)
        session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
        got = session.run(None, {session.get_inputs()[0].name: image.numpy()})[0]
        wanted = model(image).numpy()
        row["difference"] = float(f"{np.abs(got - wanted).max() / np.abs(wanted).max():.2g}")
    return row


def _ours(graph: Any, image: Any, path: str) -> None:
    from oneflow_bridge.to_onnx.exporter import export

    export(graph, image, path, check=False)


def _peer(graph: Any, image: Any, path: str) -> None:
    from oneflow_onnx.oneflow2onnx.util import export_onnx_model

    export_onnx_model(graph, onnx_model_path=str(Path(path).parent))


def in_process(python: str, name: str, exporter: str) -> dict[str, Any]:
    """`measure` by some Python; a failure is a row with its last line."""
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
    """See the module."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("models", nargs="*")
    parser.add_argument("--peer-python", help="the interpreter of the environment that holds oneflow-onnx 0.6.2")
    parser.add_argument("--one", choices=("ours", "peer"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.one:
        print(json.dumps(measure(options.models[0], options.one)))
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
