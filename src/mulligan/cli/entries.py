"""Commands by which agents and MCP clients start mulligan.

They run in cloned repositories, so these commands must not import files or read variables that a repository controls.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import NamedTuple

PACKAGES = ("mulligan", "msgspec", "jsonschema_rs", "click", "mcp", "psycopg")
"""All packages that a started command may import: mulligan and its dependencies."""
SCRIPT = Path(__file__).with_name("start.py")
PROBE_TIMEOUT_SECONDS = 30
"""Time limit for the interpreter that checks isolated mode."""
_ORIGINS = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    spec = find_spec(name)
    print(spec.origin or "" if spec else "")
"""
_FLAGS = re.compile(r"-[IEPSs]+")
SCRIPT_PATTERN = re.compile(r"(?:^|[/\\])mulligan[/\\](?:serve[/\\])?cli[/\\]start\.py$")


class StartCommand(NamedTuple):
    """Command that starts a server."""

    command: str
    args: tuple[str, ...]


def build_start_command(*arguments: str) -> StartCommand:
    """Build the command that runs `mulligan` with these arguments and imports nothing that a repository controls."""
    # `-I` ignores the working directory, PYTHON* variables and the user site, where `pip install --user` puts
    # packages. For such an installation `-EP` is not enough: `site` reads PYTHONUSERBASE even under `-E`, and
    # executes files that it finds there. So `-S` delays `site` until `start.py` has removed that variable.
    interpreter_args = ("-I", "-m", "mulligan") if can_start_isolated() else ("-ESP", str(SCRIPT))
    return StartCommand(sys.executable, (*interpreter_args, *arguments))


@functools.cache
def can_start_isolated() -> bool:
    """Return whether this interpreter's isolated mode finds every package at the same path as this process."""
    specs = [find_spec(name) for name in PACKAGES]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _ORIGINS, *PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=PROBE_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.splitlines() == [(spec.origin or "") if spec else "" for spec in specs]


def parse_mulligan_arguments(start: StartCommand) -> tuple[str, ...] | None:
    """Return the arguments after `mulligan`, for all command forms that `install` has written, else None."""
    if PurePath(start.command).stem == "mulligan":
        return start.args
    words = start.args
    while words and _FLAGS.fullmatch(words[0]):
        words = words[1:]
    if words[:2] == ("-m", "mulligan"):
        return words[2:]
    if words and SCRIPT_PATTERN.search(words[0]):
        return words[1:]
    return None
