"""A server on this machine with the endpoints of Hugging Face's hub that a download uses."""

from __future__ import annotations

import contextlib
import hashlib
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import PurePosixPath
from typing import Any
from urllib.parse import unquote, urlsplit

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
        endpoint: the server's URL.
    """

    def __init__(self) -> None:
        self.files: dict[tuple[str, str, str], bytes] = {}
        self.revisions = {"main": COMMIT, "v1": OLDER}
        self.tokens: dict[str, str] = {}
        self.cut: set[str] = set()
        self.moves: dict[str, tuple[str, str]] = {}
        self.asked: list[tuple[str, str]] = []
        self.endpoint = ""

    def add(self, repository: str, path: str, content: bytes, commit: str = COMMIT) -> None:
        """Adds a file to a repository."""
        self.files[repository, commit, path] = content

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

        def log_message(self, *_: Any) -> None:
            pass

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
