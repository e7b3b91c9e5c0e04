"""Real coding agents, with a model that the test writes: `make test-agents` installs them, else they are skipped."""

from __future__ import annotations

import functools
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest
from agent_api import Api
from coding_agents import PROGRAM_NAMES, PROGRAMS, OpenCodeServer, Place


@pytest.fixture
def api() -> Iterator[Api]:
    with Api() as served:
        yield served


@pytest.fixture(scope="session")
def opencode_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OpenCodeServer]:
    """OpenCode as a server, which starts with its first session."""
    server = OpenCodeServer(tmp_path_factory.mktemp("opencode"))
    yield server
    server.close()


@pytest.fixture
def place(tmp_path: Path, api: Api, opencode_server: OpenCodeServer) -> Place:
    return Place(tmp_path, api, opencode_server)


@pytest.fixture(autouse=True)
def _is_here(request: pytest.FixtureRequest) -> None:
    name = request.node.callspec.params.get("agent", "") if hasattr(request.node, "callspec") else ""
    name = name or request.node.path.stem.removeprefix("test_").replace("_", "-")
    program = PROGRAMS / next(program for agent, program in PROGRAM_NAMES.items() if name.startswith(agent))
    if reason := _why_it_cannot_run(program):
        pytest.skip(reason)


@functools.cache
def _why_it_cannot_run(program: Path) -> str | None:
    if not program.exists():
        return f"{program.name} is not installed: make test-agents"
    try:
        subprocess.run([str(program), "--version"], capture_output=True, timeout=60, check=True)
    except (OSError, subprocess.SubprocessError) as error:
        return f"{program.name} does not run here: {error}"
    return None
