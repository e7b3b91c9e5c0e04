"""`lessons trust` on a full disk, or killed: a clear message, and what was trusted before stays as it was."""

from __future__ import annotations

import json
import resource
import signal
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = [
    pytest.mark.durability,
    pytest.mark.skipif(sys.platform == "win32", reason="limits of processes are POSIX only"),
]
LESSON = (
    '+++\ntool = "Bash"\nkind = "tool/execution_failed"\n+++\n\n# Mistake\n\n`sh run.sh` fails\n\n'
    "# Correction\n\nSet up.\n"
)


@pytest.fixture
def project(tmp_path: Path) -> Path:
    folder = tmp_path / "project" / ".mulligan" / "lessons"
    folder.mkdir(parents=True)
    (folder / "setup.md").write_text(LESSON)
    return tmp_path / "project"


def run(project: Path, *words: str, is_full: bool = False) -> subprocess.CompletedProcess[str]:
    """Run `lessons trust`, on request so that no file can grow, as on a full disk."""

    def limit_files() -> None:
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        if is_full:
            resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))

    command = [sys.executable, "-m", "mulligan", "lessons", "trust", str(project), *words]
    return subprocess.run(command, preexec_fn=limit_files, capture_output=True, text=True, timeout=60)


def read_trusted(project: Path) -> list[str]:
    """The trusted files, as another command reports them."""
    program = (
        "import sys; from mulligan.contract.store import DEFAULT_TENANT\n"
        "from mulligan.settings import load_settings; from mulligan.store.urls import open_store\n"
        "from mulligan.learn import project_lessons as lessons\n"
        "store = open_store(load_settings().store_url)\n"
        "print((store.get(DEFAULT_TENANT, lessons.TRUST_KIND, lessons.trust_key(sys.argv[1])) or b'{}').decode())"
    )
    output = subprocess.run([sys.executable, "-c", program, str(project)], capture_output=True, text=True, check=True)
    return sorted(json.loads(output.stdout).values())


def test_a_full_disk_is_named_and_nothing_is_trusted(project):
    failed = run(project, "--yes", is_full=True)
    assert (failed.returncode, "error: Cannot use " in failed.stderr) == (2, True)
    assert "Traceback" not in failed.stderr
    assert read_trusted(project) == []


def test_a_full_disk_takes_no_trust_away(project):
    assert run(project, "--yes").returncode == 0
    assert run(project, "--remove", is_full=True).returncode == 2
    assert read_trusted(project) == ["setup.md"]


@pytest.mark.parametrize("delay", [0.05, 0.2, 0.3, 0.4])
def test_a_killed_command_leaves_all_or_nothing(project, delay):
    command = [sys.executable, "-m", "mulligan", "lessons", "trust", str(project), "--yes"]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    try:
        process.wait(delay)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    assert read_trusted(project) in ([], ["setup.md"])
    assert run(project, "--yes").returncode == 0
    assert read_trusted(project) == ["setup.md"]
