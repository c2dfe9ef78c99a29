"""Runs an NCNN model in a process of its own, as a wrong model crashes it: `python runner.py job.json`.

The job names the `.param` and `.bin` files, an `.npz` with the inputs `0/in0`, `0/in1` ... of sample 0 and so on, one
for the outputs, and for each value the axis that is NCNN's batch (None for no axis). With `watched`, names of values,
the results are the largest magnitude of each over all samples, or, where `largest` has them, a histogram of the
magnitudes with so many `bins`. It imports neither onnx2nn nor torch.
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
    net.opt.lightmode = not job["watched"]  # it frees values between layers
    outputs: dict[str, Any] = {}
    with np.load(job["inputs"], allow_pickle=False) as arrays:
        for sample in range(job["samples"]):
            extractor = _given(net, job, {name: arrays[f"{sample}/{name}"] for name in job["input_axes"]})
            if job["watched"]:
                _watch(extractor, job, outputs)
            for name, axis in () if job["watched"] else job["output_axes"].items():
                mat = _value(extractor, name)
                outputs[f"{sample}/{name}"] = np.array(mat if axis is None else mat.numpy(batch_index=axis))
    np.savez(job["outputs"], **outputs)


def _watch(extractor: Any, job: dict[str, Any], found: dict[str, Any]) -> None:
    """Adds what a sample tells of the watched values."""
    for name in job["watched"]:
        magnitudes, largest = np.abs(np.array(_value(extractor, name))), job["largest"].get(name)
        if largest is None:
            found[name] = np.maximum(found.get(name, 0), magnitudes.max(initial=0))
        else:
            found[name] = found.get(name, 0) + np.histogram(magnitudes, job["bins"], (0, largest))[0]


def _value(extractor: Any, name: str) -> Any:
    status, mat = extractor.extract(name)
    if status:
        sys.exit(f"ncnn cannot compute {name} (status {status})")
    return mat


def _given(net: Any, job: dict[str, Any], arrays: dict[str, np.ndarray]) -> Any:
    """Returns an extractor that has its inputs."""
    extractor = net.create_extractor()
    mats = {name: mat_of(array, job["input_axes"][name]) for name, array in arrays.items()}
    for name, mat in mats.items():
        if extractor.input(name, mat):
            sys.exit(f"ncnn does not take {name}")
    return extractor


def mat_of(array: np.ndarray, axis: int | None) -> Any:
    """Returns an input as ncnn takes it; `axis`: its batch."""
    array = array.astype(np.int32) if array.dtype == np.int64 else array
    return (ncnn.Mat(array) if axis is None else ncnn.Mat(array, batch_index=axis)).clone()


if __name__ == "__main__":
    main(json.loads(Path(sys.argv[1]).read_text()))
