"""Report on a session log, then play the hook events of a session with a compaction."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

LOG = Path(__file__).with_name("session.jsonl")
HOOK = "from mulligan.hooks.main import main; main()"
SESSION = {"session_id": "example", "cwd": "/home/ada/shop"}
EVENTS = [
    {
        **SESSION,
        "hook_event_name": "PostToolUseFailure",
        "tool_name": "Edit",
        "tool_input": {"file_path": "/home/ada/shop/main.py", "old_string": "def mian(", "new_string": "def run("},
        "tool_use_id": "toolu_1",
        "error": "String to replace not found in file.",
        "is_interrupt": False,
    },
    {**SESSION, "hook_event_name": "SessionStart", "source": "compact"},
]

with tempfile.TemporaryDirectory() as folder:
    environment = {**os.environ, "MULLIGAN_HOME": folder}

    def run(*command: str, text: str = "") -> str:
        return subprocess.run(
            [sys.executable, *command],
            env=environment,
            input=text,
            stdout=subprocess.PIPE,
            text=True,
            timeout=60,
            check=True,
        ).stdout

    print(run("-m", "mulligan", "scan", str(LOG)))
    for event in EVENTS:
        answer = run("-c", HOOK, "claude-code", text=json.dumps(event))
        if answer:
            print(json.loads(answer)["hookSpecificOutput"]["additionalContext"])
