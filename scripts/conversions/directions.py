"""What is made of a file, and what is measured of it: one function a direction, each run in a process of its own."""

from __future__ import annotations

import ctypes
import gc
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from scripts.conversions.exported import Arrays, Exported, difference, input_names
from scripts.conversions.rows import Facts


def run(module: Any, inputs: Arrays) -> list[np.ndarray[Any, Any]]:
    """Calls a module of PyTorch on arrays."""
    import torch

    with torch.no_grad():
        found = module(*(torch.from_numpy(array.copy()) for array in inputs))
    return [x.numpy() for x in ((found,) if isinstance(found, torch.Tensor) else found)]


def memory(field: str) -> int:
    """Returns a number of bytes of /proc/self/status: `VmRSS`, or its peak `VmHWM`."""
    lines = Path("/proc/self/status").read_text("utf-8").splitlines()
    return next(int(line.split()[1]) * 1024 for line in lines if line.startswith(field))


def rounded(number: float) -> float:
    """Returns a number with two digits, as the table shows it."""
    return float(f"{number:.2g}")


def to_pytorch(file: Exported, folder: Path) -> Facts:
    """Imports the file, compares with ONNX Runtime and the framework, and counts what the module keeps."""
    import onnx2nn

    gc.collect()
    ctypes.CDLL(None).malloc_trim(0)
    before = memory("VmRSS")
    Path("/proc/self/clear_refs").write_text("5")  # forgets the peak, proc(5)
    start = time.process_time()
    module = onnx2nn.load(file.path)
    seconds, peak = time.process_time() - start, memory("VmHWM") - before
    facts = {**graph_facts(file), "seconds": rounded(seconds), "peak_mb": rounded(max(peak, 0) / 1e6)}
    known = onnx2nn.verify(file.path, module, inputs=dict(zip(input_names(file.path), file.inputs, strict=True)))
    worst = max(known.outputs, key=lambda output: output.max_difference / max(output.scale, 1e-30))
    facts["difference"] = rounded(worst.max_difference / max(worst.scale, 1e-30))
    if not known.ok:
        facts["problem"] = f"{known.verdict}; {'; '.join(known.notes)}"[:300].strip("; ")
    outputs = run(module, file.inputs)
    if file.outputs is not None:
        facts["to_framework"] = rounded(difference(outputs, file.outputs))
    tree = module.meta["onnx2nn"]["tree"]
    facts["in_blocks"] = [tree["inside"], tree["calls"]]
    facts["guards"] = len(module.meta["onnx2nn"].get("guards", ()))
    keys = set(module.state_dict())
    if "keys" in file.author:
        facts["keys"] = [len(keys & set(file.author["keys"])), len(file.author["keys"]), len(keys)]
    facts["restored"] = len(module.naming_report().restored)
    facts["noise"] = rounded(noise(module, file.inputs, outputs))
    return facts


def graph_facts(file: Exported) -> dict[str, Any]:
    """Returns how many nodes the file has, its size, its inputs' shapes, and the names of the open dimensions."""
    import onnx

    graph = onnx.load(str(file.path), load_external_data=False).graph
    wanted = set(input_names(file.path))
    dims = [dim for value in graph.input if value.name in wanted for dim in value.type.tensor_type.shape.dim]
    open_ = list(dict.fromkeys(dim.dim_param or "?" for dim in dims if not dim.HasField("dim_value")))
    # Torch's older exporter writes each weight of a large model into a file of its name.
    paths = {file.path, *(file.path.parent / name for tensor in graph.initializer for name in _location(tensor))}
    size = sum(path.stat().st_size for path in paths)
    facts = {
        "nodes": len(graph.node),
        "mb": rounded(size / 1e6),
        "inputs": [list(array.shape) for array in file.inputs],
        "open": open_,
    }
    return facts | ({"fixed": file.author["fixed"]} if "fixed" in file.author else {})


def _location(tensor: Any) -> list[str]:
    """Returns the name of the file that has an initializer's data, where it is not the model itself."""
    return [entry.value for entry in tensor.external_data if entry.key == "location"]


def noise(module: Any, inputs: Arrays, outputs: Arrays) -> float:
    """Returns how far the outputs change where every weight and input moves by one unit in the last place.

    Two draws of the directions; the module's weights stay moved.
    """
    import torch

    from onnx2nn.verification.noise import SMALLEST_WEIGHT, moved

    worst = 0.0
    for trial in (2, 3):
        with torch.no_grad():
            for tensor in (*module.parameters(), *module.buffers()):
                if tensor.dtype in (torch.float32, torch.float64, torch.float16) and tensor.numel() >= SMALLEST_WEIGHT:
                    tensor.data = torch.from_numpy(moved(tensor.numpy(), 1, trial))  # a constant may be expanded
        try:
            worst = max(worst, difference(run(module, [moved(array, 1, trial) for array in inputs]), outputs))
        except ValueError:  # as many boxes as before, for one
            return float("inf")
    return worst


def to_onnx(file: Exported, folder: Path) -> Facts:
    """Imports the file, exports the module to ONNX again and compares ONNX Runtime's answers to both files."""
    import onnx2nn
    from onnx2nn.verification.oracle import Oracle

    module = onnx2nn.load(file.path)
    again = folder / "again.onnx"
    start = time.process_time()
    onnx2nn.export_onnx(module, again)
    seconds = time.process_time() - start
    answers = [
        Oracle(path, threads=1).run(dict(zip(input_names(path), file.inputs, strict=True)))
        for path in (file.path, again)
    ]
    nodes = graph_facts(Exported(again, file.inputs, None, {}))["nodes"]
    return {"nodes": nodes, "seconds": rounded(seconds), "difference": rounded(difference(answers[1], answers[0]))}


def to_source(file: Exported, folder: Path) -> Facts:
    """Imports the file, writes the module as Python source, runs that alone and compares it with the module."""
    import importlib.util

    import onnx2nn

    module = onnx2nn.load(file.path)
    expected = run(module, file.inputs)
    start = time.process_time()
    onnx2nn.to_python(module, folder / "source")
    seconds = time.process_time() - start
    path = folder / "source" / "model.py"
    spec = importlib.util.spec_from_file_location("converted_model", path)
    assert spec is not None and spec.loader is not None
    source = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(source)
    lines = len(path.read_text("utf-8").splitlines())
    found = difference(run(source.load_model(), file.inputs), expected)
    return {"lines": lines, "seconds": rounded(seconds), "difference": rounded(found)}


def to_ncnn(file: Exported, folder: Path) -> Facts:
    """Imports the file at the sizes of its inputs with a batch of 1, converts it to NCNN and compares NCNN's answer."""
    import onnx2nn
    from onnx2nn.importing import inputs
    from onnx2nn.reading import reader

    specs = inputs.input_specs(reader.read(file.path))
    batch = next((size for spec in specs for size in spec.shape or () if not isinstance(size, int)), None)
    sizes = {
        spec.name: [
            known if isinstance(known, int) else 1 if axis == 0 or known == batch else size
            for axis, (known, size) in enumerate(zip(spec.shape or (), array.shape, strict=True))
        ]
        for spec, array in zip(specs, file.inputs, strict=True)
    }
    start = time.process_time()
    model = onnx2nn.to_ncnn(onnx2nn.load(file.path, input_shapes=sizes), folder / "ncnn")
    seconds = time.process_time() - start
    worst = max(output.max_difference / max(output.scale, 1e-12) for output in model.fp32)
    layers = sum(model.layers.values())
    return {"layers": layers, "seconds": rounded(seconds), "difference": rounded(worst)}


def peer(name: str) -> Callable[[Exported, Path], Facts]:
    """Returns the direction of another importer: how its module's answers differ from ONNX Runtime's."""

    def measure(file: Exported, folder: Path) -> Facts:
        from benchmarks.importers import IMPORTERS
        from onnx2nn.verification.oracle import Oracle

        expected = Oracle(file.path, threads=1).run(dict(zip(input_names(file.path), file.inputs, strict=True)))
        load = IMPORTERS[name]()
        start = time.process_time()
        module = load(file.path)
        seconds = time.process_time() - start
        worst = difference(run(lambda *inputs: module(inputs), file.inputs), expected)
        facts = {"seconds": rounded(seconds), "difference": rounded(worst)}
        return facts if facts["difference"] <= TOLERANCE else {**facts, "problem": "differs from ONNX Runtime"}

    return measure


TOLERANCE = 1e-4
"""Of peers, relative to the largest magnitude of an output."""

PEERS = ("onnx2torch", "onnx2pytorch", "onnx2fx")
DIRECTIONS: dict[str, Callable[[Exported, Path], Facts]] = {
    "PyTorch": to_pytorch,
    "ONNX": to_onnx,
    "source": to_source,
    "NCNN": to_ncnn,
    **{name: peer(name) for name in PEERS},
}
"""What a file is converted to; the peers' are their modules of the same file."""
