"""Modules that run imported subgraphs: If, Loop, Scan, SequenceMap, Gradient.

`output.python_source` copies their text into generated files: they import torch only and have lines of 88 columns.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import nn


class If(nn.Module):
    """ONNX If: runs one of two submodules; `torch.cond` under export and compilation.

    Args:
        then_branch: takes the first `split` captured values.
        else_branch: takes the other captured values.
        split: the number of values that the then branch captures.
        serves: the limits on sizes that each branch accepts: position among its
            captured values, axis, smallest and largest size. Empty: both accept all.
        views: positions of captured values that may lie in the memory of others, of
            which torch.cond gets copies: it takes no aliases.
    """

    views: Sequence[int] = ()

    def __init__(
        self,
        then_branch: nn.Module,
        else_branch: nn.Module,
        split: int,
        serves: Sequence[Any] = (),
        views: Sequence[int] = (),
    ):
        super().__init__()
        self.then_branch, self.else_branch = then_branch, else_branch
        self.split, self.serves, self.views = split, list(serves), list(views)

    def forward(self, cond: Any, *captured: Any) -> Any:
        """Returns the outputs of the branch that `cond` selects.

        Args:
            cond: a bool tensor of one element, or a bool.
            *captured: the values of the outer graph that the branches use.
        """
        if torch.compiler.is_compiling() and isinstance(cond, torch.Tensor):
            cond = cond.reshape(())
            then_takes = self.takes(0, captured)
            else_takes = self.takes(1, captured)
            if then_takes != else_takes:
                # torch.cond would trace both branches, one of which fails at this size.
                message = "The branch that is chosen does not take these sizes."
                torch._assert_async(cond if then_takes else ~cond, message)
                return self._then(*captured) if then_takes else self._else(*captured)
            # torch.cond keeps integers of the outer program, and no truths.
            truths = [isinstance(value, (bool, torch.SymBool)) for value in captured]
            pairs = zip(captured, truths, strict=True)
            kept = [torch.sym_ite(v, 1, 0) if truth else v for v, truth in pairs]
            for position in self.views:
                kept[position] = kept[position].clone()
            then = self._fresh(self._then, kept, truths)
            otherwise = self._fresh(self._else, kept, truths)
            tensors = tuple(v for v in kept if isinstance(v, torch.Tensor))
            return torch.cond(cond, then, otherwise, tensors)
        return self._then(*captured) if cond else self._else(*captured)

    def _then(self, *captured: Any) -> Any:
        return self.then_branch(*captured[: self.split])

    def _else(self, *captured: Any) -> Any:
        return self.else_branch(*captured[self.split :])

    def takes(self, branch: int, captured: Sequence[Any]) -> bool:
        """Returns whether a branch accepts the sizes of its captured values."""
        own = captured[self.split :] if branch else captured[: self.split]
        limits = self.serves[branch] if self.serves else ()
        sizes = ((own[i].shape[axis], a, b) for i, axis, a, b in limits)
        return all(a <= size <= b for size, a, b in sizes)

    def _fresh(
        self,
        branch: Callable[..., Any],
        kept: Sequence[Any],
        truths: Sequence[bool],
    ) -> Callable[..., Any]:
        """Returns a branch that takes tensors, and whose results are contiguous copies.

        torch.cond permits no aliases of inputs or constants, no strides that differ
        between the branches, and no numbers as operands.

        Args:
            branch: takes the captured values.
            kept: the captured values, with integers in place of truths.
            truths: whether each captured value is a truth.
        """
        held = [isinstance(value, torch.Tensor) for value in kept]
        # torch.export opens all sizes of the operands, those of weights too. In
        # Dynamo they are what they are, and open ones pass for integers.
        inside = torch.compiler.is_dynamo_compiling()
        fixed = [
            [(i, n) for i, n in enumerate(value.shape) if isinstance(n, int)]
            for value in kept
            if isinstance(value, torch.Tensor) and not inside
        ]

        def copy(value: Any) -> Any:
            if not isinstance(value, torch.Tensor):
                return value
            return value.clone(memory_format=torch.contiguous_format)

        def run(*values: Any) -> Any:
            for value, sizes in zip(values, fixed, strict=not inside):
                for axis, size in sizes:
                    torch._check(value.shape[axis] == size)
            tensors, given = iter(values), []
            for number, truth, is_held in zip(kept, truths, held, strict=True):
                value = next(tensors) if is_held else number
                given.append(value != 0 if truth else value)
            result = branch(*given)
            if isinstance(result, tuple):
                return tuple(map(copy, result))
            return copy(result)

        if inside:
            return run
        # Dynamo keeps what it compiled of a code object, with the numbers of that export.
        code = run.__code__.replace()
        return types.FunctionType(code, globals(), run.__name__, None, run.__closure__)


class Loop(nn.Module):
    """ONNX Loop: runs its body while the condition holds, up to the trip count.

    Args:
        body: takes the iteration number, the condition, the loop-carried values and the
            captured values; returns the next condition, the loop-carried values and one
            value for each scan output.
        carried: the number of loop-carried values.
        empty: shape and dtype of an element of each scan output, for a loop of no
            iterations.
        by_data: whether data decide the number of iterations.
    """

    by_data: bool = False  # also of modules in older pickles
    most: int | None = None  # iterations that a run may have, None for any number

    def __init__(
        self,
        body: nn.Module,
        carried: int,
        empty: Sequence[Any],
        by_data: bool = False,
    ):
        super().__init__()
        self.body, self.carried, self.empty = body, carried, list(empty)
        self.by_data = by_data

    def forward(self, trips: Any, condition: Any, *values: Any) -> Any:
        """Returns the loop-carried values after the last iteration, then scan outputs.

        Args:
            trips: the trip count, an int64 tensor of one element, an int, or None for
                no limit.
            condition: a bool tensor of one element, a bool, or None for True.
            *values: the loop-carried values, then the captured values of the outer
                graph.
        """
        carried, captured = values[: self.carried], values[self.carried :]
        scans: list[list[torch.Tensor]] = [[] for _ in self.empty]
        running = True if condition is None else condition
        if self._is_open(carried):
            return self._while(trips, running, carried, captured)
        limit = None if trips is None else int(trips)
        device = next((v.device for v in values if isinstance(v, torch.Tensor)), None)
        iteration = 0
        while (limit is None or iteration < limit) and running:
            if self.most is not None and iteration >= self.most:
                raise RuntimeError(f"The loop has more than {self.most} iterations.")
            number, flag = torch.tensor(iteration, device=device), running
            if not isinstance(flag, torch.Tensor):
                flag = torch.tensor(bool(flag), device=device)
            running, *results = self.body(number, flag, *carried, *captured)
            carried = results[: self.carried]
            for scan, item in zip(scans, results[self.carried :], strict=True):
                scan.append(item)
            iteration += 1
        stacked = []
        for scan, (shape, dtype) in zip(scans, self.empty, strict=True):
            nothing = torch.empty((0, *shape), dtype=dtype, device=device)
            stacked.append(torch.stack(scan) if scan else nothing)
        return (*carried, *stacked)

    def _is_open(self, carried: Sequence[Any]) -> bool:
        """Returns whether torch.export traces iterations of which data decide the number."""
        tensors = all(isinstance(value, torch.Tensor) for value in carried)
        exporting = torch.compiler.is_exporting() and not self.empty
        return exporting and self.by_data and bool(carried) and tensors

    def _while(self, trips: Any, condition: Any, carried: Any, captured: Any) -> Any:
        """Returns the loop-carried values after the last iteration, by torch.while_loop.

        It takes and gives tensors of their own, whose shapes stay.
        """

        def goes_on(iteration: Any, running: Any, *values: Any) -> Any:
            return running.clone() if trips is None else running & (iteration < trips)

        def step(iteration: Any, running: Any, *values: Any) -> Any:
            running, *results = self.body(iteration, running, *values, *captured)
            if not isinstance(running, torch.Tensor):
                running = torch.full([], running, dtype=torch.bool, device=device)
            results = [running.reshape([]), *results]
            return (iteration + 1, *(value.clone() for value in results))

        device = carried[0].device
        if not isinstance(condition, torch.Tensor):
            condition = torch.full([], condition, dtype=torch.bool, device=device)
        if isinstance(trips, torch.Tensor):
            trips = trips.reshape([])
        first = torch.zeros([], dtype=torch.int64, device=device)
        given = (first, *(value.clone() for value in (condition.reshape([]), *carried)))
        return tuple(torch.while_loop(goes_on, step, given)[2:])


class Scan(nn.Module):
    """ONNX Scan: runs its body once for each slice of the scan inputs.

    Args:
        body: takes the states, one slice of each scan input and the captured values;
            returns the next states and one slice of each scan output.
        states: the number of state variables.
        inputs: axis and direction (1: backwards) of each scan input.
        outputs: axis and direction of each scan output.
        empty: shape and dtype of a slice of each scan output, for inputs of length 0.
        length: the number of slices, None where it depends on sizes or data.
    """

    length: int | None = None  # also of modules in older pickles

    def __init__(
        self,
        body: nn.Module,
        states: int,
        inputs: Sequence[Any],
        outputs: Sequence[Any],
        empty: Sequence[Any],
        length: int | None = None,
    ):
        super().__init__()
        self.length = length
        self.body, self.states, self.empty = body, states, list(empty)
        self.inputs, self.outputs = list(inputs), list(outputs)

    def forward(self, *values: Any) -> Any:
        """Returns the last states, then the scan outputs.

        Args:
            *values: the states, the scan inputs, and the captured values of the outer
                graph.
        """
        end = self.states + len(self.inputs)
        states, scanned = values[: self.states], values[self.states : end]
        captured = values[end:]
        slices = []
        for item, (axis, backwards) in zip(scanned, self.inputs, strict=True):
            slices.append(item.unbind(axis)[::-1] if backwards else item.unbind(axis))
        scans: list[list[torch.Tensor]] = [[] for _ in self.outputs]
        for step in zip(*slices, strict=True):
            results = self.body(*states, *step, *captured)
            states = results[: self.states]
            for scan, item in zip(scans, results[self.states :], strict=True):
                scan.append(item)
        forms = zip(scans, self.outputs, self.empty, strict=True)
        return (*states, *(self._stacked(*form, scanned[0].device) for form in forms))

    def _stacked(self, scan: Any, place: Any, empty: Any, device: Any) -> Any:
        (axis, backwards), (shape, dtype) = place, empty
        if scan:
            return torch.stack(scan[::-1] if backwards else scan, axis)
        return torch.empty((0, *shape), dtype=dtype, device=device).movedim(0, axis)


class BatchedScan(nn.Module):
    """ONNX Scan of opset 8: a `Scan` for each element of a batch, over its own length.

    Scan outputs of shorter sequences are padded with zeros.
    """

    def __init__(self, scan: Scan):
        super().__init__()
        self.scan = scan

    def forward(self, lengths: Any, *values: Any) -> Any:
        """Returns the last states and the scan outputs, `(batch, ...)` each.

        Args:
            lengths: int64 tensor `(batch,)`, or None for the full length.
            *values: the values of `Scan`, states and scan inputs as `(batch, ...)`.
        """
        end = self.scan.states + len(self.scan.inputs)
        own, captured = values[:end], values[end:]
        full = own[self.scan.states].shape[1]
        results = []
        for index in range(own[0].shape[0]):
            length = full if lengths is None else int(lengths[index])
            states = [item[index] for item in own[: self.scan.states]]
            scanned = [item[index, :length] for item in own[self.scan.states :]]
            outputs = list(self.scan(*states, *scanned, *captured))
            for position in range(self.scan.states, len(outputs)):
                found = outputs[position]
                missing = found.new_zeros((full - length, *found.shape[1:]))
                outputs[position] = torch.cat([found, missing])
            results.append(outputs)
        return tuple(torch.stack(items) for items in zip(*results, strict=True))


class SequenceMap(nn.Module):
    """ONNX SequenceMap: runs its body once for each element of a sequence.

    Args:
        body: takes an element of each input sequence, each tensor input, and the
            captured values; returns an element of each result sequence.
        inputs: the number of inputs; the first is a sequence, the others may be.
        results: the number of result sequences.
    """

    def __init__(self, body: nn.Module, inputs: int, results: int):
        super().__init__()
        self.body, self.inputs, self.results = body, inputs, results

    def forward(self, *values: Any) -> Any:
        """Returns the sequences of the body's results.

        Args:
            *values: the inputs, then the captured values of the outer graph.
        """
        inputs, captured = values[: self.inputs], values[self.inputs :]
        length = len(inputs[0])
        columns = [v if isinstance(v, list) else [v] * length for v in inputs]
        steps = zip(*columns, strict=True)
        found = [self.body(*items, *captured) for items in steps]
        return tuple([items[i] for items in found] for i in range(self.results))


class Gradient(nn.Module):
    """ONNX Gradient: the gradient of the sum of `y` with respect to the tensors `xs`.

    Args:
        body: takes `xs`, then the other values; returns `y`.
        count: the number of tensors in `xs`.
    """

    def __init__(self, body: nn.Module, count: int):
        super().__init__()
        self.body, self.count = body, count

    def forward(self, *values: Any) -> Any:
        """Returns the gradient of each of `xs`, the first `count` values.

        It is zero where `y` does not depend on the tensor.
        """
        first, higher = values[: self.count], torch.is_grad_enabled()
        with torch.enable_grad():
            xs = [x if x.requires_grad else x.detach().requires_grad_() for x in first]
            (y,) = self.body(*xs, *values[self.count :])
            if not y.requires_grad:
                return tuple(torch.zeros_like(x) for x in first)
            y, grad = y.sum(), torch.autograd.grad
            found = grad(y, xs, create_graph=higher, allow_unused=True)
        pairs = zip(xs, found, strict=True)
        return tuple(torch.zeros_like(x) if g is None else g for x, g in pairs)


CONTROL_FLOW: tuple[type[nn.Module], ...] = (If, Loop, Scan, BatchedScan, SequenceMap, Gradient)
"""All modules, each behind the modules that its text names."""
