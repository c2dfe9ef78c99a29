"""Models at URLs: Hugging Face's hub, played by a server on this machine, and the file systems of fsspec."""

from __future__ import annotations

import http.server
import os
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from hub_server import COMMIT, OLDER, Hub, serving, standing_in
from onnx import TensorProto, helper

import onnx2nn
from onnx2nn.commands.main import main
from onnx2nn.errors import LimitError, MissingDependencyError, ModelFileError
from onnx2nn.reading.reader import opened
from onnx2nn.reading.remote import is_url, local_source

WEIGHTS = np.arange(300_000, dtype=np.float32)
ROOT = Path(__file__).resolve().parents[1]


def model_bytes(*locations: str, bias: float = 0.0) -> bytes:
    """Returns a model that adds tensors of external data, one for each location, and a number to its input."""
    weights = []
    for index, location in enumerate(locations):
        weight = TensorProto(name=f"w{index}", data_type=TensorProto.FLOAT, dims=WEIGHTS.shape)
        weight.data_location = TensorProto.EXTERNAL
        weight.external_data.add(key="location", value=location)
        weights.append(weight)
    names = ["x", *(weight.name for weight in weights), "bias"]
    nodes = [
        helper.make_node("Add", [names[0] if i == 1 else f"s{i - 1}", name], [f"s{i}"])
        for i, name in enumerate(names)
        if i
    ]
    nodes[-1].output[0] = "y"
    graph = helper.make_graph(
        nodes,
        "g",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, [1])],
        [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
        [*weights, helper.make_tensor("bias", TensorProto.FLOAT, [1], [bias])],
    )
    made = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    return made.SerializeToString()


@pytest.fixture
def hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Hub]:
    """A hub with a model."""
    with standing_in(monkeypatch, tmp_path / "cache") as hub:
        hub.add("org/repo", "onnx/model.onnx", model_bytes("model.onnx_data", "more/w.bin"))
        hub.add("org/repo", "onnx/model.onnx_data", WEIGHTS.tobytes())
        hub.add("org/repo", "onnx/more/w.bin", (2 * WEIGHTS).tobytes())
        hub.add("org/repo", "small.onnx", model_bytes())
        hub.add("org/repo", "small.onnx", model_bytes(bias=7.0), commit=OLDER)
        yield hub


MODEL = "hf://org/repo/onnx/model.onnx"


def weights_of(source: str, **options: object) -> dict[str, np.ndarray]:
    with opened(source, **options) as model:  # type: ignore[arg-type]  # options of it
        return {
            name: value.const_value.numpy() for name, value in model.graph.initializers.items() if value.const_value
        }


def cut_files(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.name.endswith((".incomplete", ".tmp")) or ".tmp." in path.name]


def test_a_model_of_the_hub_comes_with_its_data_once(hub: Hub) -> None:
    module = onnx2nn.load(MODEL)
    np.testing.assert_array_equal(module(np_tensor(1.0)).detach(), 3 * WEIGHTS + 1)
    assert sorted(hub.downloads()) == ["model.onnx", "model.onnx_data", "w.bin"]
    assert onnx2nn.verify(MODEL, module).ok
    assert onnx2nn.check(MODEL).ok
    assert len(hub.downloads()) == 3


def np_tensor(*values: float):  # type: ignore[no-untyped-def]  # a tensor, of a package that is imported late
    import torch

    return torch.tensor(values)


@pytest.mark.parametrize("revision", ["v1", OLDER])
def test_a_revision(hub: Hub, revision: str) -> None:
    assert weights_of(f"hf://org/repo@{revision}/small.onnx")["bias"].tolist() == [7.0]
    assert weights_of("hf://models/org/repo/small.onnx")["bias"].tolist() == [0.0]
    hub.revisions["refs/pr/1"] = OLDER
    assert weights_of("hf://org/repo@refs%2Fpr%2F1/small.onnx")["bias"].tolist() == [7.0]
    assert weights_of("hf://org/repo@refs/pr/1/small.onnx")["bias"].tolist() == [7.0]


def test_all_files_are_those_of_one_commit(hub: Hub) -> None:
    """A branch that moves after the model's file was downloaded does not mix two versions."""
    asked = hub.files["org/repo", COMMIT, "onnx/model.onnx"]
    new = "f" * 40
    hub.add("org/repo", "onnx/model.onnx", asked, commit=new)
    hub.add("org/repo", "onnx/model.onnx_data", (9 * WEIGHTS).tobytes(), commit=new)
    hub.moves["onnx/model.onnx"] = ("main", new)
    assert weights_of(MODEL)["w0"].tolist() == WEIGHTS.tolist()
    assert hub.revisions["main"] == new


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("hf://org/none/m.onnx", "no model org/none, or it is private"),
        ("hf://org/repo@v9/small.onnx", "no revision v9"),
        ("hf://org/repo/none.onnx", "no file none.onnx"),
        ("hf://org/private/m.onnx", "access to this repository must be granted"),
        ("hf://org/repo", "names no file"),
        ("hf://org/re..po--x/m.onnx", "hf://org/re..po--x/m.onnx: "),
        ("hf://org/repo/../../x.onnx", "hf://org/repo/../../x.onnx: "),
    ],
)
def test_what_the_hub_does_not_have(hub: Hub, url: str, words: str, capsys: pytest.CaptureFixture[str]) -> None:
    hub.add("org/private", "m.onnx", model_bytes())
    hub.tokens["org/private"] = "Bearer hf_secret"
    with pytest.raises(ModelFileError, match=r"^hf://org/") as error:
        onnx2nn.load(url)
    assert words in str(error.value) and url in str(error.value)
    for command in ("check", "verify"):
        assert main([command, url]) == 2
        shown = capsys.readouterr().err
        assert shown.count("\n") == 1 and words.split("\n")[0][:20] in shown and "Traceback" not in shown


def test_the_token_of_the_environment(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add("org/private", "m.onnx", model_bytes(bias=3.0))
    hub.tokens["org/private"] = "Bearer hf_secret"
    monkeypatch.setenv("HF_TOKEN", "hf_wrong")
    with pytest.raises(ModelFileError, match="HF_TOKEN") as error:
        weights_of("hf://org/private/m.onnx")
    assert "hf_wrong" not in str(error.value)
    monkeypatch.setenv("HF_TOKEN", "hf_secret")
    assert weights_of("hf://org/private/m.onnx")["bias"].tolist() == [3.0]


def test_offline_from_the_cache(hub: Hub, monkeypatch: pytest.MonkeyPatch) -> None:
    before = weights_of(MODEL)
    hub.asked.clear()
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_OFFLINE", True)
    assert weights_of(MODEL)["w1"].tolist() == before["w1"].tolist()
    with pytest.raises(ModelFileError, match=r"small\.onnx is not in the cache, and HF_HUB_OFFLINE is set"):
        weights_of("hf://org/repo/small.onnx")
    assert hub.downloads() == []


@pytest.mark.parametrize("name", ["model.onnx", "model.onnx_data"])
def test_a_download_that_is_cut(hub: Hub, tmp_path: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.sleep", lambda seconds: None)  # huggingface_hub resumes five times, after a second each
    hub.cut.add(f"onnx/{name}")
    with pytest.raises(ModelFileError, match=rf"^{MODEL}: .*{name} could not be downloaded.*Try again") as error:
        weights_of(MODEL)
    assert "\n" not in str(error.value)
    assert [path for path in tmp_path.rglob(name) if path.exists()] == []
    assert cut_files(tmp_path) == []
    hub.cut.clear()
    assert weights_of(MODEL)["w0"].tolist() == WEIGHTS.tolist()


UNSAFE = ["../secret.bin", "/etc/passwd", "more/../../secret.bin", "..", "C:/secret"]


@pytest.mark.parametrize("location", UNSAFE)
def test_no_data_are_fetched_where_a_name_is_unsafe(hub: Hub, location: str) -> None:
    hub.add("org/repo", "onnx/bad.onnx", model_bytes("model.onnx_data", location))
    hub.add("org/repo", "secret.bin", WEIGHTS.tobytes())
    with pytest.raises(ModelFileError, match="refused as unsafe"):
        onnx2nn.load("hf://org/repo/onnx/bad.onnx")
    assert hub.downloads() == ["bad.onnx"]


def test_all_files_together_are_bounded(hub: Hub, capsys: pytest.CaptureFixture[str]) -> None:
    """The limit holds for what is announced, before any of the data is fetched."""
    most = 2 * WEIGHTS.nbytes - 1
    with pytest.raises(LimitError, match=r"Limits\.download_bytes"):
        onnx2nn.load(MODEL, limits=onnx2nn.Limits(download_bytes=most))
    assert hub.downloads() == ["model.onnx"]
    assert main(["check", MODEL, "--limit", f"download_bytes={most}"]) == 2
    assert "download_bytes" in capsys.readouterr().err
    with pytest.raises(LimitError, match=r"Limits\.download_bytes"):
        onnx2nn.load("hf://org/repo/small.onnx", limits=onnx2nn.Limits(download_bytes=10))
    onnx2nn.check(MODEL, limits=onnx2nn.Limits(download_bytes=2 * WEIGHTS.nbytes + 1000))


def test_a_command_of_its_own_process(hub: Hub, tmp_path: Path) -> None:
    """The variables of the environment, as a user sets them; nothing of a bar where stderr is a pipe."""
    environment = {
        **os.environ,
        "HF_ENDPOINT": hub.endpoint,
        "HF_HOME": str(tmp_path / "home"),
        "PYTHONPATH": str(ROOT),
    }
    command = [sys.executable, "-m", "onnx2nn", "check", MODEL]

    def run(**more: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(command, env=environment | more, capture_output=True, text=True, timeout=300)

    first = run()
    assert (first.returncode, first.stderr) == (0, ""), first.stdout
    again = run(HF_HUB_OFFLINE="1", HF_ENDPOINT="http://127.0.0.1:9")
    assert (again.returncode, again.stdout, again.stderr) == (0, first.stdout, "")


def test_what_is_no_model_is_told_with_its_url(hub: Hub) -> None:
    hub.add("org/repo", "page.onnx", b"<html>")
    with pytest.raises(ModelFileError, match=r"^hf://org/repo/page\.onnx: This is HTML"):
        onnx2nn.load("hf://org/repo/page.onnx")


def test_a_text_format(hub: Hub) -> None:
    from google.protobuf import text_format

    hub.add(
        "org/repo", "m.textproto", text_format.MessageToString(onnx.ModelProto.FromString(model_bytes("w"))).encode()
    )
    hub.add("org/repo", "w", WEIGHTS.tobytes())
    assert weights_of("hf://org/repo/m.textproto")["w0"].tolist() == WEIGHTS.tolist()
    with pytest.raises(LimitError, match="text_bytes"):
        onnx2nn.load("hf://org/repo/m.textproto", limits=onnx2nn.Limits(text_bytes=10))


def test_a_folder_of_the_callers_holds_the_data(hub: Hub, tmp_path: Path) -> None:
    (tmp_path / "own" / "more").mkdir(parents=True)
    (tmp_path / "own" / "model.onnx_data").write_bytes((5 * WEIGHTS).tobytes())
    (tmp_path / "own" / "more" / "w.bin").write_bytes(WEIGHTS.tobytes())
    assert weights_of(MODEL, base_dir=tmp_path / "own")["w0"].tolist() == (5 * WEIGHTS).tolist()
    assert hub.downloads() == ["model.onnx"]


@pytest.mark.skipif(sys.platform == "win32", reason="making links needs a privilege of Windows")
def test_blobs_that_repositories_share(hub: Hub, tmp_path: Path) -> None:
    """What huggingface_hub does with files in chunks (Xet): the blob is a link to the cache's own store."""
    path = Path(local_source(MODEL, onnx2nn_account()))
    data = path.parent / "model.onnx_data"
    blob = Path(os.path.realpath(data.parent)) / os.readlink(data)
    blob = Path(os.path.normpath(blob))
    digest = "ab" * 32
    shared = tmp_path / "cache" / "blobs" / "ab" / digest
    shared.parent.mkdir(parents=True)
    blob.rename(shared)
    blob.symlink_to(f"../../blobs/ab/{digest}")
    assert weights_of(str(path))["w0"].tolist() == WEIGHTS.tolist()
    secret = tmp_path / "secret"
    secret.write_bytes(WEIGHTS.tobytes())
    for wrong in (f"../../blobs/cd/{digest}", "../../../secret", str(shared), f"../blobs/ab/{digest}"):
        blob.unlink()
        blob.symlink_to(wrong)
        with pytest.raises(ModelFileError, match="link"):
            weights_of(str(path))
    blob.unlink()
    blob.symlink_to(f"../../blobs/ab/{digest}")
    shared.unlink()
    shared.symlink_to(secret)
    with pytest.raises(ModelFileError, match="link"):
        weights_of(str(path))


def onnx2nn_account():  # type: ignore[no-untyped-def]
    from onnx2nn.ground.limits import Account

    return Account()


@pytest.fixture
def own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "copies"))
    return tmp_path / "copies"


@pytest.fixture
def memory(own_cache: Path) -> Iterator[dict[str, bytes]]:
    """The files of fsspec's `memory://`, with a model in `/zoo`."""
    fsspec = pytest.importorskip("fsspec", reason="onnx2nn[fsspec] brings it")
    system = fsspec.filesystem("memory")
    system.pipe("/zoo/m.onnx", model_bytes("w.bin", "deep/er/v.bin"))
    system.pipe("/zoo/w.bin", WEIGHTS.tobytes())
    system.pipe("/zoo/deep/er/v.bin", (3 * WEIGHTS).tobytes())
    yield system
    system.rm("/zoo", recursive=True)


def test_a_file_system_of_fsspec(memory, own_cache: Path) -> None:  # type: ignore[no-untyped-def]
    found = weights_of("memory://zoo/m.onnx")
    assert found["w0"].tolist() == WEIGHTS.tolist() and found["w1"].tolist() == (3 * WEIGHTS).tolist()
    copies = {path: path.stat().st_ino for path in own_cache.rglob("*.bin")}
    assert len(copies) == 2
    weights_of("memory://zoo/m.onnx")
    assert {path: path.stat().st_ino for path in own_cache.rglob("*.bin")} == copies
    memory.pipe("/zoo/w.bin", (4 * WEIGHTS).tobytes())  # another time of its making, of the same size
    assert weights_of("memory://zoo/m.onnx")["w0"].tolist() == (4 * WEIGHTS).tolist()
    module = onnx2nn.load("memory://zoo/m.onnx")
    assert onnx2nn.verify("memory://zoo/m.onnx", module).ok


@pytest.mark.parametrize("location", UNSAFE)
def test_unsafe_names_in_a_file_system(memory, own_cache: Path, location: str) -> None:  # type: ignore[no-untyped-def]
    memory.pipe("/zoo/bad.onnx", model_bytes("w.bin", location))
    with pytest.raises(ModelFileError, match=r"^memory://zoo/bad\.onnx: .*refused as unsafe"):
        onnx2nn.load("memory://zoo/bad.onnx")
    assert list(own_cache.rglob("*.bin")) == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("memory://zoo/none.onnx", "there is no none.onnx"),
        ("memory://zoo/deep", "is a folder"),
        ("memory://zoo/", "names no file"),
        ("nosuch://zoo/m.onnx", "nosuch"),
    ],
)
def test_what_a_file_system_does_not_have(memory, url: str, words: str) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(ModelFileError) as error:
        onnx2nn.load(url)
    assert words in str(error.value) and url in str(error.value)


def test_a_scheme_whose_package_is_missing(own_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("fsspec", reason="onnx2nn[fsspec] brings it")
    monkeypatch.setitem(sys.modules, "s3fs", None)
    with pytest.raises(MissingDependencyError, match=r"s3://.*s3fs"):
        onnx2nn.load("s3://bucket/m.onnx")


@pytest.mark.parametrize(
    ("package", "url", "extra"), [("huggingface_hub", MODEL, "hub"), ("fsspec", "s3://b/m.onnx", "fsspec")]
)
def test_a_missing_package_is_named(package: str, url: str, extra: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    with pytest.raises(MissingDependencyError, match=rf"onnx2nn\[{extra}\]"):
        onnx2nn.load(url)


def test_files_without_a_size_are_counted_as_they_come(
    memory, monkeypatch: pytest.MonkeyPatch, own_cache: Path
) -> None:  # type: ignore[no-untyped-def]
    info = type(memory).info
    monkeypatch.setattr(type(memory), "info", lambda self, path, **more: {**info(self, path, **more), "size": None})
    assert weights_of("memory://zoo/m.onnx")["w0"].tolist() == WEIGHTS.tolist()
    memory.pipe("/zoo/w.bin", (4 * WEIGHTS).tobytes())
    with pytest.raises(LimitError, match=r"Limits\.download_bytes"):
        onnx2nn.load("memory://zoo/m.onnx", limits=onnx2nn.Limits(download_bytes=WEIGHTS.nbytes // 2))
    assert cut_files(own_cache) == []


def test_a_file_that_breaks_off(memory, monkeypatch: pytest.MonkeyPatch, own_cache: Path) -> None:  # type: ignore[no-untyped-def]
    """A server that announces more than comes, or that fails in the middle."""
    open_ = type(memory)._open

    def broken(self, path, *args, **options):  # type: ignore[no-untyped-def]
        file = open_(self, path, *args, **options)
        if path.endswith("w.bin"):
            file.seek(1000)
        return file

    monkeypatch.setattr(type(memory), "_open", broken)
    with pytest.raises(ModelFileError, match=r"w\.bin came with 1199000 of the 1200000 bytes.*Try again"):
        onnx2nn.load("memory://zoo/m.onnx")
    assert list(own_cache.rglob("w.bin")) == cut_files(own_cache) == []
    monkeypatch.undo()
    os.environ["ONNX2NN_CACHE"] = str(own_cache)
    assert weights_of("memory://zoo/m.onnx")["w0"].tolist() == WEIGHTS.tolist()


def test_the_web(own_cache: Path) -> None:
    """Names of data files are quoted, so that `%2e%2e` in them is a name on the server too."""
    pytest.importorskip("aiohttp", reason="onnx2nn[fsspec] brings it")
    with serving() as hub:
        hub.add("a/b", "m.onnx", model_bytes("w x.bin", "%2e%2e/v#1.bin"))
        hub.add("a/b", "w x.bin", WEIGHTS.tobytes())
        hub.add("a/b", "%2e%2e/v#1.bin", WEIGHTS.tobytes())
        url = f"{hub.endpoint}/a/b/resolve/main/m.onnx"
        assert weights_of(f"{url}?signature=secret")["w1"].tolist() == WEIGHTS.tolist()
        got = len(hub.downloads())
        assert weights_of(f"{url}?signature=secret")["w1"].tolist() == WEIGHTS.tolist()
        assert len(hub.downloads()) == got  # the entity tags are the same
        hub.cut.add("w x.bin")
        with pytest.raises(ModelFileError, match=r"w x\.bin.*Try again") as error:
            weights_of(f"{url}?signature=other-secret")
        assert "secret" not in str(error.value) and cut_files(own_cache) == []
        hub.cut.clear()
        assert weights_of(f"{url}?signature=other-secret")["w0"].tolist() == WEIGHTS.tolist()
        with pytest.raises(ModelFileError, match=r"none\.onnx"):
            weights_of(f"{hub.endpoint}/a/b/resolve/main/none.onnx")


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        ("hf://a/b/c.onnx", True),
        ("https://x/m.onnx", True),
        ("zip://m.onnx::https://x/y.zip", True),
        ("m.onnx", False),
        ("C:\\models\\m.onnx", False),
        ("C://models/m.onnx", False),
        ("folder://m.onnx"[6:], False),
        (Path("hf://a/b/c.onnx"), False),
        (b"hf://a/b/c.onnx", False),
    ],
)
def test_what_is_a_url(source: object, expected: bool) -> None:
    assert is_url(source) is expected


class Refusing(http.server.BaseHTTPRequestHandler):
    """Answers with the status that the path begins with."""

    def do_GET(self) -> None:
        self.send_error(int(self.path[1:4]))

    do_HEAD = do_GET

    def log_message(self, format: str, *args: Any) -> None:
        """Keeps the output of the tests free of requests."""


@pytest.mark.parametrize(
    ("status", "said"),
    [
        (404, r"there is no 404\.onnx\. Check the URL"),
        (403, r"403\.onnx cannot be found: 403 Forbidden$"),
        (500, r"500\.onnx cannot be found: 500 Internal Server Error$"),
    ],
)
def test_what_a_server_refuses_is_said(status: int, said: str) -> None:
    pytest.importorskip("aiohttp")
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Refusing) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            with pytest.raises(ModelFileError, match=said):
                onnx2nn.load(f"http://127.0.0.1:{server.server_port}/{status}.onnx?signature=secret")
        finally:
            server.shutdown()
            thread.join()


def test_a_server_that_does_not_answer_is_no_missing_file() -> None:
    pytest.importorskip("aiohttp")
    with socket.socket() as unheard:  # bound, so that nothing else listens there
        unheard.bind(("127.0.0.1", 0))
        with pytest.raises(ModelFileError, match=r"m\.onnx cannot be found: ClientConnectorError"):
            onnx2nn.load(f"http://127.0.0.1:{unheard.getsockname()[1]}/m.onnx")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="the system has no FIFOs")
@pytest.mark.parametrize(
    "url", ["file://{}/m.onnx", "local://{}/m.onnx", "dir://m.onnx::file://{}", "simplecache::file://{}/m.onnx"]
)
@pytest.mark.parametrize("kind", ["link", "folder", "hard", "fifo"])
def test_links_beside_a_model_of_this_machine(
    url: str, kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A file system of fsspec follows links, which lead out of the model's folder."""
    pytest.importorskip("fsspec")
    monkeypatch.setenv("ONNX2NN_CACHE", str(tmp_path / "cache"))
    outside, folder = tmp_path / "outside", tmp_path / "model"
    outside.mkdir()
    folder.mkdir()
    (outside / "w.bin").write_bytes(WEIGHTS.tobytes())
    location = "w.bin"
    if kind == "link":
        (folder / "w.bin").symlink_to(outside / "w.bin")
    elif kind == "folder":
        (folder / "inside").symlink_to(outside)
        location = "inside/w.bin"
    elif kind == "hard":
        os.link(outside / "w.bin", folder / "w.bin")
    else:
        os.mkfifo(folder / "w.bin")
    (folder / "m.onnx").write_bytes(model_bytes(location))
    with pytest.raises(ModelFileError, match=r"link|regular file"):
        onnx2nn.load(url.format(folder))
    (folder / "own.bin").write_bytes(WEIGHTS.tobytes())
    (folder / "own.onnx").write_bytes(model_bytes("own.bin"))
    np.testing.assert_array_equal(
        onnx2nn.load(url.format(folder).replace("m.onnx", "own.onnx"))(np_tensor(1.0)).detach(), WEIGHTS + 1
    )
