"""What GitHub runs and shows: workflows call make targets that exist, and need no more rights than they use."""

from __future__ import annotations

import re
import subprocess
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).parents[1]
GITHUB = ROOT / ".github"
WORKFLOWS = sorted((GITHUB / "workflows").glob("*.yml"))
TARGETS = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]


def load(path: Path) -> Any:
    return yaml.safe_load(path.read_text())


def jobs_of(path: Path) -> Iterator[tuple[str, dict[str, Any]]]:
    yield from load(path)["jobs"].items()


def make_targets(job: dict[str, Any]) -> set[str]:
    """The targets that a job makes; those of its matrix in place of the variable."""
    commands = "\n".join(step.get("run", "") for step in job["steps"])
    targets = set(re.findall(r"\bmake ([a-z-]+)", commands))
    if "make ${{ matrix.target }}" in commands:
        targets |= set(job["strategy"]["matrix"]["target"])
    return targets


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_make_target_of_a_workflow_exists(path: Path) -> None:
    targets = set().union(*(make_targets(job) for _, job in jobs_of(path)))
    assert targets
    assert targets <= TARGETS


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_every_script_of_a_workflow_exists(path: Path) -> None:
    for script in re.findall(r"\bscripts/\w+", path.read_text()):
        assert (ROOT / script).exists()


def test_every_tier_runs_in_a_workflow() -> None:
    targets = set().union(*(make_targets(job) for _, job in jobs_of(GITHUB / "workflows" / "checks.yml")))
    tiers = re.search(r"^TIERS := (.*)$", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert tiers is not None
    assert set(tiers[1].split()) - targets == {"test-wheel"}  # make release-check tries the wheel, and the sdist
    assert {"lint", "typing", "docs", "release-check"} <= targets


def test_tests_run_on_every_python_that_the_package_names_and_on_macos() -> None:
    matrix = load(GITHUB / "workflows" / "checks.yml")["jobs"]["test"]["strategy"]["matrix"]
    named = {text.rpartition(" ")[2] for text in PROJECT["classifiers"] if re.search(r":: 3\.\d+$", text)}
    assert named <= set(matrix["python"])
    assert "macos-latest" in {row["os"] for row in matrix["include"]}


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_workflows_read_only_unless_a_job_says_why(path: Path) -> None:
    workflow = load(path)
    assert workflow["permissions"] == {"contents": "read"}
    writing = {name: job["permissions"] for name, job in workflow["jobs"].items() if "permissions" in job}
    expected = {"publish": {"id-token": "write"}, "notes": {"contents": "write"}} if path.stem == "release" else {}
    assert writing == expected
    assert all("timeout-minutes" in job for job in workflow["jobs"].values())
    assert "secrets." not in path.read_text()


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.stem)
def test_actions_have_a_version(path: Path) -> None:
    actions = [step["uses"] for _, job in jobs_of(path) for step in job["steps"] if "uses" in step]
    assert actions
    assert all(re.fullmatch(r"[\w-]+/[\w-]+@(v\d+|release/v\d+|[0-9a-f]{40})", action) for action in actions)


@pytest.mark.parametrize(
    "path", sorted(set((GITHUB / "ISSUE_TEMPLATE").glob("*.yml")) - {GITHUB / "ISSUE_TEMPLATE" / "config.yml"}), ids=str
)
def test_issue_forms_ask_for_something(path: Path) -> None:
    form = load(path)
    assert form["name"]
    assert form["description"]
    fields = [field for field in form["body"] if field["type"] != "markdown"]
    assert all(field["attributes"]["label"] for field in fields)
    assert any(field.get("validations", {}).get("required") for field in fields)
    assert len({field["id"] for field in fields}) == len(fields)


def test_other_settings_are_readable() -> None:
    assert load(GITHUB / "dependabot.yml")["version"] == 2
    assert load(GITHUB / "ISSUE_TEMPLATE" / "config.yml")
    hooks = [hook for repository in load(ROOT / ".pre-commit-config.yaml")["repos"] for hook in repository["hooks"]]
    lint = re.search(r"^lint:.*\n((?:\t.*\n)+)", (ROOT / "Makefile").read_text(), re.MULTILINE)
    assert lint is not None
    tools = re.findall(r"\.venv/bin/(\w+(?: \w+)?)", lint[1])
    assert [" ".join(hook["entry"].removeprefix(".venv/bin/").split()[: tool.count(" ") + 1])
            for hook, tool in zip(hooks, tools, strict=True)] == tools  # fmt: skip


def test_release_notes_are_the_changelog_of_the_version() -> None:
    def run(*options: str) -> str:
        command = [str(ROOT / "scripts" / "release_notes"), *options]
        return subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout

    version = run("--version").strip()
    assert f'__version__ = "{version}"' in (ROOT / "src" / "mulligan" / "__init__.py").read_text()
    notes = run()
    assert notes.strip().startswith("### ")
    assert "\n## " not in notes
    assert notes.strip() in (ROOT / "CHANGELOG.md").read_text()
