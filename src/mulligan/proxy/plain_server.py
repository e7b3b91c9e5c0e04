"""A server without the proxy, for a mulligan that cannot start. Imports the standard library alone.

A client starts its servers with our command. A broken dependency of ours must not take them away.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Sequence

from mulligan.proxy import ServerTarget, remove_settings, start_server_process

STOP_SECONDS = 2.0
"""Time for a server to exit after its input closed, and again after a signal."""


def run_server_of_command(error: Exception) -> None:
    """Replace a `mulligan proxy` that cannot be imported by its server. Return if this is another command."""
    words = find_server_command(sys.argv[1:])
    if words:
        sys.exit(run_plain_server(ServerTarget(command=words, environment=dict(os.environ)), error))


def find_server_command(words: Sequence[str]) -> list[str]:
    """Return the command after `--` of `mulligan proxy`. Empty for other commands, and for a server with a URL."""
    if words[:1] != ["proxy"] or "--" not in words:
        return []
    return list(words[words.index("--") + 1 :])


def run_plain_server(target: ServerTarget, error: BaseException, process: subprocess.Popen[bytes] | None = None) -> int:
    """Replace this process by the server. Return its exit code where a process cannot be replaced.

    `process` is the same server, started in advance and so far without a message. It is stopped first.
    """
    reason = f"{type(error).__name__}: {error}"
    print(
        f"mulligan: the proxy cannot start ({reason}). The server runs without it, and nothing is recorded. "
        "To repair it, install mulligan again.",
        file=sys.stderr,
        flush=True,
    )
    if process is not None:
        _stop_process(process)
    if sys.platform == "win32":
        return start_server_process(target, is_connected=False).wait()
    for name in ("SIGPIPE", "SIGXFSZ"):  # ignored by Python; the server expects the default
        signal.signal(getattr(signal, name), signal.SIG_DFL)
    try:
        os.execvpe(target.command[0], list(target.command), remove_settings(target.environment))
    except OSError as failure:
        print(f"mulligan: cannot start {target.command[0]!r}: {failure.strerror}", file=sys.stderr, flush=True)
        return 127


def _stop_process(process: subprocess.Popen[bytes]) -> None:
    """Stop a server by the end of its input, else by signals."""
    for stop in (_close_pipes, subprocess.Popen.terminate, subprocess.Popen.kill):
        stop(process)
        try:
            process.wait(STOP_SECONDS)
            return
        except subprocess.TimeoutExpired:
            continue


def _close_pipes(process: subprocess.Popen[bytes]) -> None:
    for pipe in (process.stdin, process.stdout):
        if pipe is not None:
            pipe.close()
