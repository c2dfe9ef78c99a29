"""A server on this machine with the endpoints of Hugging Face's hub that downloads and uploads use."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path, PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

import pytest

COMMIT = "0123456789abcdef0123456789abcdef01234567"
OLDER = "89abcdef0123456789abcdef0123456789abcdef"


class Hub:
    """What the server has and was asked.

    Attributes:
        files: content by repository, commit and path.
        revisions: the commit of each branch or tag.
        tokens: by repository, the token that it needs.
        cut: paths whose download ends in the middle.
        moves: by path, the branch that leads to another commit once the file was downloaded, and that commit.
        asked: method and path of each request.
        large: content of uploaded large files by SHA-256, before a commit names it.
        endpoint: the server's URL.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.revisions = {"main": COMMIT, "v1": OLDER}
        self.tokens: dict[str, str] = {}
        self.cut: set[str] = set()
        self.moves: dict[str, tuple[str, str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.large: dict[str, bytes] = {}
        self.endpoint = ""

    def add(self, repository: str, path: str, content: bytes, commit: str = COMMIT) -> None:
        """Adds a file to a repository."""
        self.files[repository, commit, path] = content

    def names(self, repository: str) -> set[str]:
        """Returns the paths in the main branch of a repository."""
        return {path for name, commit, path in self.files if (name, commit) == (repository, self.revisions["main"])}

    def commit(self, repository: str, lines: list[dict[str, Any]]) -> None:
        """Adds the files of a commit, given as the hub's lines, to the main branch."""
        for line in lines:
            value = line["value"]
            if line["key"] == "file":
                self.add(repository, value["path"], base64.b64decode(value["content"]))
            elif line["key"] == "lfsFile":
                self.add(repository, value["path"], self.large[value["oid"]])

    def downloads(self) -> list[str]:
        """Returns the names of the files whose content was asked for."""
        return [PurePosixPath(path).name for method, path in self.asked if method == "GET" and "/resolve/" in path]


def _handler(hub: Hub) -> type[BaseHTTPRequestHandler]:
    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def do_HEAD(self) -> None:
            self._answer(with_body=False)

        def do_GET(self) -> None:
            self._answer(with_body=True)

        def do_POST(self) -> None:
            hub.asked.append((self.command, self.path))
            body = self._body()
            match [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]:
                case ["api", "repos", "create"]:
                    asked = json.loads(body)
                    self._tell({"url": f"{hub.endpoint}/{asked['organization']}/{asked['name']}"})
                case ["api", "validate-yaml"]:
                    self._tell({"errors": [], "warnings": []})
                case ["api", "models", _, _, "preupload", _]:
                    files = [file["path"] for file in json.loads(body)["files"]]
                    modes = {path: "lfs" if path.endswith(".safetensors") else "regular" for path in files}
                    told = [{"path": path, "uploadMode": modes[path], "shouldIgnore": False} for path in files]
                    self._tell({"files": told})
                case [_, _, "info", "lfs", "objects", "batch"]:
                    objects = json.loads(body)["objects"]
                    place = f"{hub.endpoint}/large/"
                    told = [{**file, "actions": {"upload": {"href": place + file["oid"]}}} for file in objects]
                    self._tell({"objects": told})
                case ["api", "models", organization, name, "commit", _]:
                    hub.commit(f"{organization}/{name}", [json.loads(line) for line in body.splitlines()])
                    url = f"{hub.endpoint}/{organization}/{name}/commit/{COMMIT}"
                    self._tell({"commitUrl": url, "commitOid": COMMIT, "success": True})
                case _:
                    self._refuse(404, "RepoNotFound")

        def do_PUT(self) -> None:
            hub.asked.append((self.command, self.path))
            content = self._body()
            hub.large[hashlib.sha256(content).hexdigest()] = content
            self._tell({})

        def log_message(self, *_: Any) -> None:
            pass

        def _body(self) -> bytes:
            if self.headers.get("Transfer-Encoding") != "chunked":
                return self.rfile.read(int(self.headers.get("Content-Length", 0)))
            parts = []
            while size := int(self.rfile.readline(), 16):
                parts.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(parts)

        def _tell(self, answer: dict[str, Any]) -> None:
            content = json.dumps(answer).encode()
            self.send_response(200)
            self.send_header("Content-Type", "application/json")
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        def _answer(self, with_body: bool) -> None:
            hub.asked.append((self.command, self.path))
            parts = [unquote(part) for part in urlsplit(self.path).path.strip("/").split("/")]
            if len(parts) < 5 or parts[2] != "resolve":
                return self._refuse(404, "EntryNotFound")
            repository, commit = "/".join(parts[:2]), hub.revisions.get(parts[3], parts[3])
            path = "/".join(parts[4:])
            if repository not in {name for name, _, _ in hub.files}:
                return self._refuse(401, "RepoNotFound")
            if hub.tokens.get(repository, "") not in self.headers.get("Authorization", ""):
                return self._refuse(401, "GatedRepo")
            if commit not in {found for name, found, _ in hub.files if name == repository}:
                return self._refuse(404, "RevisionNotFound")
            content = hub.files.get((repository, commit, path))
            if content is None:
                return self._refuse(404, "EntryNotFound")
            self.send_response(200)
            self.send_header("X-Repo-Commit", commit)
            self.send_header("ETag", f'"{hashlib.sha256(content).hexdigest()}"')
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            if with_body and path in hub.moves:
                branch, target = hub.moves[path]
                hub.revisions[branch] = target
            if with_body and path in hub.cut:
                self.wfile.write(content[: len(content) // 2])
                self.close_connection = True
            elif with_body:
                self.wfile.write(content)

        def _refuse(self, status: int, code: str) -> None:
            self.send_response(status)
            self.send_header("X-Error-Code", code)
            self.send_header("Content-Length", "0")
            self.end_headers()

    return Handler


@contextlib.contextmanager
def serving() -> Iterator[Hub]:
    """Yields a hub without files, which answers until the end."""
    hub = Hub()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _handler(hub))
    hub.endpoint = f"http://127.0.0.1:{server.server_address[1]}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()


@contextlib.contextmanager
def standing_in(monkeypatch: pytest.MonkeyPatch, cache: Path) -> Iterator[Hub]:
    """Yields a hub, with this process as if the variables of the environment that name it had been set at its start.

    Args:
        monkeypatch: of the test.
        cache: folder for what is downloaded.
    """
    constants = pytest.importorskip("huggingface_hub.constants", reason="onnx2nn[hub] brings it")
    with serving() as hub:
        template = constants.HUGGINGFACE_CO_URL_TEMPLATE.replace(constants.ENDPOINT, hub.endpoint)
        monkeypatch.setattr(constants, "HUGGINGFACE_CO_URL_TEMPLATE", template)
        monkeypatch.setattr(constants, "ENDPOINT", hub.endpoint)
        monkeypatch.setattr(constants, "HF_HUB_CACHE", str(cache))
        monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
        monkeypatch.delenv("HF_TOKEN", raising=False)
        yield hub
