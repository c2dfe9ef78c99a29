"""Weights from the file to the processes of torch.distributed: each reads of each tensor its part, and no page more."""

from __future__ import annotations

import gc
import itertools
import math
import sys
import warnings
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from onnx import helper, numpy_helper
from torch import nn
from torch.distributed import checkpoint
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex
from torch.distributed.checkpoint.planner import LoadPlan, ReadItem
from torch.distributed.checkpoint.planner_helpers import create_read_items_for_chunk_list
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate
from torch.distributed.tensor.parallel import ColwiseParallel, ParallelStyle, RowwiseParallel, parallelize_module

import onnx2nn
from onnx2nn.errors import InputError, ModelFileError
from onnx2nn.reading import stored_boxes
from onnx2nn.reading.byte_sources import FileSource
from onnx2nn.reading.stored_boxes import StoredView
from scripts.language_models import built, feeds, tensors
from tests.ranks import RANKS, on_ranks

DIGITS = Path(__file__).resolve().parent.parent / "examples" / "digits" / "digits.onnx"

Reads = list[tuple[int, int]]
"""Offsets and lengths of what is read of a file."""


def _network(path: Path, width: int = 129, inner: int = 259, external: bool = True, dtype: type = np.float32) -> Path:
    """Writes an embedding, two linear layers, one of them stored transposed, and a convolution."""
    rng = np.random.default_rng(0)
    shapes = {
        "embedding.weight": (200, width),
        "onnx::MatMul_9": (width, inner),  # (inputs, outputs) of up.weight, as the older exporter stores it
        "up.bias": (inner,),
        "down.weight": (width, inner),  # (outputs, inputs)
        "down.bias": (width,),
        "conv.weight": (37, width, 3),
        "conv.bias": (37,),
    }
    state = [numpy_helper.from_array(rng.standard_normal(s).astype(dtype), name) for name, s in shapes.items()]
    nodes = [
        helper.make_node("Gather", ["embedding.weight", "tokens"], ["x"]),
        helper.make_node("MatMul", ["x", "onnx::MatMul_9"], ["product"]),
        helper.make_node("Add", ["product", "up.bias"], ["sum"]),
        helper.make_node("Relu", ["sum"], ["positive"]),
        helper.make_node("Gemm", ["positive", "down.weight", "down.bias"], ["z"], transB=1),
        helper.make_node("Unsqueeze", ["z", "axes"], ["rows"]),
        helper.make_node("Conv", ["rows", "conv.weight", "conv.bias"], ["y"], pads=[1, 1]),
    ]
    state.append(numpy_helper.from_array(np.array([2]), "axes"))
    inputs = [helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, ["n"])]
    kind = helper.np_dtype_to_tensor_dtype(np.dtype(dtype))
    outputs = [helper.make_tensor_value_info("y", kind, ["n", 37, 1])]
    path.parent.mkdir(exist_ok=True)
    model = helper.make_model(helper.make_graph(nodes, "network", inputs, outputs, state), producer_name="pytorch")
    onnx.save(model, path, save_as_external_data=external, location="data", size_threshold=0)
    return path


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> Iterator[Reads]:
    """What is read of files."""
    found: Reads = []
    fill = FileSource.fill

    def noted(source: FileSource, array: np.ndarray, offset: int) -> None:
        found.append((offset, array.nbytes))
        fill(source, array, offset)

    monkeypatch.setattr(FileSource, "fill", noted)
    return found


def _fresh(module: nn.Module) -> dict[str, torch.Tensor]:
    return {key: torch.full_like(tensor, 3) for key, tensor in module.state_dict().items()}


def _load(state: dict[str, Any], reader: onnx2nn.OnnxReader) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a load without other processes
        checkpoint.load(state, storage_reader=reader)


def _is_the_import(source: Path, reader: onnx2nn.OnnxReader, dtype: torch.dtype | None = None) -> bool:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of the size of a cache's rows
        module = onnx2nn.load(source, dtype=dtype)
    state = _fresh(module)
    _load(state, reader)
    return all(torch.equal(state[key], tensor) for key, tensor in module.state_dict().items())


@pytest.mark.parametrize("dtype", [None, torch.bfloat16, torch.float64])
@pytest.mark.parametrize("external", [False, True], ids=["inside", "external"])
def test_all_weights_are_the_imports(external: bool, dtype: torch.dtype | None, tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx", external=external)
    for source in (path, DIGITS):
        assert _is_the_import(source, onnx2nn.OnnxReader(source, dtype=dtype), dtype)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "precision", "dtype"),
    [
        *((name, "fp32", dtype) for name in ("llama", "qwen2", "phi3", "gemma2") for dtype in (None, torch.float16)),
        ("llama", "fp16", torch.bfloat16),
        ("llama", "int4", None),
    ],
)
def test_language_models(name: str, precision: str, dtype: torch.dtype | None) -> None:
    """Their matrices of queries, keys and values are packed, and the head may be the embedding."""
    path = built(name, precision)
    reader = onnx2nn.OnnxReader(path, dtype=dtype)
    assert _is_the_import(path, reader, dtype)
    state = onnx2nn.load(path, device="meta").state_dict()
    assert precision == "int4" or all(state[key].nbytes < 1 << 14 for key in reader.whole)


def test_a_mask_in_a_narrower_type(tmp_path: Path) -> None:
    """A conversion makes the lowest number of float32 that of float16, in buffers, so that these are not read alone."""
    mask = np.where(np.tri(128) > 0, 0, np.finfo(np.float32).min).astype(np.float32)
    weight = numpy_helper.from_array(np.random.default_rng(0).standard_normal((128, 128), np.float32), "weight")
    nodes = [
        helper.make_node("Constant", [], ["mask"], value=numpy_helper.from_array(mask)),
        helper.make_node("MatMul", ["x", "weight"], ["product"]),
        helper.make_node("Add", ["product", "mask"], ["y"]),
    ]
    inputs, outputs = ([helper.make_tensor_value_info(name, 1, [128, 128])] for name in "xy")
    path = tmp_path / "mask.onnx"
    onnx.save(helper.make_model(helper.make_graph(nodes, "mask", inputs, outputs, [weight])), path)
    assert onnx2nn.load(path, dtype=torch.float16).state_dict()["add_constant"].min() == torch.finfo(torch.float16).min
    for dtype, whole in ((None, []), (torch.float16, ["add_constant"])):
        reader = onnx2nn.OnnxReader(path, dtype=dtype)
        assert reader.whole == whole
        assert _is_the_import(path, reader, dtype)


def test_tied_weights(tmp_path: Path) -> None:
    """An embedding and the head after it are one matrix of the file."""
    table = numpy_helper.from_array(np.random.default_rng(0).standard_normal((512, 64), np.float32), "embedding.weight")
    nodes = [
        helper.make_node("Gather", ["embedding.weight", "tokens"], ["x"]),
        helper.make_node("Transpose", ["embedding.weight"], ["turned"], perm=[1, 0]),
        helper.make_node("MatMul", ["x", "turned"], ["y"]),
    ]
    inputs = [helper.make_tensor_value_info("tokens", onnx.TensorProto.INT64, ["n"])]
    outputs = [helper.make_tensor_value_info("y", 1, ["n", 512])]
    graph = helper.make_graph(nodes, "tied", inputs, outputs, [table])
    onnx.save(helper.make_model(graph, producer_name="pytorch"), tmp_path / "tied.onnx")
    reader = onnx2nn.OnnxReader(tmp_path / "tied.onnx")
    assert not reader.whole
    assert _is_the_import(tmp_path / "tied.onnx", reader)


def test_a_transposed_matrix_is_read_where_it_lies(tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx")
    record = onnx2nn.load(path, device="meta").meta["onnx2nn"]["stored"]
    assert record.keys() == {"embedding.weight", "up.weight", "down.weight", "conv.weight"}
    assert record["up.weight"]["stride"] == (1, 259)
    assert record["down.weight"]["stride"] == (259, 1)
    assert record["up.weight"]["file"] == str(tmp_path / "data")
    assert onnx2nn.OnnxReader(path).whole == ["up.bias", "down.bias", "conv.bias"]


def _pages(reads: Reads) -> set[int]:
    return {page for offset, length in reads for page in range(offset // 4096, (offset + length - 1) // 4096 + 1)}


@st.composite
def _boxes(draw: st.DrawFn) -> tuple[tuple[int, ...], tuple[int, ...], tuple[slice, ...], tuple[slice, ...], int]:
    """Draws the shape of a tensor, a part of it, the order of the part's dimensions, a box in the part, an itemsize."""
    shape = tuple(draw(st.lists(st.integers(1, 7), max_size=4)))
    order = tuple(draw(st.permutations(range(len(shape)))))

    def part(size: int) -> slice:
        start = draw(st.integers(0, size - 1))
        return slice(start, draw(st.integers(start + 1, size)))

    packed = tuple(map(part, shape))
    sizes = [packed[axis].stop - packed[axis].start for axis in order]
    return shape, order, packed, tuple(map(part, sizes)), draw(st.sampled_from([1, 2, 4, 8]))


@pytest.mark.parametrize(("page", "block"), [(1, 1), (9, 64), (40, 4096), (4096, 1 << 22)])
@settings(max_examples=100, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(drawn=_boxes())
def test_a_box_of_a_view(
    page: int,
    block: int,
    drawn: Any,
    tmp_path_factory: pytest.TempPathFactory,
    monkeypatch: pytest.MonkeyPatch,
    reads: Reads,
) -> None:
    """A box of a transposed part of a packed tensor has the bytes of the whole; gaps of a page are not read."""
    monkeypatch.setattr(stored_boxes, "_PAGE", page)
    monkeypatch.setattr(stored_boxes, "_BLOCK", block)
    shape, order, packed, box, itemsize = drawn
    items = np.random.default_rng(0).integers(0, 256, math.prod(shape) * itemsize, np.uint8)
    file = tmp_path_factory.getbasetemp() / "box"
    file.write_bytes(b"head!" + items.tobytes())
    whole = items.view(f"V{itemsize}").reshape(shape)
    places = np.arange(whole.size).reshape(shape)
    view, numbers = whole[packed].transpose(order), places[packed].transpose(order)
    first = 5 + int(numbers.flat[0]) * itemsize
    reads.clear()
    found = np.zeros((*numbers[box].shape, itemsize), np.uint8)
    starts, lengths = [part.start for part in box], [part.stop - part.start for part in box]
    for place, part in StoredView(FileSource(str(file)), first, itemsize, view.strides).blocks(starts, lengths):
        assert not found[place].any()
        found[place] = part
    wanted = np.ascontiguousarray(view[box]).view(np.uint8).reshape(found.shape)
    assert np.array_equal(found, wanted)
    own = {5 + int(number) * itemsize + byte for number in numbers[box].flat for byte in range(itemsize)}
    taken = [byte for offset, length in reads for byte in range(offset, offset + length)]
    assert len(taken) == len(set(taken))
    assert own <= set(taken)
    extra = sorted(set(taken) - own)
    runs = np.split(extra, np.flatnonzero(np.diff(extra) != 1) + 1)
    assert all(len(run) < page for run in runs)


class _Shards(checkpoint.DefaultLoadPlanner):
    """Takes the parts of tensors, by key and first element."""

    def __init__(self, shards: dict[tuple[str, tuple[int, ...]], torch.Tensor]):
        super().__init__()
        self.shards = shards

    def lookup_tensor(self, index: MetadataIndex) -> torch.Tensor:
        assert index.offset is not None
        return self.shards[index.fqn, tuple(index.offset)]


def _chunks(cuts: Sequence[Sequence[int]]) -> list[ChunkStorageMetadata]:
    """Returns the chunks between cuts of each dimension, its ends among them."""
    chunks: list[tuple[list[int], list[int]]] = [([], [])]
    for cut in cuts:
        chunks = [([*offsets, a], [*sizes, b - a]) for offsets, sizes in chunks for a, b in itertools.pairwise(cut)]
    return [ChunkStorageMetadata(torch.Size(offsets), torch.Size(sizes)) for offsets, sizes in chunks]


@pytest.fixture(scope="module")
def network(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, torch.Tensor], onnx2nn.OnnxReader]:
    """Rows of its matrices have 8 KiB, so that parts of them lie pages apart."""
    path = _network(tmp_path_factory.mktemp("network") / "model.onnx", inner=4099, dtype=np.float16)
    return onnx2nn.load(path).state_dict(), onnx2nn.OnnxReader(path)


@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(data=st.data())
def test_any_sharding(
    network: tuple[dict[str, torch.Tensor], onnx2nn.OnnxReader], data: st.DataObject, reads: Reads
) -> None:
    """Of tensors cut anywhere along all dimensions, each part is the whole's, and reads the pages that hold it."""
    state, reader = network
    key = data.draw(st.sampled_from(sorted(state)))
    whole = state[key]
    cuts = [
        sorted({0, size, *data.draw(st.lists(st.integers(0, size), max_size=2), label="cuts")}) for size in whole.shape
    ]
    chunks = _chunks(cuts)
    chunk = data.draw(st.sampled_from(chunks))
    metadata = reader.read_metadata()
    items: list[ReadItem] = create_read_items_for_chunk_list(key, metadata.state_dict_metadata[key], [chunk])  # type: ignore[arg-type]  # no bytes are among them
    target = torch.full(chunk.sizes, 3, dtype=whole.dtype)
    planner = _Shards({(key, tuple(chunk.offsets)): target})
    reads.clear()
    reader.read_data(reader.prepare_local_plan(LoadPlan(items)), planner).wait()
    box = tuple(slice(a, a + n) for a, n in zip(chunk.offsets, chunk.sizes, strict=True))
    assert torch.equal(target, whole[box])
    record = reader.stored.get(key)
    if record is None:
        assert not reads
        return
    places = torch.arange(1 + sum((n - 1) * s for n, s in zip(whole.shape, record["stride"], strict=True)))
    own = places.as_strided(whole.shape, record["stride"])[box].flatten().numpy() * 2 + record["offset"]
    assert _pages(reads) == {*(own // 4096).tolist(), *((own + 1) // 4096).tolist()}
    assert sum(length for _, length in reads) <= target.nbytes + 4096 * len(_pages(reads))


def test_problems_are_named_at_once(tmp_path: Path) -> None:
    reader = onnx2nn.OnnxReader(_network(tmp_path / "model.onnx"))
    state = _fresh(onnx2nn.load(tmp_path / "model.onnx"))
    state |= {
        "first": torch.zeros(2),
        "second": torch.zeros(1),
        "up.weight": torch.zeros(2, 3),
        "up.bias": torch.zeros(1),
    }
    with pytest.raises(checkpoint.CheckpointException) as caught:
        _load(state, reader)
    error, _ = caught.value.failures[0]
    assert isinstance(error, InputError)
    assert str(error) == (
        "The file has no weights for these keys of the state_dict:\n  first\n  second\n"
        "These shapes differ:\n"
        "  up.weight: (259, 129) in the file, (2, 3) in the state_dict\n"
        "  up.bias: (259,) in the file, (1,) in the state_dict\n"
        "Give the state_dict of onnx2nn.load for this file, and OnnxReader the same options; "
        "strict=False leaves tensors as they are that the file lacks."
    )
    assert (state["down.weight"] == 3).all()


def test_keys_that_the_file_lacks_keep_their_values(tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx")
    state = {"up.weight": torch.zeros(259, 129), "adapter.weight": torch.ones(3)}
    _load(state, onnx2nn.OnnxReader(path, strict=False))
    assert torch.equal(state["up.weight"], onnx2nn.load(path).state_dict()["up.weight"])
    assert torch.equal(state["adapter.weight"], torch.ones(3))


def test_a_reader_is_used_again_until_it_is_closed(tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx")
    reader, module = onnx2nn.OnnxReader(path), onnx2nn.load(path)
    with pytest.raises(checkpoint.CheckpointException):
        _load({"nothing": torch.zeros(1)}, reader)
    for _ in range(2):
        state = _fresh(module)
        _load(state, reader)
        assert torch.equal(state["up.weight"], module.state_dict()["up.weight"])
    reader.close()
    with pytest.raises(checkpoint.CheckpointException, match="closed file"):
        _load(_fresh(module), reader)


def test_a_file_that_became_shorter(tmp_path: Path) -> None:
    reader = onnx2nn.OnnxReader(_network(tmp_path / "model.onnx"))
    with (tmp_path / "data").open("r+b") as file:
        file.truncate(100)
    with pytest.raises(checkpoint.CheckpointException) as caught:
        _load({"up.weight": torch.zeros(259, 129)}, reader)
    error, _ = caught.value.failures[0]
    assert isinstance(error, ModelFileError)
    assert "became shorter" in str(error)


def test_options_and_other_files(tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx")
    with pytest.raises(InputError, match="device is no option of OnnxReader"):
        onnx2nn.OnnxReader(path, device="meta")
    with pytest.raises(ModelFileError):
        onnx2nn.OnnxReader(tmp_path / "missing.onnx")
    with pytest.raises(InputError, match=r"checkpoint_id='other\.onnx'"):
        onnx2nn.OnnxReader(path).reset("other.onnx")
    onnx2nn.OnnxReader(path).reset(str(path))


def test_what_the_import_computes_is_whole(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """ONNX and torch order the gates of an LSTM differently."""
    module = nn.LSTM(40, 70).eval()
    torch.onnx.export(module, (torch.randn(3, 2, 40),), tmp_path / "lstm.onnx", dynamo=False)
    reader = onnx2nn.OnnxReader(tmp_path / "lstm.onnx")
    assert "weight_ih_l0: 44800 bytes" in caplog.text
    assert _is_the_import(tmp_path / "lstm.onnx", reader)


def _filled(module: nn.Module, path: Path, **options: Any) -> nn.Module:
    """Completes a sharded module on the meta device."""
    state = module.state_dict()
    checkpoint.load(state, storage_reader=onnx2nn.OnnxReader(path, **options))
    module.load_state_dict(state, assign=True)
    return module


def _equal_shards(module: nn.Module, whole: nn.Module) -> bool:
    wanted = whole.state_dict()
    return all(
        torch.equal(t.full_tensor() if isinstance(t, DTensor) else t, wanted[key])
        for key, t in module.state_dict().items()
    )


def _fully_sharded(_: int, path: Path, inputs: tuple[torch.Tensor, ...], saved: Path) -> tuple[bool, float, int]:
    module = onnx2nn.load(path, device="meta")
    whole = onnx2nn.load(path)
    fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,)))
    _filled(module, path)
    equal = _equal_shards(module, whole)
    with torch.no_grad():
        gap = _gap(module(*inputs), whole(*inputs))
    checkpoint.save(module.state_dict(), checkpoint_id=saved)
    held = sum(p.to_local().nbytes for p in module.parameters() if isinstance(p, DTensor))
    return equal, gap, held


def _gap(ours: Any, theirs: Any) -> float:
    pairs = zip(ours, theirs, strict=True) if isinstance(ours, tuple) else [(ours, theirs)]
    return max(float((a - b).abs().max()) for a, b in pairs)


def _check_fully_sharded(path: Path, inputs: tuple[torch.Tensor, ...], saved: Path) -> None:
    answers = on_ranks(_fully_sharded, path, inputs, saved)
    whole = onnx2nn.load(path)
    assert [(equal, gap) for equal, gap, _ in answers] == [(True, 0)] * RANKS
    assert sum(held for *_, held in answers) == sum(p.nbytes for p in whole.parameters())
    state = _fresh(whole)  # what two processes saved, in one
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # of a load without other processes
        checkpoint.load(state, checkpoint_id=saved)
    assert all(torch.equal(state[key], tensor) for key, tensor in whole.state_dict().items())


@pytest.mark.slow
def test_fully_sharded_data_parallel(tmp_path: Path) -> None:
    path = _network(tmp_path / "model.onnx")
    _check_fully_sharded(path, (torch.arange(7),), tmp_path / "saved")


@pytest.mark.slow
def test_a_language_model_with_packed_weights(tmp_path: Path) -> None:
    path = built("llama", "fp32")
    _check_fully_sharded(path, tensors(feeds(path, 2, 5, 0)), tmp_path / "saved")


_TO_ALL = ColwiseParallel(output_layouts=Replicate())
_PLAN: dict[str, ParallelStyle] = {
    **{f"model.layers.{i}.self_attn.{n}_proj": _TO_ALL for i in (0, 1) for n in "qkv"},
    **{f"model.layers.{i}.mlp.{n}_proj": ColwiseParallel() for i in (0, 1) for n in ("gate", "up")},
    **{f"model.layers.{i}.mlp.down_proj": RowwiseParallel() for i in (0, 1)},
    **{f"model.layers.{i}.self_attn.o_proj": RowwiseParallel(input_layouts=Replicate()) for i in (0, 1)},
    "lm_head": _TO_ALL,
}
"""By the names of transformers' Llama."""


def _parallelized(_: int, path: Path, inputs: tuple[torch.Tensor, ...]) -> tuple[bool, float, int]:
    module = onnx2nn.load(path, device="meta")
    whole = onnx2nn.load(path)
    parallelize_module(module, init_device_mesh("cpu", (RANKS,)), _PLAN)
    _filled(module, path)
    equal = _equal_shards(module, whole)
    with torch.no_grad():
        gap = _gap(module(*inputs), whole(*inputs))
    return equal, gap, sum(isinstance(p, DTensor) for p in module.parameters())


@pytest.mark.slow
def test_tensor_parallelism_by_the_authors_names() -> None:
    path = built("llama", "fp32")
    for equal, gap, split in on_ranks(_parallelized, path, tensors(feeds(path, 2, 5, 0))):
        assert equal
        assert split == len(_PLAN)
        assert gap < 1e-4  # rows of a matrix are summed in another order


def _peak(_: int, small: Path, path: Path) -> tuple[int, int, int]:
    """Returns the peak of resident memory above what a load of a small file leaves, and the bytes held and stored."""

    def resident(field: str) -> int:
        status = Path("/proc/self/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in status if line.startswith(field))

    def loaded(path: Path) -> nn.Module:
        module = onnx2nn.load(path, device="meta")
        return _filled(fully_shard(module, mesh=init_device_mesh("cpu", (RANKS,))), path)

    loaded(small)
    gc.collect()
    Path("/proc/self/clear_refs").write_text("5")
    own = resident("VmRSS")
    module = loaded(path)
    peak = resident("VmHWM") - own
    held = sum(p.to_local().nbytes for p in module.parameters() if isinstance(p, DTensor))
    return peak, held, sum(p.nbytes for p in module.parameters())


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="peaks of memory are read from /proc")
def test_a_rank_takes_the_memory_of_its_part(tmp_path: Path) -> None:
    """Resident memory, with all that is mapped meanwhile. The file has 196 MiB.

    Sizes are even, as FSDP2 copies odd ones to pad them.
    """
    small, path = (_network(tmp_path / f"{width}" / "model.onnx", width, 2 * width) for width in (128, 3584))
    for peak, held, stored in on_ranks(_peak, small, path):
        assert held < 0.51 * stored
        assert peak <= held + 0.05 * stored
