"""A module of one sample as a module of a batch: it runs on each sample."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import fx, nn

from onnx2nn.errors import InputError
from onnx2nn.fx.modules.deferred import generate_programs
from onnx2nn.fx.modules.graph_module import ImportedModule
from onnx2nn.fx.modules.renamed_inputs import RenameInputs
from onnx2nn.provenance.naming_reports import NamingReport, naming_report


@dataclass(frozen=True)
class Arrangement:
    """Where the samples of a batch are.

    Attributes:
        way: `"vmap"`: `torch.func.vmap` runs all samples at once; `"loop"`: one after the other.
        inputs: for each input of the sample's program the axis of the batch, which is 1 for one sample; None for an
            input that all samples share.
        outputs: for each output the axis of the batch, which is 1 for one sample; None where an output of one sample
            has none: the batch is then a new first axis.
        shapes: the shape of each input for one sample; a str is a dynamic dimension, None an unknown shape.
        names: the names of the inputs and of the outputs, as in the file.
    """

    way: str
    inputs: tuple[int | None, ...]
    outputs: tuple[int | None, ...]
    shapes: tuple[tuple[int | str, ...] | None, ...]
    names: tuple[tuple[str, ...], tuple[str, ...]]


class Vectorised(nn.Module):
    """Runs the program of an imported module on each sample of a batch.

    It holds the submodules, parameters and buffers of the imported module under their keys. `torch.export` records the
    loop over the samples as one operator (`functorch.experimental.control_flow.map`), so that the batch stays dynamic;
    so does `torch.compile` where the way is a loop.

    Attributes:
        batch_arrangement: where the samples are.
        meta: the record of the file, as an imported module has it.

    Args:
        sample: the imported module. Its program runs with this module's state from then on.
        arrangement: where the samples are.
        meta: the record of the file.
    """

    batch_arrangement: Arrangement
    meta: dict[str, Any]
    _program: Callable[..., Any]
    _sample_graph: fx.Graph
    _sample_meta: dict[str, Any]
    _arguments: tuple[str, ...]

    def __new__(cls, sample: fx.GraphModule, *_: Any) -> Vectorised:
        """Returns an object of a class of its own, whose `forward` has the parameters of the sample's."""
        parameters = list(inspect.signature(sample.forward).parameters.values())

        def forward(self: Vectorised, *args: Any, **kwargs: Any) -> Any:
            return self.run_batch(*args, **kwargs)

        first = inspect.Parameter("self", inspect.Parameter.POSITIONAL_OR_KEYWORD)
        forward.__signature__ = inspect.Signature([first, *parameters])  # type: ignore[attr-defined]  # inspect reads it
        kind = type("Vectorised", (Vectorised,), {"forward": forward, "__module__": __name__})
        return super().__new__(kind)

    def __init__(self, sample: fx.GraphModule, arrangement: Arrangement, meta: dict[str, Any]):
        super().__init__()
        generate_programs(sample)
        self.__dict__.update(  # not as members: a graph holds no state
            batch_arrangement=arrangement,
            meta=meta,
            _program=type(sample).forward,
            _sample_graph=sample.graph,
            _sample_meta=sample.meta,
            _arguments=tuple(inspect.signature(sample.forward).parameters),
        )
        for name, child in sample.named_children():
            self.add_module(name, child)
        for name, (value, persistent) in _own(sample, sample.graph).items():
            if isinstance(value, nn.Parameter):
                self.register_parameter(name, value)
            elif isinstance(value, torch.Tensor):
                self.register_buffer(name, value, persistent=persistent)
            else:
                setattr(self, name, value)  # an array of strings
        different = {
            original: name
            for original, name in zip(arrangement.names[0], self._arguments, strict=True)
            if original != name
        }
        if different:
            self.register_forward_pre_hook(RenameInputs(different), with_kwargs=True)
        self.train(sample.training)
        self._version = sample._version

    @property
    def one_sample(self) -> ImportedModule:
        """The module of one sample: it shares the submodules, parameters and buffers of this one."""
        module = ImportedModule(self, _own(self, self._sample_graph), self._sample_graph)
        module.meta.update(self._sample_meta)
        module._version = self._version
        return module.train(self.training)

    def naming_report(self) -> NamingReport:
        """Returns which keys of the author's state_dict this module has, and why others are missing."""
        return naming_report(self)

    def outputs_as_in_file(self, outputs: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the outputs for a batch of one sample in the shapes that the file gives them."""
        pairs = zip(outputs, self.batch_arrangement.outputs, strict=True)
        return tuple(output[0] if axis is None else output for output, axis in pairs)

    def run_batch(self, *args: Any, **kwargs: Any) -> Any:
        """Returns the outputs for inputs by position or by name.

        Raises:
            TypeError: an input is missing or unknown.
            ValueError: an input has another shape than the file's, beside the batch, or another batch than another
                input; there is no sample; or, where the way is a loop, an output has different shapes for two samples.
            InputError: torch.jit.trace runs the module.
        """
        missing = self._arguments[len(args) :]
        if len(args) > len(self._arguments) or kwargs.keys() != set(missing):
            given = f"{len(args)} by position and {', '.join(kwargs) or 'none'} by name"
            raise TypeError(f"The model takes the inputs {', '.join(self._arguments)}. The call gives {given}.")
        values = [*args, *(kwargs[name] for name in missing)]
        count = self._batch(values)
        if torch.jit.is_tracing():
            raise InputError("torch.jit.trace would keep the batch of its example. Use torch.export.")
        if not torch.compiler.is_compiling() and not count:
            raise ValueError("A batch without samples has no shapes of outputs. Give at least one sample.")
        vmaps = self.batch_arrangement.way == "vmap" and not self._counts_samples()
        if torch.compiler.is_exporting() or (torch.compiler.is_compiling() and not vmaps):
            results = self._mapped(values)
        else:
            results = self._vmapped(values) if vmaps else self._looped(values, count)
        return results[0] if len(results) == 1 else results

    def _counts_samples(self) -> bool:
        """Returns whether a layer notes statistics of each sample, in place: normalisation layers do in training."""
        return self.training and any(getattr(layer, "running_mean", None) is not None for layer in self.modules())

    def _batch(self, values: Sequence[Any]) -> int:
        """Returns the number of samples."""
        counts: dict[str, int] = {}
        names, arrangement = self.batch_arrangement.names[0], self.batch_arrangement
        for name, value, axis, shape in zip(names, values, arrangement.inputs, arrangement.shapes, strict=True):
            if shape is not None:
                dims = [size if isinstance(size, int) and i != axis else None for i, size in enumerate(shape)]
                fits = value.ndim == len(dims)
                if not fits or any(a is not None and a != b for a, b in zip(dims, value.shape, strict=True)):
                    wanted = ", ".join("?" if size is None else str(size) for size in dims)
                    raise ValueError(f"Input {name!r} has the shape {list(value.shape)}. The model takes [{wanted}].")
            if axis is not None:
                counts[name] = value.shape[axis]
        (first, count), *others = counts.items()
        for name, other in others:
            if other != count:
                raise ValueError(f"Inputs {first!r} and {name!r} have {count} and {other} samples. Give equally many.")
        return count

    def _one(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the outputs of a batch of one sample."""
        results = self._program(self, *values)
        return results if isinstance(results, tuple) else (results,)

    def _without_batch(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Returns the outputs of one sample, without the axis of the batch, for inputs without it."""
        given = zip(values, self.batch_arrangement.inputs, strict=True)
        results = self._one([value if axis is None else value.unsqueeze(axis) for value, axis in given])
        return tuple(
            value if axis is None else value.squeeze(axis)
            for value, axis in zip(results, self.batch_arrangement.outputs, strict=True)
        )

    def _vmapped(self, values: Sequence[Any]) -> tuple[Any, ...]:
        arrangement = self.batch_arrangement
        one: Callable[..., Any] = lambda *values: self._without_batch(values)  # noqa: E731 - a def is no shorter
        results = torch.func.vmap(one, in_dims=arrangement.inputs, randomness="different")(*values)
        # Not by `out_dims`: torch 2.13 expands what is the same for all samples along a wrong axis.
        pairs = zip(results, arrangement.outputs, strict=True)
        return tuple(value.movedim(0, axis) if axis else value for value, axis in pairs)

    def _mapped(self, values: Sequence[Any]) -> tuple[Any, ...]:
        """Runs the samples in an operator that torch.export and torch.compile keep."""
        from functorch.experimental.control_flow import map

        axes, places = self.batch_arrangement.inputs, self.batch_arrangement.outputs
        batched = [value.movedim(axis, 0) for value, axis in zip(values, axes, strict=True) if axis is not None]
        shared = [value for value, axis in zip(values, axes, strict=True) if axis is None]

        def one(samples: Sequence[Any], *shared: Any) -> tuple[Any, ...]:
            of_sample, of_all = iter(samples), iter(shared)
            given = [next(of_all) if axis is None else next(of_sample) for axis in axes]
            results = self._without_batch(given)
            return tuple(value.clone(memory_format=torch.contiguous_format) for value in results)  # permits no aliases

        if not torch.compiler.is_dynamo_compiling():
            self._settle_recurrent_layers()
        results = map(one, batched, *shared)
        return tuple(value.movedim(0, axis or 0) for value, axis in zip(results, places, strict=True))

    def _settle_recurrent_layers(self) -> None:
        """Runs each recurrent layer once: it notes the weights that torch.export gave it, which `map` forbids inside.

        Nothing reads the results. They cost one step of each layer in the exported program.
        """
        for layer in self.modules():
            if isinstance(layer, nn.RNNBase):
                weight = next(layer.parameters())
                layer(weight.new_zeros(1, layer.input_size))

    def _looped(self, values: Sequence[Any], count: int) -> tuple[Any, ...]:
        axes = self.batch_arrangement.inputs
        runs = [
            self._one([v if axis is None else v.narrow(axis, k, 1) for v, axis in zip(values, axes, strict=True)])
            for k in range(count)
        ]
        columns = zip(*runs, strict=True)
        arranged = zip(self.batch_arrangement.names[1], columns, self.batch_arrangement.outputs, strict=True)
        return tuple(_joined(name, results, axis) for name, results, axis in arranged)

    def __reduce__(self) -> tuple[Any, ...]:
        return Vectorised, (self.one_sample, self.batch_arrangement, self.meta)


def _joined(name: str, results: Sequence[torch.Tensor], axis: int | None) -> torch.Tensor:
    """Returns the results of all samples for one output as one tensor."""
    for result in results:
        if result.shape != results[0].shape:
            raise ValueError(
                f"Output {name!r} has the shapes {list(results[0].shape)} and {list(result.shape)} for two samples of "
                "the batch. Run these samples one by one."
            )
    return torch.stack(list(results)) if axis is None else torch.cat(list(results), axis)


def _own(module: nn.Module, graph: fx.Graph) -> Mapping[str, tuple[Any, bool]]:
    """Returns the parameters, buffers and arrays that a module holds itself, and whether state_dict holds them."""
    kept = module.state_dict(keep_vars=True)
    found: dict[str, Any] = dict(module.named_parameters(recurse=False, remove_duplicate=False))
    found |= dict(module.named_buffers(recurse=False, remove_duplicate=False))
    names = [str(node.target) for node in graph.nodes if node.op == "get_attr" and "." not in str(node.target)]
    found |= {name: getattr(module, name) for name in names}
    return {name: (value, name in kept) for name, value in found.items()}
