"""Build and recognize the commands by which agents and MCP clients start mulligan.

They run such a command in cloned repositories, among strangers' files and variables.
"""

from __future__ import annotations

import functools
import re
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path, PurePath
from typing import NamedTuple

PACKAGES = ("mulligan", "msgspec", "jsonschema_rs", "click", "rich", "mcp", "psycopg")
"""Everything that an entry may import: ourselves, and what we depend on."""
SCRIPT = Path(__file__).with_name("start.py")
SECONDS = 30
"""How long the interpreter may take to answer."""
_ORIGINS = """
import sys
from importlib.util import find_spec
for name in sys.argv[1:]:
    spec = find_spec(name)
    print(spec.origin or "" if spec else "")
"""
_FLAGS = re.compile(r"-[IEPSs]+")
_SCRIPT = re.compile(r"(?:^|[/\\])mulligan[/\\]serve[/\\]cli[/\\]start\.py$")


class Start(NamedTuple):
    """The command that starts a server."""

    command: str
    args: tuple[str, ...]


def build_start(*words: str) -> Start:
    """Build the command that runs `mulligan` with these words and imports nothing that a repository chooses."""
    # `-I` leaves out the working directory, all PYTHON* variables and the user site, where `pip install --user` puts
    # packages. For such an installation `-EP` is not enough: `site` reads PYTHONUSERBASE even under `-E`, and runs what
    # it finds there. So `-S` holds `site` back until `start.py` has removed that variable.
    how = ("-I", "-m", "mulligan") if can_start_isolated() else ("-ESP", str(SCRIPT))
    return Start(sys.executable, (*how, *words))


@functools.cache
def can_start_isolated() -> bool:
    """Ask this interpreter whether its isolated mode finds every package where this process finds it."""
    specs = [find_spec(name) for name in PACKAGES]
    try:
        answer = subprocess.run(
            [sys.executable, "-I", "-c", _ORIGINS, *PACKAGES],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            text=True,
            timeout=SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return False
    return answer.stdout.splitlines() == [(spec.origin or "") if spec else "" for spec in specs]


def read_words(start: Start) -> tuple[str, ...] | None:
    """Read what follows `mulligan` in any form that `install` has ever written; None if the command is another."""
    if PurePath(start.command).stem == "mulligan":
        return start.args
    words = start.args
    while words and _FLAGS.fullmatch(words[0]):
        words = words[1:]
    if words[:2] == ("-m", "mulligan"):
        return words[2:]
    if words and _SCRIPT.search(words[0]):
        return words[1:]
    return None
