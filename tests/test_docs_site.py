"""The documentation site: its navigation has every page, and its generated reference has everything that exists."""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml

import mulligan
from mulligan.cli import COMMANDS
from mulligan.core.events import EVENTS
from mulligan.server.routes import api_document
from mulligan.settings import SETTING_NAMES, TABLE_NAMES

ROOT = Path(__file__).parents[1]
CONFIGURATION = yaml.safe_load((ROOT / "mkdocs.yml").read_text())


def load_script(name: str) -> ModuleType:
    sys.path.insert(0, str(ROOT / "scripts"))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(ROOT / "scripts"))


@cache
def build_pages() -> dict[str, str]:
    pages: dict[str, str] = load_script("reference_pages").build_pages()
    return pages


def reference(name: str) -> str:
    return build_pages()[f"reference/{name}.md"]


def pages_of(entry: Any) -> Iterator[str]:
    if isinstance(entry, str):
        yield entry
    else:
        for child in entry.values() if isinstance(entry, dict) else entry:
            yield from pages_of(child)


def test_navigation_has_every_page_once() -> None:
    listed = list(pages_of(CONFIGURATION["nav"]))
    pages = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs").rglob("*.md")}
    pages |= set(build_pages())
    pages |= {path.name for path in ROOT.glob("*.md")}  # README.md is the one of docs
    assert len(listed) == len(set(listed))
    assert set(listed) == pages


def test_python_reference_has_every_public_name_with_its_docstring() -> None:
    assert set(re.findall(r"^### mulligan\.(\w+)$", reference("python"), re.MULTILINE)) == set(mulligan.__all__)
    assert 'effects: Effects = "once"' in reference("python")


def test_command_reference_has_every_command() -> None:
    headings = re.findall(r"^### mulligan ([\w-]+)$", reference("commands"), re.MULTILINE)
    assert headings == list(COMMANDS)
    assert "#### mulligan fixes approve" in reference("commands")


def test_settings_reference_has_every_setting_and_says_what_it_means() -> None:
    rows = re.findall(r"^\| `(\w+)` \|.*\| ([^|]*) \|$", reference("settings"), re.MULTILINE)
    assert {name for name, _ in rows} == {*SETTING_NAMES, *TABLE_NAMES}
    assert [name for name, meaning in rows if not meaning] == []


def test_event_reference_has_every_event() -> None:
    headings = set(re.findall(r"^### (\S+)$", reference("events"), re.MULTILINE))
    assert set(EVENTS) <= headings
    assert {"Run", "Step", "Failure"} <= headings


def test_metric_reference_has_the_metrics_of_prometheus_and_opentelemetry() -> None:
    names = set(re.findall(r"^\| `([\w.]+)` \|", reference("metrics"), re.MULTILINE))
    source = (ROOT / "src" / "mulligan" / "otel.py").read_text()
    assert len([name for name in names if "." in name]) == len(re.findall(r"\.create_\w+\(", source))
    assert {"mulligan_runs_total", "mulligan_attempt_seconds", "mulligan_unrecognized_spans_total"} <= names


def test_http_reference_has_every_endpoint() -> None:
    headings = set(re.findall(r"^### (\w+ /\S*)$", reference("http"), re.MULTILINE))
    assert headings == {
        f"{method.upper()} {path}" for path, methods in api_document()["paths"].items() for method in methods
    }


@pytest.mark.parametrize(
    ("page", "link", "expected"),
    [
        ("report.md", "[it](../README.md)", "[it](README.md)"),
        ("frameworks/agno.md", "[it](../frameworks.md#a)", "[it](../frameworks.md#a)"),
        ("ARCHITECTURE.md", "[it](docs/settings.md)", "[it](settings.md)"),
        ("CONTRIBUTING.md", "[it](ARCHITECTURE.md)", "[it](ARCHITECTURE.md)"),
        ("start.md", "[it](../examples/)", "it"),
        ("start.md", "![it](diagrams/run.svg)", "![it](diagrams/run.svg)"),
        ("start.md", "[it](https://example.com/a)", "[it](https://example.com/a)"),
        ("start.md", "[it](#python)", "[it](#python)"),
    ],
)
def test_links_of_the_repository_become_links_of_the_site(page: str, link: str, expected: str) -> None:
    pytest.importorskip("mkdocs")
    site = load_script("docs_site")
    assert site.LINK.sub(lambda match: site.rewrite_link(match, page), link) == expected


@pytest.mark.parametrize(
    ("text", "is_loaded"),
    [
        ('<script src="https://unpkg.com/a.js">', True),
        ('<link rel="stylesheet" href="//fonts.example/a.css">', True),
        ("src: url(https://example.com/a.woff)", True),
        ('<a href="https://example.com">', False),
        ('<script src="assets/a.js">', False),
    ],
)
def test_the_build_sees_what_a_page_would_load_from_another_host(text: str, is_loaded: bool) -> None:
    pytest.importorskip("mkdocs")
    assert bool(load_script("docs_site").LOADED.search(text)) is is_loaded
