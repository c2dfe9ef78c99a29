"""`load` and `check`: the steps from a model to a module, in their order.

Steps that change the model (dequantising, the author's names, raising) come before the import, which only reads it.
Steps that change the module come after it.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import importlib
import importlib.util
import logging
import os
import warnings
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, BinaryIO, cast

import onnx_ir as ir

from onnx2nn.errors import LONGEST_MESSAGE, InputError, UnsupportedModelError, shown_name
from onnx2nn.ground import gc_pause
from onnx2nn.ground.limits import Account, Limits
from onnx2nn.ground.pass_times import timed
from onnx2nn.importing.inputs import InputShapes, chosen_shapes
from onnx2nn.importing.model_report import refuse_malformed, report
from onnx2nn.importing.plan import Plan, Report, plan
from onnx2nn.importing.training import choose_trainable
from onnx2nn.optimization import check_mode
from onnx2nn.optimization import optimize as optimized
from onnx2nn.provenance.restore import restore
from onnx2nn.reading import reader
from onnx2nn.reading.mapped import MappedFiles, mapping
from onnx2nn.reading.read_ahead import reading_ahead
from onnx2nn.rewrite import raise_patterns as raise_model
from onnx2nn.rewrite.stopped_gradients import stop_gradients
from onnx2nn.targets import Target, target_of

if TYPE_CHECKING:
    import onnx

    from onnx2nn.dequantize import Dequantization

_LOG = logging.getLogger("onnx2nn")


def load(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    framework: str = "torch",
    input_shapes: Mapping[str, Sequence[int | str | None]] | None = None,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    raise_patterns: bool = True,
    dynamic: Mapping[str, Mapping[int, str]] | None = None,
    trainable: bool | Collection[str] = True,
    quantized: str = "keep",
    blocks: str = "named",
    dtype: Any = None,
    device: Any = None,
    mmap: bool = False,
    optimize: str | None = None,
    limits: Limits | None = None,
) -> Any:
    """Imports an ONNX model as a module with its weights, in eval mode.

    Args:
        source: a path, a URL (`hf://organisation/repository/path`, `https://`, `s3://`, see docs/remote.md), the bytes
            of a file, an open binary file or a `ModelProto`.
        framework: `"torch"` for a `torch.fx.GraphModule`, or `"oneflow"` for a `oneflow.nn.Module`.
        input_shapes: dimensions by input name that replace the file's, for each input all of them; an int is fixed, a
            str names a dynamic dimension (equal names are equal dimensions), None is a dynamic dimension of its own.
        base_dir: folder of the external data where `source` is neither a path nor a file opened from one.
        follow_links: whether external data may be symbolic links, wherever they lead, and files with several hard
            links. Otherwise it must lie in the folder; links are followed in a Hugging Face cache only, from a
            snapshot to the blobs beside it.
        raise_patterns: whether operators that the exporter decomposed (layer normalisation, attention, GELU) become
            one call again. Each replacement is compared with the replaced nodes at import, and dropped if they differ;
            `module.meta["onnx2nn"]["raising"]` counts the replacements and lists the dropped ones. Attention returns 0
            for fully masked rows, where the file's softmax may give NaN. With False every node of the file becomes at
            least one call.
        dynamic: input name → axis → name of the dimension, for fixed dimensions to make dynamic; PyTorch is needed for
            OneFlow too. Constants that hold the file's size are replaced; the module is run at the file's size and at
            another size before it is returned. Where no constants follow a batch of 1, the model of one sample runs on
            each sample, by `torch.func.vmap` or in a loop (PyTorch only); the result is then an `nn.Module`, and its
            `one_sample` the GraphModule of one sample. `module.meta["onnx2nn"]["thawed"]` says the way; a warning is
            logged.
        trainable: the weights that get gradients: all float weights (True), none (False), or a list of
            roles (`"weight"`, `"bias"`, `"norm"`, `"embedding"`, `"other"`) and patterns of keys (`"classifier.*"`).
            Other weights are frozen.
        quantized: `"keep"` computes with the file's integers, which stay packed in buffers; `"dequantize"` makes QDQ,
            QLinear and dynamically quantised models, and packed weights of few bits, float models, whose weights train
            and whose activations are not rounded. `module.meta["onnx2nn"]["dequantized"]` lists the changes and the
            nodes that stay quantised. `"torchao"` (PyTorch only) also does so, then puts torchao's tensors with the
            file's integers in place of the float weights of `nn.Linear` and `nn.Embedding` where they have scales along
            the rows; `module.meta["onnx2nn"]["torchao"]` has their keys, and the reason for each other weight.
        blocks: what becomes a block that can be called alone (PyTorch only): `"named"`, what the file names; or
            `"repeated"`, also equal parts of what it names no scopes and no keys of the author's for, one after the
            other with different weights: `block.0`, `block.1`, ... Their weights have other keys than without it;
            `module.meta["onnx2nn"]["tree"]["keys"]` has the keys without it by the new ones.
        dtype: a float type of torch for the weights, such as `torch.bfloat16` (PyTorch only); None for the file's. It
            is the same as `.to(dtype)` afterwards: casts that the author's model has to the type of its weights follow
            it, what guards precision (tables of positions, masks, norms) stays.
        device: where the weights go (PyTorch only); by default torch's default device, which `with torch.device(...)`
            sets. To another device than the CPU they go from the mapped file, which must not become shorter
            meanwhile. On `"meta"` weights have no elements and are not read; constants outside of state_dict have
            theirs, on the CPU. `module.meta["onnx2nn"]["stored"]` says where in its file a weight lies, which
            `onnx2nn.OnnxReader` reads.
        mmap: whether weights are the pages of the mapped file instead of copies, as for `torch.load` (PyTorch on the
            CPU only). A page is read at its first use, and copied where it is written, so that the file stays as it
            is; it must not become shorter while the module lives. Weights keep the file's layout: of a linear layer it
            may be transposed.
        optimize: `"eager"` or `"compile"` for a faster module for inference, see `onnx2nn.optimize` (PyTorch only).
            `"eager"` also computes convolutions between QuantizeLinear and DequantizeLinear on integers, as ONNX
            Runtime does, and rounds a QLinearConv in its kernel: another step where a number is next to the middle of
            two.
        limits: what the file may cost beyond its own size; by default `onnx2nn.Limits()`.

    Returns:
        A module that takes the graph's inputs by position or by name. It returns a tensor for one output, a tuple in
        the file's order for several outputs. Its weights are contiguous.

    Raises:
        LimitError: the file costs more than a limit allows.
        ModelFileError: the source is not a readable model.
        UnsupportedModelError: lists all nodes that cannot be imported.
        MissingDependencyError: the framework is not installed.
        InputError: `framework`, `input_shapes`, `dynamic`, `trainable`, `quantized`, `blocks`, `dtype`, `device` or
            `optimize` do not fit.
        FrozenDimensionError: a dimension in `dynamic` cannot be made dynamic, and is no batch of 1 of which one sample
            runs alone; the text names the node that fixes it.
    """
    options = Options(
        framework,
        input_shapes or {},
        raise_patterns,
        dynamic,
        trainable,
        quantized,
        blocks,
        dtype,
        device,
        mmap,
        optimize,
    )
    account = Account(limits)
    with (
        gc_pause.paused(),
        reader.opened(source, base_dir=base_dir, follow_links=follow_links, account=account) as model,
        _weights(model, options) as files,
    ):
        module = _load_model(model, options, account, files)
    _warn_of_fixed(module)
    return module if optimize is None else optimized(module, optimize)


def _weights(model: ir.Model, options: Options) -> contextlib.AbstractContextManager[MappedFiles | None]:
    """Returns the context in which weights are read, ahead of their use, or mapped."""
    if options.elsewhere:
        return mapping(model)
    return mapping(model, aligned=True) if options.mmap else reading_ahead(model)


def load_stored(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    limits: Limits | None = None,
    **options: Any,
) -> tuple[Any, MappedFiles, contextlib.ExitStack]:
    """Imports a model for a reader of its weights.

    Args:
        source: as for `load`.
        base_dir: as for `load`.
        follow_links: as for `load`.
        limits: as for `load`.
        **options: further ones of `load`.

    Returns:
        The module, whose state is on the meta device where `meta["onnx2nn"]["stored"]` says which bytes of a file it
        is, and on the CPU elsewhere; the files; and what closes them.

    Raises:
        Onnx2nnError: as for `load`.
    """
    chosen = Options(**options, device="meta", keep_computed=True)
    account = Account(limits)
    with contextlib.ExitStack() as stack:
        with gc_pause.paused():
            found = reader.opened(source, base_dir=base_dir, follow_links=follow_links, account=account)
            model = stack.enter_context(found)
            with mapping(model) as files:
                module = _load_model(model, chosen, account, files)
        return module, files, stack.pop_all()


def check(
    source: str | os.PathLike[str] | bytes | BinaryIO | onnx.ModelProto,
    *,
    base_dir: str | os.PathLike[str] | None = None,
    follow_links: bool = False,
    limits: Limits | None = None,
) -> Report:
    """Returns a report of a model's operators, of all nodes that `load` cannot import, and of the sizes that it takes.

    If PyTorch is installed, a model whose operators are known is imported for what only an import shows: the sizes, and
    how much of the file is in blocks that can be called.

    Args:
        source: as for `load`.
        base_dir: folder of the external data where `source` is no path.
        follow_links: as for `load`.
        limits: as for `load`.

    Raises:
        LimitError: the file costs more than a limit allows.
        ModelFileError: the source is not a readable model.
    """
    account = Account(limits)
    with reader.opened(source, base_dir=base_dir, follow_links=follow_links, account=account) as model:
        found = report(model)
        if not found.ok or importlib.util.find_spec("torch") is None:
            return found
        try:
            module = _load_model(model, Options(trainable=False), account)
        except UnsupportedModelError as error:
            return dataclasses.replace(found, problems=list(error.problems))
    known = module.meta["onnx2nn"]
    found.guards.extend(map(_guard_text, known["guards"]))
    return dataclasses.replace(found, tree=known["tree"])


def _guard_text(guard: Mapping[str, Any]) -> str:
    where = f", node {guard['node']!r} ({guard['operator']})" if guard["node"] else ""
    places = (
        f"{name}: dimension {place[1]} of {place[0]!r}" if place is not None else f"{name}: data decide it"
        for name, place in guard["dimensions"].items()
    )
    when = "" if guard["at_entry"] else ", where that runs"
    return f"{guard['condition']} ({'; '.join(places)}): {guard['reason']}{where}{when}"


def _warn_of_fixed(module: Any) -> None:
    """Warns of dimensions that the file declares as dynamic, but fixes inside."""
    record = module.meta["onnx2nn"]
    fixed = record.get("fixed")
    if fixed:
        texts = [f"{shown_name(name)} is {shown_name(_size_text(size))}" for name, size in fixed.items()]
        warnings.warn(
            f"The file declares dimensions as dynamic that its nodes fix: {', '.join(texts)}. "
            f"model.meta['onnx2nn']['guards'] names the nodes; load(..., dynamic=...) makes a dimension dynamic.",
            stacklevel=3,
        )


def _size_text(size: Any) -> str:
    return f"{size[0]} to {size[-1]}" if isinstance(size, range) else str(size)


@dataclass(frozen=True, eq=False)
class Options:
    """The options of `onnx2nn.load`, which explains them.

    Raises:
        InputError: a value is unknown, or the framework does not support the option.
    """

    framework: str = "torch"
    input_shapes: InputShapes = dataclasses.field(default_factory=dict)
    raise_patterns: bool = True
    dynamic: Mapping[str, Mapping[int, str]] | None = None
    trainable: bool | Collection[str] = True
    quantized: str = "keep"
    blocks: str = "named"
    dtype: Any = None
    device: Any = None
    mmap: bool = False
    optimize: str | None = None
    keep_computed: bool = False
    """Whether state on the meta device that is no bytes of the file keeps its elements."""

    def __post_init__(self) -> None:
        if self.framework not in ("torch", "oneflow"):
            raise InputError(f"framework={self.framework!r}: give 'torch' or 'oneflow'.")
        if self.quantized not in ("keep", "dequantize", "torchao"):
            raise InputError(f"quantized={self.quantized!r}: give 'keep', 'dequantize' or 'torchao'.")
        if self.blocks not in ("named", "repeated"):
            raise InputError(f"blocks={self.blocks!r}: give 'named' or 'repeated'.")
        if self.optimize is not None:
            check_mode(self.optimize)
        words = () if isinstance(self.trainable, bool) else self.trainable
        if not isinstance(words, Collection) or not all(isinstance(word, str) for word in words):
            raise InputError(f"trainable={self.trainable!r}: give True, False, or roles and patterns of keys.")
        if self.dtype is not None and not getattr(self.dtype, "is_floating_point", False):
            raise InputError(f"dtype={self.dtype!r}: give a float type of torch, such as torch.bfloat16.")
        if self.framework != "torch":
            self._refuse_torch_only()

    def _refuse_torch_only(self) -> None:
        if self.quantized == "torchao":
            raise InputError("quantized='torchao' needs framework='torch'. Give 'keep' or 'dequantize' for OneFlow.")
        defaults = {field.name: field.default for field in dataclasses.fields(self)}
        for name in ("blocks", "dtype", "device", "mmap", "optimize", "keep_computed"):
            if getattr(self, name) != defaults[name]:
                raise InputError(f"{name} needs framework='torch'. Leave it out for OneFlow.")

    @functools.cached_property
    def elsewhere(self) -> Any:
        """The device of the module, None for the CPU and in other frameworks.

        Raises:
            InputError: torch has no such device.
        """
        if self.framework != "torch" or importlib.util.find_spec("torch") is None:
            return None
        torch = importlib.import_module("torch")
        try:
            device = _default_device(torch) if self.device is None else torch.device(self.device)
        except (RuntimeError, TypeError) as error:
            raise InputError(f"device={self.device!r}: {str(error).splitlines()[0]}") from error
        return None if device.type == "cpu" else device


def _default_device(torch: Any) -> Any:
    """Returns the device of new parameters, which `accelerate.init_empty_weights` changes too."""
    probe = torch.nn.Module()
    probe.register_parameter("probe", torch.nn.Parameter(torch.empty(0)))
    return probe.probe.device


def _load_model(model: ir.Model, options: Options, account: Account, files: MappedFiles | None = None) -> Any:
    """Returns `model` as a module; the model must not be used afterwards.

    Args:
        model: as `reader.read` gives it.
        options: of `load`.
        account: of this import.
        files: its files, where they are mapped.

    Raises:
        UnsupportedModelError: lists all nodes that cannot be imported.
        FrozenDimensionError, InputError, MissingDependencyError: as `onnx2nn.load` says.
    """
    shapes = chosen_shapes(model, options.input_shapes)
    try:
        return _import(model, options, shapes, account, files)
    except UnsupportedModelError as error:  # the import did not reach the nodes behind them
        unknown = report(model).problems
        known = {(problem.domain, problem.operator, problem.reason) for problem in unknown}
        others = [p for p in error.problems if (p.domain, p.operator, p.reason) not in known]
        raise UnsupportedModelError([*unknown, *others]) from error.__cause__


def _import(model: ir.Model, options: Options, shapes: InputShapes, account: Account, files: MappedFiles | None) -> Any:
    target = target_of(options.framework, options.dynamic)
    with _on_cpu(target.F) if options.framework == "torch" else contextlib.nullcontext():
        module, report = _import_to(target, model, options, shapes, account)
        if account.stored_bytes >= COLLECTED_FROM:
            gc_pause.collect_young()  # the dropped tracer holds the weights in the file's layout
        if options.framework == "torch":
            _finish(module, options, files, report)
        elif options.trainable is not True:
            choose_trainable(module.holders(), options.trainable, target.F.nn)
    return module


COLLECTED_FROM = 32 << 20
"""Bytes of weights from which on the memory that an import drops matters more than the milliseconds of a collection."""


def _on_cpu(torch: Any) -> contextlib.AbstractContextManager[Any]:
    """Makes the CPU the default device: weights are read to the CPU, and buffers must be on the same device."""
    if torch.empty(0).device.type == "cpu":  # get_default_device imports another module of torch
        return contextlib.nullcontext()
    return cast("contextlib.AbstractContextManager[Any]", torch.device("cpu"))


def _import_to(
    target: Target, model: ir.Model, options: Options, shapes: InputShapes, account: Account
) -> tuple[Any, Dequantization | None]:
    _refuse(model, options)
    done: dict[str, Any] = {}
    report = None
    if options.quantized == "torchao" and options.elsewhere is not None and options.elsewhere.type == "meta":
        raise InputError("quantized='torchao' needs weights with elements. Leave device='meta' out.")
    if options.quantized != "keep":
        from onnx2nn.dequantize import Tensors, dequantize

        report = dequantize(model, Tensors(target.F, target.constants))
        done["dequantized"] = report.described()
    author = restore(model, unfold=options.raise_patterns)

    def prepare(model: ir.Model) -> tuple[Plan, dict[str, Any]]:
        found = plan(model, author, account.renewed(), options.blocks)
        if not options.raise_patterns:
            return found, {}
        optimized = options.optimize is not None
        if not optimized:
            stop_gradients(model.graph)
        raising = raise_model(model, found.table, target.F, account.renewed(), for_inference=optimized)
        return found, {"raising": {"raised": dict(raising.raised), "dropped": raising.dropped}}

    module = target.import_model(model, prepare, input_shapes=shapes)
    module.meta["onnx2nn"].update(done)
    for line in module.meta["onnx2nn"].get("raising", {}).get("dropped", ()):
        _LOG.warning(shown_name(line, LONGEST_MESSAGE))
    return module, report


@timed("checking")
def _refuse(model: ir.Model, options: Options) -> None:
    """Refuses a model with nodes that contradict their operators, or lack a type."""
    refuse_malformed(model)
    if options.framework == "torch":
        from onnx2nn.fx.missing_types import refuse_missing_types

        refuse_missing_types(model)


@timed("state")
def _finish(module: Any, options: Options, files: MappedFiles | None, report: Dequantization | None) -> None:
    """Gives the state of a module of torch its place, its form, its type and its gradients."""
    from onnx2nn.fx.modules.devices import move
    from onnx2nn.fx.modules.graph_module import lay_out_state

    if options.elsewhere is None:
        if not options.mmap:
            lay_out_state(module)
    elif files is not None and options.elsewhere.type == "meta":
        _drop_stored(module, options, files)
    else:
        move(module, options.elsewhere)
    if report is not None and options.quantized == "torchao":
        from onnx2nn.dequantize.torchao_weights import put_torchao_weights

        module.meta["onnx2nn"]["torchao"] = put_torchao_weights(module, report.forms)
    if options.dtype is not None:
        module.to(options.dtype)
    if options.trainable is not True:
        import torch

        choose_trainable(module.named_modules(remove_duplicate=False), options.trainable, torch.nn)


def _drop_stored(module: Any, options: Options, files: MappedFiles) -> None:
    """Moves state to the meta device: all of it, or what is bytes of a file; notes the latter."""
    from onnx2nn.fx.modules.devices import drop_elements
    from onnx2nn.fx.modules.stored_state import stored_state

    stored = stored_state(module, files.locate)
    if options.keep_computed and options.dtype is not None:
        # A conversion also exchanges the lowest number of the file's type in buffers, so that the bytes are not enough.
        for name, buffer in module.named_buffers(remove_duplicate=False):
            if buffer.is_floating_point():
                stored.pop(name, None)
    module.meta["onnx2nn"]["stored"] = stored
    drop_elements(module, stored if options.keep_computed else module.state_dict().keys())
