"""External data is read from the model's folder and nowhere else, whatever a file says and whoever changes the folder.

The defects of the onnx package that are named here are of its own code, which `onnx.load` runs; onnx2nn reads external
data by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch
from onnx import TensorProto, helper, numpy_helper

import onnx2nn
from onnx2nn.errors import ModelFileError
from onnx2nn.reading import data_folder
from onnx2nn.reading.data_folder import location_parts
from onnx2nn.reading.embedded import embedded
from onnx2nn.reading.reader import opened, read

WEIGHTS = np.arange(4, dtype=np.float32)
SECRET = b"SECRET!!" * 2
COMMIT, DIGEST, OTHER = "a1" * 20, "b2" * 32, "c3" * 20

links = pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege of Windows")


def model_of(**entries: str) -> onnx.ModelProto:
    """Returns a model that adds external data; `entries` say where they are."""
    weight = TensorProto(name="w", data_type=TensorProto.FLOAT, dims=[4], data_location=TensorProto.EXTERNAL)
    for key, value in {"location": "w.bin", **entries}.items():
        weight.external_data.add(key=key, value=value)
    graph = helper.make_graph(
        [helper.make_node("Add", ["x", "w"], ["y"])],
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [4])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, [4])],
        [weight],
    )
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


def write(folder: Path, **entries: str) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "m.onnx").write_bytes(model_of(**entries).SerializeToString())
    return folder / "m.onnx"


def read_weights(path: Path, **options: bool) -> np.ndarray:
    with opened(path, **options) as model:
        tensor = model.graph.initializers["w"].const_value
        assert tensor is not None
        return tensor.numpy()


@pytest.fixture(params=["handles", "paths"])
def folder(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder of a model, beside a secret; with the opening of Linux and macOS, then with that of Windows."""
    if request.param == "paths":
        monkeypatch.setattr(data_folder, "_HANDLES", False)
    elif not data_folder._HANDLES:
        pytest.skip("the system opens no file from a handle of its folder")
    (tmp_path / "secret").write_bytes(SECRET)
    (tmp_path / "model" / "sub").mkdir(parents=True)
    (tmp_path / "model" / "w.bin").write_bytes(WEIGHTS.tobytes())
    return tmp_path / "model"


def refused(path: Path, message: str) -> None:
    with pytest.raises(ModelFileError, match=message) as error:
        read(path)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize("location", ["w.bin", "./w.bin", "sub//../w.bin", "sub/w.bin"])
def test_what_lies_in_the_folder(folder: Path, location: str) -> None:
    (folder / "sub" / "w.bin").write_bytes(WEIGHTS.tobytes())
    if ".." in location:
        refused(write(folder, location=location), "unsafe")
    else:
        np.testing.assert_array_equal(read_weights(write(folder, location=location)), WEIGHTS)


@pytest.mark.parametrize("location", ["../secret", "..\\secret", "{0}/secret", "//host/share/secret", "\\\\host\\x"])
def test_cve_2022_25882_paths_out_of_the_folder(folder: Path, location: str) -> None:
    """CVE-2022-25882: onnx before 1.13 followed `..` and absolute paths in `location`."""
    refused(write(folder, location=location.format(folder.parent)), "unsafe")


@pytest.mark.parametrize("location", ["sub/../../secret", "none/../../secret", "./.././secret", "sub\\..\\..\\secret"])
def test_cve_2024_27318_paths_that_go_down_before_they_go_up(folder: Path, location: str) -> None:
    """CVE-2024-27318: onnx up to 1.15 looked for `..` at the beginning of a path only."""
    refused(write(folder, location=location), "unsafe")


@links
@pytest.mark.parametrize("location", ["link", "folder/secret", "sub/up/secret", "loop", "w/w.bin"])
def test_cve_2026_27489_links(folder: Path, location: str) -> None:
    """CVE-2026-27489 (and CVE-2026-34447): onnx before 1.21 followed links in a path, at its end or on the way."""
    os.symlink("../secret", folder / "link")
    os.symlink(folder.parent, folder / "folder")
    os.symlink("../..", folder / "sub" / "up")
    os.symlink("loop", folder / "loop")
    os.symlink(".", folder / "w")
    refused(write(folder, location=location), "link")
    if location in ("link", "folder/secret", "w/w.bin"):
        assert read_weights(write(folder, location=location), follow_links=True).size == 4


@links
def test_cve_2026_34446_hard_links(folder: Path) -> None:
    """CVE-2026-34446: onnx before 1.21 took a hard link to a file elsewhere for a file of the folder."""
    os.link(folder.parent / "secret", folder / "hard")
    refused(write(folder, location="hard"), "2 names")
    assert read_weights(write(folder, location="hard"), follow_links=True).tobytes() == SECRET


def test_cve_2026_34445_entries_are_no_attributes(folder: Path) -> None:
    """CVE-2026-34445: onnx before 1.21 set every entry of a tensor as an attribute of the object that reads it."""
    entries = {"__class__": "x", "path": "../secret", "basepath": "..", "size": "9" * 20, "_file": "x", "checksum": "0"}
    np.testing.assert_array_equal(read_weights(write(folder, **entries)), WEIGHTS)
    refused(write(folder, length="99999999999"), "needs 16 bytes")


def test_cve_2025_51480_an_export_writes_where_it_is_told(folder: Path) -> None:
    """CVE-2025-51480: `onnx.save` up to 1.17 wrote external data wherever `location` said.

    Here the data are read into the message first, and a writer names its own files.
    """
    path = write(folder, location="../secret")
    refused(path, "unsafe")
    with pytest.raises(ModelFileError, match="unsafe"):
        embedded(path)
    module = onnx2nn.load(write(folder))
    outside, inside = set(folder.parent.iterdir()), set(folder.iterdir())
    onnx2nn.export_onnx(module, folder / "export.onnx")
    assert set(folder.parent.iterdir()) == outside
    assert set(folder.iterdir()) == inside | {folder / "export.onnx"}


SWITCHING = """
import os, sys, time

folder, weights = sys.argv[1], bytes.fromhex(sys.argv[2])
os.chdir(folder)
while True:
    os.symlink("../../secret", "new")
    os.replace("new", "sub/w.bin")
    os.rename("sub", "away")
    os.symlink("../decoy", "sub")
    os.remove("sub")
    os.rename("away", "sub")
    with open("new", "wb") as file:
        file.write(weights)
    os.replace("new", "sub/w.bin")
    time.sleep(0.0005)
"""
"""Replaces a file and its folder by links and back. In the pauses a reader, however slow, meets the file itself."""


@links
@pytest.mark.slow
def test_a_race_on_the_folder(folder: Path) -> None:
    """Another process replaces the file and its folder by links and back while models are read."""
    (folder / "sub" / "w.bin").write_bytes(WEIGHTS.tobytes())
    os.mkdir(folder.parent / "decoy")
    (folder.parent / "decoy" / "w.bin").write_bytes(SECRET)
    path = write(folder, location="sub/w.bin")
    other = subprocess.Popen([sys.executable, "-c", SWITCHING, folder, WEIGHTS.tobytes().hex()])
    read, denied = 0, 0
    try:
        for attempt in range(100_000):  # how many it takes until both have happened depends on the machine
            if attempt >= 3000 and read and denied:
                break
            assert other.poll() is None, "the other process ended"
            try:
                assert read_weights(path).tobytes() == WEIGHTS.tobytes()
                read += 1
            except ModelFileError:
                denied += 1
    finally:
        other.kill()
        other.wait()
    assert read
    assert denied


def cache(root: Path, link: str = f"../../blobs/{DIGEST}", name: str = DIGEST) -> Path:
    """Makes a repository as Hugging Face's cache holds it, and returns the model's path in a snapshot."""
    (root / "blobs").mkdir(parents=True)
    (root / "blobs" / name).write_bytes(WEIGHTS.tobytes())
    (root / "blobs" / OTHER).write_bytes(model_of().SerializeToString())
    snapshot = root / "snapshots" / COMMIT
    snapshot.mkdir(parents=True)
    os.symlink(f"../../blobs/{OTHER}", snapshot / "m.onnx")
    os.symlink(link, snapshot / "w.bin")
    return snapshot / "m.onnx"


@links
def test_a_download_cache_of_hugging_face(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = cache(folder / "repository")
    np.testing.assert_array_equal(read_weights(path), WEIGHTS)
    np.testing.assert_array_equal(onnx2nn.load(path)(torch.zeros(4)).detach(), WEIGHTS)
    for source in (path.read_bytes(), onnx.load(path, load_external_data=False)):
        with opened(source, base_dir=path.parent) as model:
            assert model.graph.initializers["w"].const_value.numpy().tolist() == WEIGHTS.tolist()
    monkeypatch.chdir(path.parent)
    np.testing.assert_array_equal(read_weights(Path("m.onnx")), WEIGHTS)
    (path.parent / "onnx").mkdir()
    os.symlink(f"../../../blobs/{DIGEST}", path.parent / "onnx" / "w.bin")
    np.testing.assert_array_equal(read_weights(write(path.parent / "onnx")), WEIGHTS)


@links
@pytest.mark.parametrize(
    ("link", "name"),
    [
        ("../../blobs/w.bin", "w.bin"),
        (f"../blobs/{DIGEST}", DIGEST),
        (f"../../../blobs/{DIGEST}", DIGEST),
        (f"../../other/{DIGEST}", DIGEST),
        ("../../blobs/../../../secret", DIGEST),
        (f"{{0}}/blobs/{DIGEST}", DIGEST),
    ],
)
def test_other_links_in_a_download_cache(folder: Path, link: str, name: str) -> None:
    refused(cache(folder / "repository", link.format(folder / "repository"), name), "link")


@links
def test_a_folder_of_blobs_that_is_a_link(folder: Path) -> None:
    path = cache(folder / "repository")
    (folder / "repository" / "blobs").rename(folder / "elsewhere")
    os.symlink(folder / "elsewhere", folder / "repository" / "blobs")
    refused(path, "link|symbolic|directory")


@links
@pytest.mark.parametrize("how", ["link", "hard link"])
def test_blobs_that_lead_elsewhere(folder: Path, how: str) -> None:
    path = cache(folder / "repository")
    blob = folder / "repository" / "blobs" / DIGEST
    blob.unlink()
    (os.symlink if how == "link" else os.link)(folder.parent / "secret", blob)
    refused(path, "link")


@links
def test_a_linked_model_reads_its_own_folder(folder: Path) -> None:
    """The model is a link of the caller's; that does not open the folder to which it leads."""
    write(folder)
    (folder.parent / "linked").mkdir()
    os.symlink("../model/m.onnx", folder.parent / "linked" / "m.onnx")
    refused(folder.parent / "linked" / "m.onnx", "does not exist")
    os.symlink("../model/w.bin", folder.parent / "linked" / "w.bin")
    refused(folder.parent / "linked" / "m.onnx", "link")


@pytest.mark.parametrize(
    ("location", "message"),
    [
        ("", "unsafe"),
        (".", "unsafe"),
        ("./", "unsafe"),
        ("w\0.bin", "unsafe"),
        ("C:w.bin", "unsafe"),
        ("sub", "directory"),
        ("missing", "does not exist"),
        ("w.bin/w.bin", "cannot open"),
        ("x" * 5000, "cannot open"),
        ("x/" * 3000 + "w.bin", "does not exist"),
        ("fifo", "regular file"),
        ("closed", "cannot open|0 bytes only"),
    ],
)
@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
def test_what_is_no_file(folder: Path, location: str, message: str) -> None:
    os.mkfifo(folder / "fifo")
    (folder / "closed").touch(mode=0)
    refused(write(folder, location=location), message)


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"offset": "-1"}, "offset"),
        ({"offset": "1e3"}, "offset"),
        ({"offset": "9" * 5000}, "offset"),
        ({"offset": "9"}, "16 bytes only"),
        ({"offset": "9223372036854775807"}, "16 bytes only"),
        ({"length": "4"}, "needs 16 bytes"),
        ({"length": "\u0664"}, "length"),
    ],
)
def test_places_in_the_file(folder: Path, entries: dict[str, str], message: str) -> None:
    refused(write(folder, **entries), message)


def test_strings_are_refused(folder: Path) -> None:
    model = model_of()
    model.graph.initializer[0].data_type = TensorProto.STRING
    with pytest.raises(ModelFileError, match="strings"):
        read(model, base_dir=folder)


SAFE_ANYWHERE = ["w.bin", "a/b/w.bin", "./w", ".hidden", "...w", "a..b", "\u0456mport", "x" * 300]
UNSAFE_ANYWHERE = ["", ".", "..", "/w", "\\w", "a/..", "a\\..\\w", "C:\\w", "c:w", "\\\\?\\C:\\w", "//h/s", "w\0"]
UNSAFE_IN_WINDOWS = [
    "nul",
    "NUL.bin",
    "a/con",
    "Aux.tar.gz",
    "COM1",
    "lpt\u00b2.x",
    "CONIN$",
    "nul .x",
    "a/w.bin:stream",
]
UNSAFE_IN_WINDOWS += ["w.", "w ", ". .", "...", "a/. ./w", "w?", "w*", "a|b", 'a"b', "a<b", "a\nb"]


@pytest.mark.parametrize("system", ["linux", "darwin", "win32"])
def test_rules_of_paths(system: str) -> None:
    for location in SAFE_ANYWHERE:
        assert location_parts(location, system)
    special = {"win32": UNSAFE_IN_WINDOWS, "darwin": ["w.bin/..namedfork/rsrc", "w/..NamedFork/data"]}
    for location in [*UNSAFE_ANYWHERE, *special.get(system, [])]:
        with pytest.raises(ModelFileError, match="unsafe"):
            location_parts(location, system)


def test_separators() -> None:
    assert location_parts("a\\b/./c", "win32") == ["a", "b", "c"]
    assert location_parts("a\\b//c", "linux") == ["a\\b", "c"]  # an exporter's file of this name


def nested() -> onnx.ModelProto:
    """Returns a model with external data in every place of a message that holds tensors."""
    model = model_of()
    weight = model.graph.initializer[0]
    constant = helper.make_node("Constant", [], ["c"], value=weight)
    branch = helper.make_graph([constant], "b", [], [helper.make_tensor_value_info("c", 1, [4])], [weight])
    model.graph.node.append(helper.make_node("If", ["k"], ["z"], then_branch=branch, else_branch=branch))
    model.graph.initializer.append(numpy_helper.from_array(np.array(True), "k"))
    model.functions.append(helper.make_function("l", "f", [], ["c"], [constant], [helper.make_opsetid("", 17)]))
    return model


def test_data_is_embedded_for_other_packages(folder: Path) -> None:
    """In every tensor of the message; the caller's own message stays as it is."""
    model = nested()
    before = model.SerializeToString()
    found = embedded(model, base_dir=folder)
    assert b"w.bin" in before
    assert b"w.bin" not in found.SerializeToString()
    assert found.SerializeToString().count(WEIGHTS.tobytes()) == before.count(b"w.bin")
    assert model.SerializeToString() == before
    assert embedded(found) is found


@links
@pytest.mark.parametrize("reads", [onnx2nn.verify, onnx2nn.verify_nodes, onnx2nn.simplify, onnx2nn.check])
def test_other_readers_of_a_file(folder: Path, reads: Callable[..., object]) -> None:
    os.symlink("w.bin", folder / "link")
    with pytest.raises(ModelFileError, match="follow_links"):
        reads(write(folder, location="link"))


def test_a_source_is_closed_with_its_model(folder: Path) -> None:
    for source in (write(folder), model_of()):
        with opened(source, base_dir=folder) as model:
            tensor = model.graph.initializers["w"].const_value
        with pytest.raises(ValueError, match="closed"):
            tensor.numpy()


def test_errors_of_the_system_are_ours(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A file that cannot be read any more, and a stream that fails."""

    def fail(*_: object) -> None:
        raise OSError(5, "Input/output error")

    class Broken:
        read = fail

    with pytest.raises(ModelFileError, match="Input/output error"):
        read(Broken())  # type: ignore[arg-type]  # a stream is whatever has `read`
    with opened(write(folder)) as model:
        (folder / "w.bin").write_bytes(b"")
        with pytest.raises(ModelFileError, match="shorter"):
            model.graph.initializers["w"].const_value.numpy()
    with monkeypatch.context() as patched:
        patched.setattr(os, "open", fail)
        refused(folder / "m.onnx", "Input/output error")


def test_threads_share_a_file(folder: Path) -> None:
    with opened(write(folder)) as model:
        tensor, found = model.graph.initializers["w"].const_value, []
        threads = [threading.Thread(target=lambda: found.append(tensor.numpy().tolist())) for _ in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert found == [WEIGHTS.tolist()] * 8
