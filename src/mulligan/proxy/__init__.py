"""MCP proxy between a client and its servers: processes and URLs.

Starting the server imports nothing else of the proxy, so that both load at the same time.
"""

from __future__ import annotations

import errno
import shutil
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """Where a server is: the command that starts it, or its URL."""

    name: str = "server"
    """Name of the server in records."""
    command: Sequence[str] = ()
    environment: Mapping[str, str] = field(default_factory=dict)
    folder: str | None = None
    """Working folder of the command."""
    url: str = ""
    headers: Mapping[str, str] = field(default_factory=dict)
    is_sse: bool = False
    """Whether the server is known to speak the first protocol version. Otherwise the first answer tells."""


def remove_settings(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment for a server, without our settings: they may contain a token."""
    return {name: value for name, value in environment.items() if not name.startswith("MULLIGAN_")}


def start_server_process(target: ServerTarget, *, is_connected: bool = True) -> subprocess.Popen[bytes]:
    """Start the server's process. It inherits our standard error, and unless it is connected all of our streams."""
    pipe = subprocess.PIPE if is_connected else None
    environment = remove_settings(target.environment)
    command: Sequence[str] | str = target.command
    if sys.platform == "win32":
        command = find_windows_command(target.command, environment.get("PATH"))
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, bufsize=0, env=environment, cwd=target.folder)


def find_windows_command(words: Sequence[str], search_path: str | None) -> Sequence[str] | str:
    """Return the command of a program as Windows starts it: `npx` is the batch file `npx.cmd` there.

    A batch file is run by cmd, which splits and expands the command line by rules of its own. Not run on Windows: the
    tests apply the documented rules.
    """
    program = shutil.which(words[0], path=search_path) or words[0]
    if not program.lower().endswith((".bat", ".cmd")):
        return [program, *words[1:]]
    line_ends = [word for word in words if "\n" in word or "\r" in word]
    if line_ends:
        raise OSError(errno.EINVAL, f"cmd cannot pass {line_ends[0]!r}, which has a line end")
    return f'cmd.exe /e:ON /v:OFF /d /c "{" ".join(map(_quote_for_batch_file, (program, *words[1:])))}"'


def _quote_for_batch_file(word: str) -> str:
    """Quote a word for cmd, and for the program that the batch file starts.

    Between double quotes, cmd interprets only quotes and percent signs. `%cd:~,%` expands to nothing, so that no name
    of a variable stands between two percent signs. The program reads backslashes before a quote in pairs.
    """
    trailing_backslashes = word[len(word.rstrip("\\")) :]
    return '"' + word.replace("%", "%%cd:~,%").replace('"', '""') + trailing_backslashes + '"'
