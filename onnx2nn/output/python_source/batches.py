"""The class that runs the written model of one sample on each sample of a batch."""

from __future__ import annotations

from collections.abc import Sequence

from onnx2nn.unfreeze.vectorised import Arrangement


def batched(name: str, arrangement: Arrangement) -> str:
    """Returns the text of a class derived from the class `name`, which has the same keys.

    Args:
        name: the class of the model of one sample.
        arrangement: where the samples are.
    """
    inputs, outputs = arrangement.inputs, arrangement.outputs
    lines = [
        f"class Batched{name}({name}):",
        f'    """Runs {name}, a model of one sample, on each sample of a batch."""',
        "",
        "    def forward(self, *inputs):",
    ]
    if arrangement.way == "vmap":
        given = ", ".join(_inner(f"inputs[{i}]", axis, "unsqueeze") for i, axis in enumerate(inputs))
        results = ", ".join(_inner(f"results[{i}]", axis, "squeeze") for i, axis in enumerate(outputs))
        lines += [
            "        def one(*inputs):",
            f"            results = {name}.forward({', '.join(['self', given])})",
            *(["            results = (results,)"] if len(outputs) == 1 else []),
            f"            return ({results},)",
            "",
            "        results = torch.func.vmap(",
            f'            one, {_tuple(inputs)}, {_tuple([axis or 0 for axis in outputs])}, randomness="different"',
            "        )(*inputs)",
        ]
    else:
        first = next(i for i, axis in enumerate(inputs) if axis is not None)
        given = ", ".join(
            f"inputs[{i}]" if axis is None else f"inputs[{i}].narrow({axis}, k, 1)" for i, axis in enumerate(inputs)
        )
        joined = [
            f"torch.stack(column[{i}])" if axis is None else f"torch.cat(column[{i}], {axis})"
            for i, axis in enumerate(outputs)
        ]
        lines += [
            "        runs = [",
            f"            {name}.forward(self, {given})",
            f"            for k in range(inputs[{first}].size({inputs[first]}))",
            "        ]",
            *(["        runs = [(run,) for run in runs]"] if len(outputs) == 1 else []),
            "        column = list(zip(*runs))",
            f"        results = ({', '.join(joined)},)",
        ]
    return "\n".join([*lines, f"        return results{'[0]' if len(outputs) == 1 else ''}"])


def _inner(value: str, axis: int | None, method: str) -> str:
    return value if axis is None else f"{value}.{method}({axis})"


def _tuple(axes: Sequence[int | None]) -> str:
    return f"({', '.join(map(str, axes))},)"
