"""Every folder of examples has a README, and each program that it names runs and prints what it promises."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

ROOT = Path(__file__).parents[1]
EXAMPLES = ROOT / "examples"
FOLDERS = sorted(path for path in EXAMPLES.iterdir() if path.is_dir())
PROGRAM = re.compile(r"python (examples/[\w/]+\.py)")
IN_FRAMEWORKS = {"langchain_agent", "pydantic_ai_agent"}
"""Folders whose programs need a framework: tests/frameworks/test_examples.py runs them."""
NOTEBOOK = EXAMPLES / "notebook" / "mulligan.ipynb"


def programs_of(folder: Path) -> list[str]:
    return PROGRAM.findall((folder / "README.md").read_text())


PROGRAMS = [program for folder in FOLDERS if folder.name not in IN_FRAMEWORKS for program in programs_of(folder)]


def run(program: str, home: Path) -> str:
    done = subprocess.run(
        [sys.executable, str(ROOT / program)],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "PYTHONPATH": os.pathsep.join(sys.path)},
        cwd=home,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def promised_lines(folder: Path) -> list[str]:
    """The output that a README shows. Three dots end what is compared of a line."""
    texts = re.findall(r"^```text\n(.*?)^```", (folder / "README.md").read_text(), re.MULTILINE | re.DOTALL)
    return [line.partition("...")[0] for text in texts for line in text.splitlines()]


def test_the_index_leads_to_every_example() -> None:
    index = (EXAMPLES / "README.md").read_text()
    assert set(re.findall(r"\]\((\w+)/README\.md\)", index)) == {folder.name for folder in FOLDERS}


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: folder.name)
def test_each_program_is_in_the_readme_of_its_folder(folder: Path) -> None:
    text = (folder / "README.md").read_text()
    assert text.startswith("# ")
    names = {path.name for path in folder.iterdir() if path.suffix in (".py", ".ipynb")}
    assert names
    assert [name for name in names if name not in text] == []
    for link in re.findall(r"\]\(([^)#\s]+)", text):
        assert (folder / link).exists(), link


@pytest.mark.slow
@pytest.mark.parametrize("program", PROGRAMS)
def test_examples_run_and_print_what_their_readme_shows(program: str, tmp_path: Path) -> None:
    output = run(program, tmp_path)
    assert output
    folder = (ROOT / program).parent
    for line in promised_lines(folder):
        assert line in output, line


@pytest.mark.slow
def test_agent_loop_goes_better_the_third_time_and_in_the_next_process_at_once(tmp_path: Path) -> None:
    outputs = [run("examples/plain_loop/agent_loop.py", tmp_path) for _ in range(2)]
    turns = [[int(count) for count in re.findall(r": (\d+) turns, run", output)] for output in outputs]
    assert turns == [[4, 4, 2], [2, 2, 2]]


def test_the_notebook_has_the_cells_of_its_page() -> None:
    """tests/test_docs.py runs the cells of the page."""
    page = (ROOT / "docs" / "notebooks.md").read_text()
    cells = re.findall(r"^```python\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    notebook = json.loads(NOTEBOOK.read_text())
    code = ["".join(cell["source"]) for cell in notebook["cells"] if cell["cell_type"] == "code"]
    assert code == [cell.rstrip("\n") for cell in cells]
    assert all(not cell["outputs"] for cell in notebook["cells"] if cell["cell_type"] == "code")


def test_the_compose_file_names_what_it_defines() -> None:
    compose = yaml.safe_load((ROOT / "deploy" / "compose.yaml").read_text())
    for name, service in compose["services"].items():
        assert "image" in service, name
        assert set(service.get("depends_on", {})) <= set(compose["services"])
    assert (ROOT / "deploy" / compose["services"]["serve"]["build"]["context"] / "deploy" / "Dockerfile").exists()
