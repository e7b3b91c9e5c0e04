"""Hooks of mkdocs, named in mkdocs.yml: generated pages, pages of the repository's root, links, and an offline check.

The pages in `docs` are also read in the repository. So their links are those of the repository, and are rewritten here.
"""

from __future__ import annotations

import posixpath
import re
import sys
from pathlib import Path
from typing import Any

from mkdocs.exceptions import PluginError
from mkdocs.structure.files import File, Files

ROOT = Path(__file__).parent.parent
sys.path.insert(0, str(ROOT / "scripts"))

from reference_pages import build_pages  # noqa: E402 - mkdocs imports this file by its path

ROOT_PAGES = (
    "ARCHITECTURE.md", "CHANGELOG.md", "CODE_OF_CONDUCT.md", "CONTRIBUTING.md", "SECURITY.md", "STYLE.md",
)  # fmt: skip
FENCE = re.compile(r"(^```.*?^```)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"(!?)\[([^\]]*)\]\(([^)\s]+)\)")
LOADED = re.compile(
    r"""<(?:script|img|iframe|source)[^>]*\ssrc=["']?(https?:)?//[^\s"'>]+"""
    r"""|<link[^>]*\shref=["']?(https?:)?//[^\s"'>]+|@import\s+["']?(https?:)?//|url\(["']?(https?:)?//[^)]+"""
)
"""Something that a browser would load from another host. Links that a reader may follow are fine."""


def on_files(files: Files, config: Any) -> Files:
    """Add the generated pages and those of the repository's root."""
    pages = {**build_pages(), **{name: (ROOT / name).read_text() for name in ROOT_PAGES}}
    for path, text in pages.items():
        files.append(File.generated(config, path, content=text))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Rewrite the links of a page. Those to files that are not part of the site become plain text."""
    path = page.file.src_uri
    parts = FENCE.split(markdown)
    parts[::2] = [LINK.sub(lambda match: rewrite_link(match, path), part) for part in parts[::2]]
    return "".join(parts)


def rewrite_link(link: re.Match[str], page: str) -> str:
    """Return a link of a page as Markdown of the site. A page of the root stands beside the pages of `docs`."""
    mark, text, target = link.groups()
    address, hash_sign, anchor = target.partition("#")
    if "://" in target or not address or page.startswith("reference/"):
        return link[0]
    folder = "" if page in ROOT_PAGES else posixpath.join("docs", posixpath.dirname(page))
    repository_path = posixpath.normpath(posixpath.join(folder, address))
    if repository_path in (*ROOT_PAGES, "README.md"):
        site_path = repository_path
    elif repository_path.startswith("docs/"):
        site_path = repository_path.removeprefix("docs/")
    else:
        return text
    relative_path = posixpath.relpath(site_path, posixpath.dirname(page) or ".")
    return f"{mark}[{text}]({relative_path}{hash_sign}{anchor})"


def on_post_build(config: Any) -> None:
    """Fail if a page would load anything from another host, or if there is no index for the search."""
    site = Path(config["site_dir"])
    loaded = {
        f"{path.relative_to(site)}: {match[0][:100]}"
        for path in site.rglob("*")
        if path.suffix in (".html", ".css")
        for match in LOADED.finditer(path.read_text())
    }
    if loaded:
        raise PluginError("Pages load from other hosts:\n" + "\n".join(sorted(loaded)))
    if not any((site / "search").glob("search_index.*")):
        raise PluginError("The site has no search index.")
