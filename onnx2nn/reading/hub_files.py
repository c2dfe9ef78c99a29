"""Files of a repository on Hugging Face's hub, in the cache of huggingface_hub: `hf://org/repo@revision/path`.

The package's own environment variables hold: `HF_TOKEN`, `HF_ENDPOINT`, `HF_HOME`, `HF_HUB_OFFLINE` and others.
"""

from __future__ import annotations

import importlib
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

from onnx2nn.errors import ModelFileError, first_line
from onnx2nn.ground.extras import require

_HUB = re.compile(
    r"hf://(?:(?P<kind>model|dataset|space)s/)?(?P<repository>[^/@]+/[^/@]+)"
    r"(?:@(?P<revision>refs/(?:pr|convert)/[^/]+|[^/]+))?/(?P<path>.+)"
)


class HubFiles:
    """A model's file in a repository, and the files beside it.

    All files are those of one commit: the one to which the revision leads when the first file is downloaded.

    Args:
        url: of the model's file; `datasets/` or `spaces/` before the organisation name another kind of repository, and
            `%2F` is a `/` in the revision.

    Raises:
        MissingDependencyError: huggingface_hub is not installed.
        ModelFileError: it is no such URL.
    """

    def __init__(self, url: str):
        self._hub = require("huggingface_hub", extra="hub", purpose="Reading from Hugging Face's hub")
        self._errors, self._constants = (
            importlib.import_module(f"huggingface_hub.{name}") for name in ("errors", "constants")
        )
        found = _HUB.fullmatch(url)
        if found is None:
            raise ModelFileError(
                f"{url} names no file of a repository. Write hf://ORGANISATION/REPOSITORY/PATH.onnx, and @REVISION "
                "after the repository for another revision than main."
            )
        self.shown, self.name = url, found["path"]
        self._repository, self._kind = found["repository"], found["kind"] or "model"
        self._revision = None if found["revision"] is None else unquote(found["revision"])
        self._commit: str | None = None

    def size(self, name: str) -> int | None:
        """Returns the number of bytes of a file.

        Raises:
            ModelFileError: there is no such file, or the hub does not answer.
        """
        return int(self._download(name, dry_run=True).file_size)

    def fetch(self, name: str, count: Callable[[int], None]) -> str:
        """Returns the path of a file in the snapshot of its commit; huggingface_hub holds a download to its size.

        Raises:
            ModelFileError: it cannot be fetched.
        """
        path = str(self._download(name, dry_run=False))
        # The first download has the revision's name, under which the cache finds the commit again when it is offline.
        self._commit = Path(path).parents[name.count("/")].name
        return path

    def _download(self, name: str, *, dry_run: bool) -> Any:
        revision = self._commit or self._revision
        try:
            return self._hub.hf_hub_download(
                self._repository,
                name,
                repo_type=self._kind,
                revision=revision,
                library_name="onnx2nn",
                dry_run=dry_run,
            )
        except Exception as error:  # errors of the hub, of its client and of the system share no base class
            raise ModelFileError(f"{self.shown}: {self._reason(error, name)}") from error

    def _reason(self, error: Exception, name: str) -> str:
        """Returns what happened, and what to do."""
        errors = self._errors
        if isinstance(error, errors.GatedRepoError):
            return "access to this repository must be granted. Ask for it on its page, and set HF_TOKEN."
        if isinstance(error, errors.RepositoryNotFoundError):
            return (
                f"there is no {self._kind} {self._repository}, or it is private. Check the name; for a private one set "
                "HF_TOKEN, or log in with `hf auth login`."
            )
        if isinstance(error, errors.RevisionNotFoundError):
            return f"the repository has no revision {self._revision or 'main'}. Give a branch, a tag or a commit."
        if isinstance(error, errors.LocalEntryNotFoundError):
            if self._constants.HF_HUB_OFFLINE:
                return f"{name} is not in the cache, and HF_HUB_OFFLINE is set. Unset it, or fetch the file before."
            return f"the hub cannot be reached, and {name} is not in the cache. Check the connection."
        if isinstance(error, errors.EntryNotFoundError):
            return f"the repository has no file {name}."
        if isinstance(error, errors.HfHubHTTPError) and error.response is not None:
            status = error.response.status_code
            token = " Check HF_TOKEN." if status in (401, 403) else ""
            return f"the hub answers {name} with status {status}: {first_line(error)}.{token}"
        if isinstance(error, (ValueError, errors.HFValidationError)):
            return f"{first_line(error)}"
        return f"{name} could not be downloaded: {type(error).__name__}: {first_line(error)}. Try again."
