"""Exports a model of global tensors: `python global_model.py RANKS FILE`, one process a rank."""

import sys

import numpy as np

from oneflow_bridge.runtime import import_oneflow

flow = import_oneflow()


class Parallel(flow.nn.Module):
    """The first layer is cut by its outputs among the ranks, the second is whole on each."""

    def __init__(self, placement: object) -> None:
        super().__init__()
        self.placement = placement
        self.first, self.second = flow.nn.Linear(8, 6), flow.nn.Linear(6, 4)

    def forward(self, x: flow.Tensor) -> flow.Tensor:
        """(N, 8) → (N, 4)."""
        hidden = flow.nn.functional.relu(self.first(x))
        return self.second(hidden.to_global(placement=self.placement, sbp=flow.sbp.broadcast))


def main() -> None:
    """See the module."""
    from oneflow_bridge.to_onnx.exporter import export

    placement = flow.placement("cpu", list(range(int(sys.argv[1]))))
    model = Parallel(placement).eval()
    generator = np.random.default_rng(0)
    for parameter in model.parameters():
        parameter.data.copy_(flow.tensor(generator.normal(size=tuple(parameter.shape)).astype(np.float32)))
    model.to_global(placement=placement, sbp=flow.sbp.broadcast)
    model.first.to_global(sbp=flow.sbp.split(0))
    x = flow.tensor(np.linspace(-1, 1, 32, dtype=np.float32).reshape(4, 8))
    x = x.to_global(placement=placement, sbp=flow.sbp.broadcast)
    expected = model(x).to_global(sbp=flow.sbp.broadcast).to_local().numpy()
    export(model, x, sys.argv[2])
    if flow.env.get_rank() == 0:
        np.save(sys.argv[2] + ".npy", expected)


if __name__ == "__main__":
    main()
