"""The documentation is true: its code runs, and every name, event, setting, command and kind is in it."""

from __future__ import annotations

import inspect
import os
import re
import subprocess
import sys
import typing
from pathlib import Path

import msgspec
import pytest

import mulligan
from mulligan.api import Mulligan
from mulligan.cli import COMMANDS, SECTIONS
from mulligan.core import records
from mulligan.core.events import EVENTS
from mulligan.core.failure import Failure
from mulligan.core.kinds import KINDS
from mulligan.recover.policy import Policy
from mulligan.settings import SETTING_NAMES, TABLE_NAMES

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").rglob("*.md"))]
BLOCK = re.compile(r"^```python\n(.*?)^```", re.MULTILINE | re.DOTALL)


NAMED = re.compile(r"# (\w+\.py)\n")
"""The first line of a block that is a file. The files of a page are one program."""
NOTEBOOK = ROOT / "docs" / "notebooks.md"
FRAMEWORKS = ROOT / "docs" / "frameworks"
"""Pages whose code needs a framework: tests/frameworks runs it."""


def blocks() -> list[tuple[str, str]]:
    return [
        (f"{page.relative_to(ROOT)}:{page.read_text()[: found.start()].count(chr(10)) + 1}", found[1])
        for page in PAGES
        for found in BLOCK.finditer(page.read_text())
        if page != NOTEBOOK and page.parent != FRAMEWORKS and not NAMED.match(found[1])
    ]


def files_of(page: Path) -> dict[str, str]:
    return {named[1]: code for code in BLOCK.findall(page.read_text()) if (named := NAMED.match(code))}


PROGRAMS = [path for path in PAGES if files_of(path)]


def run(program: list[str], home: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, *program],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.mark.slow
@pytest.mark.parametrize(("place", "code"), blocks(), ids=[place for place, _ in blocks()])
def test_the_code_in_our_pages_runs(place, code, tmp_path):
    done = run(["-c", code], tmp_path)
    assert done.returncode == 0, f"{place}: {done.stderr}"
    assert done.stderr == ""


@pytest.mark.slow
@pytest.mark.parametrize("page", PROGRAMS, ids=[path.stem for path in PROGRAMS])
def test_the_files_in_our_pages_run_and_their_tests_pass(page, tmp_path):
    files = files_of(page)
    for name, code in files.items():
        (tmp_path / name).write_text(code)
    for name in (name for name, code in files.items() if "__main__" in code):
        done = run([name], tmp_path)
        assert (done.returncode, done.stderr) == (0, ""), f"{name}: {done.stderr}"
        assert done.stdout
    test_count = sum(len(re.findall(r"^def test_", code, re.MULTILINE)) for code in files.values())
    if test_count:
        options = ["-m", "pytest", "-q", "-p", "no:cacheprovider", "-p", "no:asyncio", "-W", "error"]
        done = run([*options, "--mulligan-update-baselines"], tmp_path)
        assert f"{test_count} passed" in done.stdout, done.stdout + done.stderr
        assert f"{test_count} passed" in run(options, tmp_path).stdout


@pytest.mark.slow
def test_the_cells_of_our_notebook_run_in_ipython(tmp_path):
    program = """
import sys, msgspec
from IPython.core.interactiveshell import InteractiveShell

shell = InteractiveShell.instance()
for cell in msgspec.json.decode(sys.argv[1]):
    result = shell.run_cell(cell, store_history=True)
    result.raise_error()
    print("Out:", result.result)
"""
    cells = msgspec.json.encode(BLOCK.findall(NOTEBOOK.read_text())).decode()
    done = run(["-c", program, cells], tmp_path)
    assert (done.returncode, done.stderr) == (0, ""), done.stdout + done.stderr
    assert "Out: ('recovered', 10)" in done.stdout
    assert "Out: page 1" in done.stdout
    assert "fetch (tool), " in done.stdout


def page(name: str) -> str:
    return (ROOT / "docs" / f"{name}.md").read_text()


def first_column(text: str) -> set[str]:
    """What stands in backquotes in the first cell of a table's rows."""
    rows = re.findall(r"^\| ([^|]*)\|", text, re.MULTILINE)
    return {name for row in rows for name in re.findall(r"`([^`]+)`", row)}


def test_every_public_name_is_documented():
    text = "\n".join(each.read_text() for each in PAGES)
    missing = [name for name in mulligan.__all__ if not re.search(rf"\b{name}\b", text)]
    assert missing == []


def test_the_plan_of_the_house_names_the_public_names():
    plan = (ROOT / "ARCHITECTURE.md").read_text()
    table = plan.partition("## Public names")[2].partition("**Wrap a tool.**")[0]
    assert set(mulligan.__all__) <= set(re.findall(r"`(\w+)`", table))


def test_every_setting_is_documented_and_every_documented_one_exists():
    assert first_column(page("settings")) == {*SETTING_NAMES, *TABLE_NAMES}


def test_every_event_is_documented_and_every_documented_one_exists():
    assert {name for name in first_column(page("report")) if "." in name} == set(EVENTS)


def test_every_command_is_documented_and_every_documented_one_exists():
    listed = page("serve").split("```")[1]
    assert re.findall(r"^mulligan (\w+) ", listed, re.MULTILINE) == list(COMMANDS), "in the order of the help"
    assert re.findall(r"^(.+):$", listed, re.MULTILINE) == list(SECTIONS)


def test_every_kind_is_documented_and_every_documented_one_exists():
    assert {name for name in first_column(page("kinds")) if "/" in name} == set(KINDS)


def test_every_field_of_the_policy_is_documented():
    assert set(Policy.__struct_fields__) <= first_column(page("recover"))


def test_every_option_of_a_tool_is_documented():
    options = set(inspect.signature(typing.get_overloads(Mulligan.tool)[-1]).parameters) - {"self"}
    assert options <= first_column(page("capture"))


@pytest.mark.parametrize(
    "record",
    [records.Run, records.Step, Failure, records.Recovery, records.Change, records.Link],
    ids=lambda record: record.__name__,
)
def test_the_fields_of_a_record_are_documented_in_order(record):
    row = re.search(rf"^\| `{record.__name__}` \| ([^|]+) \|", page("remember"), re.MULTILINE)
    assert row is not None
    assert tuple(row[1].split()) == record.__struct_encode_fields__


def test_every_command_has_a_help_that_says_what_it_does_and_shows_examples():
    from click.testing import CliRunner

    from mulligan.cli import cli

    for name in COMMANDS:
        said = CliRunner().invoke(cli, [name, "--help"])
        assert said.exit_code == 0
        assert "Examples:" in said.output, name
        assert f"mulligan {name}" in said.output, name


def test_links_between_our_pages_lead_somewhere():
    for source in (*PAGES, *ROOT.glob("*.md")):
        for link in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", source.read_text()):
            if "://" not in link:
                assert (source.parent / link).exists(), f"{source.name} links to {link}"


def test_the_index_leads_to_every_page():
    index = (ROOT / "docs" / "README.md").read_text()
    pages = {path.name for path in (ROOT / "docs").glob("*.md")} - {"README.md"}
    assert pages == {link for link in re.findall(r"\]\(([^)]+)\)", index) if "/" not in link}


def test_the_page_of_frameworks_leads_to_each_of_them():
    text = (ROOT / "docs" / "frameworks.md").read_text()
    pages = {f"frameworks/{path.name}" for path in FRAMEWORKS.glob("*.md")}
    assert pages == set(re.findall(r"\]\((frameworks/[^)]+)\)", text))


@pytest.mark.parametrize("page", sorted(FRAMEWORKS.glob("*.md")), ids=lambda path: path.stem)
def test_each_page_of_a_framework_starts_and_ends_alike(page):
    start, *_ = page.read_text().split("\n## ")
    title, install, *_ = start.split("\n\n")
    assert title.startswith("# ")
    assert re.match(r"In a checkout of mulligan, `pip install '?\.[\[ ]", install)
    assert "```python" in start
    assert "`mulligan runs` lists the runs, and `mulligan show` has each call of the last one." in start
    assert re.search(r"^Tested with \S+ [0-9.]+", page.read_text().splitlines()[-1])


def test_architecture_is_short_and_names_every_package_and_only_existing_files():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    assert len(text.splitlines()) <= 200
    source = ROOT / "src" / "mulligan"
    packages = [path.parent.name for path in source.rglob("__init__.py") if path.parent != source]
    assert [name for name in packages if not re.search(rf"(?<!\w){name}/", text)] == []
    # A path starts at the package, at the tests or, as a bare name, anywhere in the package.
    files = {path.relative_to(source).as_posix() for path in source.rglob("*.py")}
    files |= {path.rpartition("/")[2] for path in files}
    named = set(re.findall(r"[\w/]+\.py\b", text))
    assert [name for name in named if name not in files and not (ROOT / name).exists()] == []
