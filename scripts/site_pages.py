"""Pages of the site that lie outside of docs/: the README as its home, CONTRIBUTING, SECURITY, the licence ...

mkdocs loads this file as hooks (mkdocs.yml); each page's relative links are written for its place in the site.
"""

from __future__ import annotations

import ast
import posixpath
import re
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
PAGES = {
    "README.md": "index.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "convert_models.md": "convert_models.md",
    "examples/README.md": "examples.md",
    "CHANGELOG.md": "changelog.md",
    "benchmarks/README.md": "measuring.md",
    "LICENSE": "license.md",
}
"""Files outside of docs/ → their places in the site."""

_LINK = re.compile(r"\]\((?!\w+:|#)([^)#\s]+)")


def on_files(files: Any, config: Any) -> Any:
    """Adds the pages to the site's files."""
    from mkdocs.structure.files import File

    for source, place in PAGES.items():
        text = (ROOT / source).read_text(encoding="utf-8")
        text = in_site(source, text) if source.endswith(".md") else f"# Licence\n\n```text\n{text}```\n"
        files.append(File.generated(config, place, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Rewrites the links of a document that lead out of docs/ to pages of the site."""
    source = page.file.src_uri
    return markdown if source in PAGES.values() else in_site(f"docs/{source}", markdown)


def on_post_build(config: Any) -> None:
    """Fails where the API reference leaves out a public name."""
    from mkdocs.exceptions import PluginError

    for package in ("onnx2nn", "oneflow_bridge"):
        page = (Path(config["site_dir"]) / "api" / package / "index.html").read_text(encoding="utf-8")
        shown = {name.rpartition(".")[2] for name in re.findall(rf'id="({package}\.[\w.]+)"', page)}
        if missing := _public_names(package) - shown:
            raise PluginError(f"docs/api/{package}.md leaves out {', '.join(sorted(missing))}")


def _public_names(package: str) -> set[str]:
    """Returns `__all__` of a package, which is not imported: not every environment has OneFlow."""
    for node in ast.parse((ROOT / package / "__init__.py").read_text(encoding="utf-8")).body:
        if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "__all__":
            return set(ast.literal_eval(node.value))
    raise LookupError(f"{package} has no __all__")


def in_site(source: str, text: str) -> str:
    """Returns a document's text with its links to other documents as the site has them.

    Args:
        source: the document's path from the repository's root.
        text: in Markdown.
    """
    folder = posixpath.dirname(_place(source))

    def linked(match: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), match[1]))
        return f"]({posixpath.relpath(_place(target), folder or '.')}"

    return _LINK.sub(linked, text)


def _place(path: str) -> str:
    """Returns where a file of the repository is in the site."""
    return PAGES.get(path, path.removeprefix("docs/"))
