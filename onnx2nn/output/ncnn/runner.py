"""Runs an NCNN model in a process of its own, as a wrong model crashes it: `python runner.py job.json`.

The job names the `.param` and `.bin` files, an `.npz` with the inputs `0/in0`, `0/in1` ... of sample 0 and so on, one
for the outputs, and for each value the axis that is NCNN's batch (None for no axis). It imports neither onnx2nn nor
torch.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import ncnn
import numpy as np


def main(job: dict[str, Any]) -> None:
    """Runs the model on every sample and writes the outputs."""
    net = ncnn.Net()
    net.opt.use_vulkan_compute = False
    net.opt.num_threads = 1
    if not job["half"]:
        net.opt.use_fp16_packed = net.opt.use_fp16_storage = net.opt.use_fp16_arithmetic = False
        net.opt.use_bf16_storage = False
    if net.load_param(job["param"]) or net.load_model(job["bin"]):
        sys.exit("ncnn cannot load the model")
    outputs: dict[str, Any] = {}
    with np.load(job["inputs"], allow_pickle=False) as arrays:
        for sample in range(job["samples"]):
            outputs |= _run(net, job, sample, {name: arrays[f"{sample}/{name}"] for name in job["input_axes"]})
    np.savez(job["outputs"], **outputs)


def _run(net: Any, job: dict[str, Any], sample: int, arrays: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
    extractor = net.create_extractor()
    mats = {name: _mat(array, job["input_axes"][name]) for name, array in arrays.items()}
    for name, mat in mats.items():
        if extractor.input(name, mat):
            sys.exit(f"ncnn does not take {name}")
    outputs = {}
    for name, axis in job["output_axes"].items():
        status, mat = extractor.extract(name)
        if status:
            sys.exit(f"ncnn cannot compute {name} (status {status})")
        outputs[f"{sample}/{name}"] = np.array(mat if axis is None else mat.numpy(batch_index=axis))
    return outputs


def _mat(array: np.ndarray, axis: int | None) -> Any:
    array = array.astype(np.int32) if array.dtype == np.int64 else array
    return (ncnn.Mat(array) if axis is None else ncnn.Mat(array, batch_index=axis)).clone()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
