"""A compiled job with its weights and names, which stands for a model in an export, in memory or in a folder."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import onnx_ir as ir

from oneflow_bridge.runtime import import_oneflow
from oneflow_bridge.to_onnx.job_reader import read_job
from onnx2nn.errors import ModelFileError


@dataclass
class CompiledJob:
    """A model's jobs, weights and names, detached from its Python code.

    Attributes:
        jobs: `Job` protos with the shape of every tensor; more than one where dimensions are dynamic.
        weights: variable name → tensor or array.
        symbols: dynamic dimension name → its size in each job.
        input_names: graph input names, in the order of the job's arguments.
        output_names: graph output names, in the order of the job's results; None numbers them.
        scope: prefix that is removed from the job's op names.
    """

    jobs: list[Any]
    weights: dict[str, Any]
    symbols: dict[str, tuple[int, ...]] = field(default_factory=dict)
    input_names: list[str] | None = None
    output_names: list[str] | None = None
    scope: str = ""

    def graph(self) -> ir.Model:
        """The job as a graph of OneFlow ops (see `oneflow_bridge.to_onnx.job_reader.read_job`)."""
        return read_job(
            self.jobs,
            self.weights,
            symbols=self.symbols,
            input_names=self.input_names,
            output_names=self.output_names,
            scope=self.scope,
        )

    def save(self, folder: str | Path) -> None:
        """Writes `job.<i>.pb` (serialized protos), `weights.npz` and `job.json` into a folder that is created."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        for index, job in enumerate(self.jobs):
            (folder / f"job.{index}.pb").write_bytes(job.SerializeToString())
        arrays: dict[str, Any] = {name: _array(weight) for name, weight in self.weights.items()}
        np.savez(folder / "weights.npz", **arrays)
        names = {k: getattr(self, k) for k in ("symbols", "input_names", "output_names", "scope")}
        (folder / "job.json").write_text(json.dumps({"jobs": len(self.jobs), **names}, indent=1))

    @classmethod
    def load(cls, folder: str | Path) -> CompiledJob:
        """Reads a folder that `save` wrote.

        Raises:
            ModelFileError: the folder does not hold a saved job.
        """
        folder = Path(folder)
        try:
            names = json.loads((folder / "job.json").read_text())
            jobs = [parse_job((folder / f"job.{i}.pb").read_bytes()) for i in range(names.pop("jobs"))]
            with np.load(folder / "weights.npz", allow_pickle=False) as stored:
                weights = {name: stored[name] for name in stored.files}
        except (OSError, ValueError, KeyError) as error:
            raise ModelFileError(f"{folder} does not hold a saved job: {error}") from error
        symbols = {name: tuple(sizes) for name, sizes in names.pop("symbols").items()}
        return cls(jobs, weights, symbols, **names)


def parse_job(serialized: bytes) -> Any:
    """A job proto from its serialized form.

    Raises:
        ModelFileError: the bytes are not a job.
    """
    import_oneflow()
    from google.protobuf.message import DecodeError
    from oneflow.core.job import job_pb2

    job = job_pb2.Job()
    try:
        job.ParseFromString(serialized)
    except DecodeError as error:
        raise ModelFileError(f"These bytes are not a serialized OneFlow job: {error}") from error
    return job


def _array(weight: Any) -> np.ndarray:
    return weight if isinstance(weight, np.ndarray) else weight.detach().numpy()
