"""Every test has one tier, and every tier has a make target that `make test-all` and `.ci/run` know."""

from __future__ import annotations

import os
import re
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import hypothesis.strategies as st
import pytest
import tiers
from hypothesis import given, settings

ROOT = Path(__file__).parents[1]
MAKEFILE = (ROOT / "Makefile").read_text()
CI = (ROOT / ".ci" / "run").read_text()
BY_HAND = ("test-all", "test-cluster", "test-pooler")  # all targets; tests of the tier postgres with other programs
COMMANDS = dict(re.findall(r"^(test[a-z-]*):.*\n((?:\t.*\n)*)", MAKEFILE, re.MULTILINE))
TARGETS = {name: commands for name, commands in COMMANDS.items() if name not in BY_HAND}
"""Each target that runs a tier, and its commands."""
OPTIONS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["pytest"]["ini_options"]
MARKS = [mark.partition(":")[0] for mark in OPTIONS["markers"]]


def selects(target: str, mark: str) -> bool:
    """Whether a make target runs the tests with this mark."""
    if target == "test":
        return mark == "quick" and OPTIONS["addopts"].endswith("-m quick")
    match = re.search(r'-m ("[a-z or]+"|[a-z]+)', TARGETS[target].replace("-m pytest", ""))
    return match is not None and mark in match[1].strip('"').split(" or ")


@pytest.mark.parametrize("mark", MARKS)
def test_each_mark_is_run_by_one_target(mark: str) -> None:
    assert len([target for target in TARGETS if selects(target, mark)]) == 1


def test_marks_are_the_tiers_and_two_kinds_of_quick_tests() -> None:
    assert sorted(MARKS) == sorted((*tiers.TIERS, "property", "golden"))


def test_test_all_runs_each_target() -> None:
    match = re.search(r"^TIERS := (.*)$", MAKEFILE, re.MULTILINE)
    assert match is not None
    assert sorted(match[1].split()) == sorted(TARGETS)
    assert "\ntest-all: $(TIERS) " in MAKEFILE


def list_ci_targets(script: str) -> list[str]:
    """Return the targets of the lists of .ci/run, those that run and those that are optional."""
    lists = re.findall(r"^(?:plain|with_packages)=\((.*)\)$", script, re.MULTILINE)
    assert len(lists) == 2
    optional = re.search(r"^declare -A optional=\((.*?)^\)$", script, re.MULTILINE | re.DOTALL)
    assert optional is not None
    return [
        *re.findall(r"[a-z-]+", " ".join(lists)),
        *re.findall(r'^ +\[([a-z-]+)\]="\w.+"$', optional[1], re.MULTILINE),
    ]


def test_ci_runs_each_target_or_says_why_it_is_optional() -> None:
    assert sorted(list_ci_targets(CI)) == sorted({"lint", "docs", *COMMANDS} - {"test-all"})


@pytest.mark.parametrize(
    ("line", "broken"),
    [(" test-slow", ""), ('="Citus', '="" # Citus'), ("test-mcp", "test-mpc")],
    ids=["left out", "without a reason", "misspelled"],
)
def test_broken_list_of_ci_is_noticed(line: str, broken: str) -> None:
    assert line in CI
    assert sorted(list_ci_targets(CI.replace(line, broken))) != sorted(list_ci_targets(CI))


@pytest.fixture
def run_ci(tmp_path: Path) -> Callable[..., tuple[int, str, list[str]]]:
    """Run .ci/run with programs that only note their name. Return its exit code, output and the targets in order."""
    log = tmp_path / "targets"
    programs = {
        ".ci/run": CI,
        "bin/make": f'#!/bin/sh\necho "$2" >>{log}\necho "makes $2"\n[ "$2" != "$FAILING" ]\n',
        "bin/apt-get": "#!/bin/sh\nexit 100\n",
    }
    programs |= {f"scripts/{name}": "#!/bin/sh\n" for name in re.findall(r"^ *scripts/(\w+)", CI, re.MULTILINE)}
    for name, text in programs.items():
        path = tmp_path / name
        path.parent.mkdir(exist_ok=True)
        path.write_text(text)
        path.chmod(0o755)

    def run(failing: str = "") -> tuple[int, str, list[str]]:
        environment = {"PATH": f"{tmp_path}/bin:/usr/bin:/bin", "FAILING": failing}
        done = subprocess.run([tmp_path / ".ci" / "run"], env=environment, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, log.read_text().split()

    return run


@pytest.mark.skipif(sys.platform != "linux", reason="the bash of other systems may be too old")
def test_ci_prints_the_seconds_of_each_target_and_what_is_optional(run_ci: Any) -> None:
    code, output, targets = run_ci()
    assert code == 0
    assert sorted(targets) == sorted({"lint", "docs", *COMMANDS} - {"test-all", "test-cluster"})
    _, _, results = output.rpartition("== ")
    assert sorted(re.findall(r"^ +\d+ s  make (\S+): passed$", results, re.MULTILINE)) == sorted(targets)
    assert "make test-cluster: optional, Citus is " in results
    assert "Debian could not install one of chromium " in output


@pytest.mark.skipif(sys.platform != "linux", reason="the bash of other systems may be too old")
def test_ci_stops_at_the_target_that_fails_and_names_it(run_ci: Any) -> None:
    code, output, targets = run_ci(failing="test-contracts")
    assert code == 1
    assert sorted(targets) == ["docs", "lint", "test-contracts", "test-wheel"]
    assert re.search(r"^ +\d+ s  make test-contracts: FAILED$", output, re.MULTILINE)


def test_each_file_with_a_tier_exists() -> None:
    paths = [*tiers.TIER_OF_FILE, *tiers.FOLDERS]
    assert [path for path in paths if not (tiers.TESTS / path).exists()] == []


def test_each_target_is_in_contributing() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text()
    assert [target for target in COMMANDS if not re.search(rf"`make {target}[ `]", text)] == []


@pytest.mark.skipif(shutil.which("make") is None, reason="make is not installed")
def test_help_lists_each_target_in_one_column() -> None:
    done = subprocess.run(["make", "help"], cwd=ROOT, capture_output=True, text=True, timeout=60, check=True)
    lines = re.findall(r"^(make (\S+) +)", done.stdout, re.MULTILINE)
    assert {*TARGETS, "test-all"} <= {target for _, target in lines}
    assert len({len(column) for column, _ in lines}) == 1


# How a test gets its tier


def make_item(path: str = "core/test_calls.py", fixtures: tuple[str, ...] = (), **facts: Any) -> Any:
    marks = [getattr(pytest.mark, name).mark for name in facts.pop("marks", ())]
    return SimpleNamespace(
        nodeid=path, path=tiers.TESTS / path, fixturenames=fixtures, iter_markers=lambda: iter(marks), **facts
    )


@pytest.mark.parametrize(
    ("item", "tier"),
    [
        (make_item(), "quick"),
        (make_item(fixtures=("user",)), "slow"),
        (make_item("stories/test_canaries.py", ("user",)), "safety"),
        (make_item("store/postgres/test_faults.py"), "postgres"),
        (make_item("cli/test_tenant_matrix.py", callspec=SimpleNamespace(params={"world": "postgres"})), "postgres"),
        (make_item("cli/test_stats.py", marks=("quick", "filterwarnings")), "quick"),
    ],
)
def test_tier_comes_from_marks_parameters_file_and_fixtures(item: Any, tier: str) -> None:
    assert tiers.find_tier(item) == tier


@pytest.mark.parametrize(
    ("path", "markexpr", "is_left_out"),
    [
        ("api", "quick", True),
        ("mcp/test_real_servers.py", "safety or property", True),
        ("mcp/test_real_servers.py", "mcp", False),
        ("mcp/test_knowledge.py", "quick", False),
        ("store/postgres", "quick", False),
        ("api", "", False),
    ],
)
def test_tier_with_packages_of_its_own_is_collected_only_if_it_is_selected(
    path: str, markexpr: str, is_left_out: bool
) -> None:
    assert tiers.is_left_out(tiers.TESTS / path, markexpr) is is_left_out


def test_tier_with_packages_of_its_own_has_no_test_of_another_tier() -> None:
    paths = [path for path in tiers.TESTS.rglob("test_*.py") if tiers.find_tier_of_path(path) in tiers.EXTRA_TIERS]
    assert paths
    others = {*tiers.TIERS, "property"}
    for path in paths:
        marks = others & {*re.findall(r"pytest\.mark\.(\w+)", path.read_text())}
        assert marks <= {tiers.find_tier_of_path(path)}, path


def test_two_tiers_of_one_test_are_an_error() -> None:
    with pytest.raises(pytest.UsageError, match="postgres and slow"):
        tiers.find_tier(make_item(marks=("slow", "postgres")))


# Skipped tests


def make_skip(sort: type, reason: str, **facts: Any) -> Any:
    return sort(nodeid="test_it", outcome="skipped", longrepr=("test_it.py", 1, f"Skipped: {reason}"), **facts)


SKIPPED_TEST = partial(make_skip, pytest.TestReport, location=("", None, ""), keywords={}, when="setup")
SKIPPED_FILE = partial(make_skip, pytest.CollectReport, result=[])


@pytest.mark.parametrize(
    ("report", "outcome"),
    [
        (SKIPPED_TEST("there is no Chromium"), "failed"),
        (SKIPPED_FILE("needs starlette"), "failed"),
        (SKIPPED_TEST("nothing is read-only for root"), "skipped"),
    ],
    ids=["test", "file", "optional"],
)
def test_skipped_test_fails_where_it_is_required(report: Any, outcome: str) -> None:
    tiers.reject_skip(report)
    assert report.outcome == outcome


def test_expected_failure_is_no_skipped_test() -> None:
    report = SKIPPED_TEST("")
    report.wasxfail = "known"
    tiers.reject_skip(report)
    assert report.outcome == "skipped"


@pytest.mark.slow
@pytest.mark.parametrize(("required", "code"), [("1", 1), ("", 0)])
def test_missing_program_fails_its_tests_where_all_are_required(required: str, code: int) -> None:
    command = [sys.executable, "-m", "pytest", "-m", "browser", "-x", "-rs", "tests/browser/test_scan_page.py"]
    environment = {**os.environ, "PATH": "", "MULLIGAN_TEST_REQUIRED": required}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120)
    assert done.returncode == code, done.stdout
    assert "is not installed" in done.stdout or "there is no Chromium" in done.stdout


def test_examples_of_a_property_are_limited_and_never_raised() -> None:
    numbers: list[int] = []

    @settings(max_examples=50, database=None)
    @given(st.integers())
    def collect(number: int) -> None:
        numbers.append(number)

    item: Any = SimpleNamespace(obj=collect)
    for count in (7, 20):
        tiers.limit_examples(item, count)
    collect()
    assert len(numbers) == 7


def test_servers_and_python_processes_are_noticed() -> None:
    with socket.socket() as server:
        server.bind(("127.0.0.1", 0))
    subprocess.run([sys.executable, "-c", ""], check=True, timeout=60)
    subprocess.run([sys.executable, "-I", "-c", ""], check=True, timeout=60)
    started = [*tiers.started]
    tiers.started.clear()  # or this test would not be quick
    assert started == ["a server", "a Python process"]
