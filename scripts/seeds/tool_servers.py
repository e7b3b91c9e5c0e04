"""One call of a tool of an MCP server: started, asked, ended."""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
from pathlib import Path
from typing import Any

from places import PYTHON, ROOT

SERVERS = Path(os.environ.get("SERVERS") or ROOT / ".venv" / "mcp-servers")


def answer(server: str, tool: str, arguments: dict[str, Any], folder: Path) -> str | None:
    """What the server says to this call; None where it is not installed. `@` in an argument is the folder."""
    (folder / "notes.txt").write_text("first line\nsecond line\n")
    words = _command(server, folder)
    if words is None:
        return None
    given = json.loads(json.dumps(arguments).replace('"@', f'"{folder}'))
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        assert process.stdin is not None
        assert process.stdout is not None
        about = {"name": "seeds", "version": "1"}
        first = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": about}
        for message in (
            {"id": 1, "method": "initialize", "params": first},
            {"method": "notifications/initialized"},
            {"id": 2, "method": "tools/call", "params": {"name": tool, "arguments": given}},
        ):
            process.stdin.write(json.dumps({"jsonrpc": "2.0", **message}).encode() + b"\n")
            process.stdin.flush()
            while "id" in message:
                told = json.loads(process.stdout.readline())
                if told.get("id") == message["id"]:
                    break
        process.kill()
    return str(told["result"]["content"][0]["text"])


def _command(server: str, folder: Path) -> list[str] | None:
    if server in ("filesystem", "everything"):
        program = SERVERS / "node_modules" / ".bin" / f"mcp-server-{server}"
        return [str(program), *([str(folder)] if server == "filesystem" else [])] if program.exists() else None
    if server == "sqlite":
        place = SERVERS / "python"
        if not (place / "mcp_server_sqlite").exists():
            return None
        with sqlite3.connect(folder / "x.db") as kept:
            kept.execute("create table notes (id integer, text text)")
        start = f"import sys; sys.path.insert(0, {str(place)!r}); import mcp_server_sqlite; mcp_server_sqlite.main()"
        return [PYTHON, "-c", start, "--db-path", str(folder / "x.db")]
    module = f"mcp_server_{server}"
    if subprocess.run([PYTHON, "-c", f"import {module}"], capture_output=True).returncode:
        return None
    if server == "git":
        subprocess.run(["git", "init", "-q", "-b", "main", str(folder)], check=True)
        return [PYTHON, "-m", module, "--repository", str(folder)]
    return [PYTHON, "-m", module, *(["--local-timezone", "UTC"] if server == "time" else [])]
