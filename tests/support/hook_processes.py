"""Hooks as an agent runs them: a process for each event."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

from mulligan.cli.install import build_hook_command


def failing(number: int = 1, session: str = "s1") -> str:
    return json.dumps(
        {
            "session_id": session,
            "cwd": "/src/shop",
            "hook_event_name": "PostToolUseFailure",
            "tool_name": "Bash",
            "tool_input": {"command": f"make part{number}"},
            "tool_use_id": f"toolu_{number}",
            "error": f"Exit code 2\nmake: *** [part{number}] Error 2",
            "is_interrupt": False,
        }
    )


def begun(home: Path, shell: str = "") -> subprocess.Popen[str]:
    return subprocess.Popen(
        ["sh", "-c", shell or build_hook_command("claude-code")],
        env={"PATH": os.environ["PATH"], "HOME": str(home), "MULLIGAN_HOME": str(home), "TMPDIR": str(home.parent)},
        cwd=home.parent,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


def ended(process: subprocess.Popen[str], event: str) -> str:
    """What it said; it has ended well, and complained of nothing."""
    said, complained = process.communicate(event, timeout=60)
    assert (process.returncode, complained) == (0, "")
    return said


def loud(shell: str) -> str:
    """The same with its complaints."""
    return shell.replace(" 2>/dev/null || :", "")
