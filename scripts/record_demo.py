"""Record `mulligan demo` in a terminal of 80 columns and write it to docs/demo.svg, which scrolls as the demo did.

    .venv/bin/python scripts/record_demo.py

The picture needs no script and no font of another host. Where nothing moves, it shows the summary.
"""

from __future__ import annotations

import html
import os
import pty
import re
import sys
import tempfile
import time
from pathlib import Path

ROWS, COLUMNS = 32, 80
CHARACTER_WIDTH, LINE_HEIGHT, PADDING = 8.4, 18, 16
LAST_FRAME_SECONDS = 6.0
COLORS = {"31": "#ff7b72", "32": "#7ee787", "33": "#e3b341", "36": "#79c0ff"}
ESCAPE = re.compile(r"\x1b\[([0-9;]*)m")
OUTPUT = Path(__file__).parents[1] / "docs" / "demo.svg"


def main() -> None:
    lines, times = record()
    OUTPUT.write_text(draw(lines, times), encoding="utf-8")
    print(f"Wrote {OUTPUT}: {len(lines)} lines, {times[-1]:.0f} s.")


def record() -> tuple[list[str], list[float]]:
    """Run the demo and return its lines and the second at which each of them ended."""
    with tempfile.TemporaryDirectory() as home:
        pid, terminal = pty.fork()
        if pid == 0:
            environment = {**os.environ, "MULLIGAN_HOME": home, "TERM": "xterm", "COLUMNS": str(COLUMNS)}
            environment.pop("NO_COLOR", None)
            command = [sys.executable, "-m", "mulligan", "demo", "--no-serve"]
            os.execve(sys.executable, command, environment)
        started_at = time.monotonic()
        text = ""
        times: list[float] = []
        while chunk := _read(terminal):
            text += chunk.replace("\r\n", "\n").replace(home, "~/.local/share/mulligan")
            times += [time.monotonic() - started_at] * (text.count("\n") - len(times))
        if os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) != 0:
            raise SystemExit(f"The demo failed:\n{text}")
    return text.splitlines(), times


def _read(terminal: int) -> str:
    try:
        return os.read(terminal, 65536).decode("utf-8", "replace")
    except OSError:  # Linux: the other end of the terminal was closed
        return ""


def draw(lines: list[str], times: list[float]) -> str:
    width = PADDING * 2 + COLUMNS * CHARACTER_WIDTH
    height = PADDING * 2 + ROWS * LINE_HEIGHT
    duration = times[-1] + LAST_FRAME_SECONDS
    frames = {}
    for number, moment in enumerate(times, start=1):
        frames[round(100 * moment / duration, 2)] = number
    keyframes = " ".join(
        f"{percent}% {{ transform: translateY({_shift(number)}px); }}" for percent, number in frames.items()
    )
    rows = "\n".join(draw_line(line, (number + 1) * LINE_HEIGHT) for number, line in enumerate(lines) if line.strip())
    view = f'viewBox="0 0 {width:.0f} {height}" role="img" aria-label="Recording of mulligan demo"'
    return f"""<svg xmlns="http://www.w3.org/2000/svg" {view}>
<style>
text {{ font: 14px ui-monospace, SFMono-Regular, Menlo, Consolas, monospace; fill: #e6edf3; white-space: pre; }}
.b {{ font-weight: 700; }}
#screen {{ transform: translateY({_shift(len(lines))}px); }}
@media (prefers-reduced-motion: no-preference) {{
#screen {{ animation: scroll {duration:.1f}s step-end infinite; }}
}}
@keyframes scroll {{ 0% {{ transform: translateY({_shift(1)}px); }} {keyframes} }}
</style>
<rect width="100%" height="100%" rx="8" fill="#0d1117"/>
<svg x="{PADDING}" y="{PADDING}" width="{width - 2 * PADDING:.0f}" height="{height - 2 * PADDING}">
<g id="screen">
{rows}
</g>
</svg>
</svg>
"""


def _shift(line_count: int) -> int:
    """Return by how much the text moves so that its last line is at the bottom."""
    return (ROWS - line_count) * LINE_HEIGHT - 4


def draw_line(line: str, y: int) -> str:
    spans: list[str] = []
    is_bold, color, position = False, "", 0
    for part in re.split(r"(\x1b\[[0-9;]*m)", line):
        if match := ESCAPE.fullmatch(part):
            for code in match[1].split(";"):
                is_bold = code == "1" or (is_bold and code not in ("", "0"))
                color = COLORS.get(code, "" if code in ("", "0") else color)
        elif part:
            style = (' class="b"' if is_bold else "") + (f' fill="{color}" style="fill:{color}"' if color else "")
            spans.append(f'<tspan x="{position * CHARACTER_WIDTH:.1f}"{style}>{html.escape(part)}</tspan>')
            position += len(part)
    return f'<text y="{y}" xml:space="preserve">{"".join(spans)}</text>'


if __name__ == "__main__":
    main()
