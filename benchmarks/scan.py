"""How fast a scan of session logs is, and how much it holds, beside the JSON decoder over the same lines.

    python benchmarks/scan.py [--mb 500] [--rounds 3] [--failing 0.045] [--keep FOLDER] [--json]

Synthetic sessions in the forms of Claude Code, Codex and Gemini CLI are written to a temporary folder: lines of the
sizes real ones have. As in recorded sessions, 4.5 % of the calls fail, each in words of its own, and most are then made
again with something changed. Each measurement is a process of
its own, in alternating rounds; CPU time counts, without starting Python and importing. Memory is the process's most.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

SPEED, SPEED_WITH_MANY_FAILURES = 1 / 3, 1 / 6
"""Of the decoder's, at least."""
FLAT = 16
"""Megabytes that all of the logs may take more than a tenth of them."""
FAILING = 0.045
WORDS = (
    "render parse table index order invoice customer retry token buffer socket module branch commit release header "
    "payload schema column migration worker queue cache session cursor widget layout route handler config"
).split()

MEASURE = """
import resource, sys, time
from pathlib import Path
files = sorted(Path(sys.argv[2]).rglob("*.json*"))[: int(sys.argv[3]) or None]
if sys.argv[1] == "decode":
    import msgspec
    began = time.process_time()
    decode = msgspec.json.decode
    for path in files:
        with path.open("rb") as lines:
            for line in lines:
                decode(line)
else:
    from mulligan.transcripts.run_builder import ReaderState
    from mulligan.redaction import Redactor
    from mulligan.report.scan_report import LogScan
    from mulligan.report.scan_text import render_findings
    from mulligan.cli.scan import LogScanner  # as the command reads them
    reading, scan = ReaderState(), LogScan()
    logs = LogScanner(tuple(map(str, files)), None, reading)
    began = time.process_time()
    for history in logs.histories():
        scan.add(history)
    found = scan.build_findings(Redactor())
    assert list(render_findings(found)) and reading.unrecognized_lines == 0, reading.unrecognized_lines
    print(found.sessions, found.calls, found.failures, found.recovered, file=sys.stderr)
print(time.process_time() - began, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


class Writer:
    """Sessions of one seed: the same logs on every machine."""

    def __init__(self, folder: Path, failing: float = FAILING, seed: int = 11) -> None:
        self.folder = folder
        self.failing = failing
        self.chance = random.Random(seed)
        self.written = 0
        self.calls = 0
        self._again: tuple[str, dict[str, Any]] | None = None
        code = [self._sentence(self.chance.randint(4, 12)) for _ in range(4000)]
        self.code = [f'    {line.replace(" ", "_", 1)}("{line[:20]}")\t# {line}\n' for line in code]

    def _sentence(self, words: int) -> str:
        return " ".join(self.chance.choices(WORDS, k=words))

    def _text(self, size: int) -> str:
        start = self.chance.randrange(len(self.code) - 1)
        lines: list[str] = []
        length = 0
        while length < size:
            line = self.code[(start + len(lines)) % len(self.code)]
            lines.append(line)
            length += len(line)
        return "".join(lines)

    def sessions(self, megabytes: int) -> None:
        makers = (self._claude, self._claude, self._claude, self._codex, self._gemini)
        number = 0
        while self.written < megabytes * 1_000_000:
            maker = makers[number % len(makers)]
            suffix = "json" if maker == self._gemini else "jsonl"
            path = self.folder / f"{number:05}.{suffix}"
            with path.open("w", encoding="utf-8") as file:
                for entry in maker(f"session-{number}"):
                    file.write(json.dumps(entry, separators=(",", ":"), ensure_ascii=False) + "\n")
                self.written += file.tell()
            number += 1

    def _call(self) -> tuple[str, dict[str, Any], str, str]:
        """A tool, its arguments, what it answers, and the error if it fails."""
        self.calls += 1
        name = self.chance.choice(("Bash", "Bash", "Read", "Read", "Edit", "Grep"))
        again, self._again = self._again, None
        if again is not None:
            name = again[0]
        file = f"/home/ada/shop/src/{self.chance.choice(WORDS)}_{self.chance.randrange(400)}.py"
        word = self._sentence(2).replace(" ", "_")
        if name == "Bash":
            arguments = {"command": f"pytest tests/test_{word}.py -q", "description": self._sentence(5)}
            errors: tuple[str, ...] = (
                f"Exit code 1\n{self._text(1500)}FAILED tests/test_{word}.py::test_{word} - AssertionError: {word}",
                f"Exit code 2\nls: cannot access '{file}': No such file or directory",
                f"Exit code 127\n/bin/bash: line 1: {word}: command not found",
            )
        elif name == "Edit":
            arguments = {"file_path": file, "old_string": self._text(300), "new_string": self._text(320)}
            errors = (
                "<tool_use_error>String to replace not found in file.\nString: "
                + self._text(300)
                + "</tool_use_error>",
                "<tool_use_error>File has not been read yet. Read it first before writing to it.</tool_use_error>",
            )
        else:
            arguments = {"file_path": file} if name == "Read" else {"pattern": word, "path": file}
            errors = (
                f"File does not exist. Did you mean {word}.py?",
                f"EISDIR: illegal operation on a directory, {file}",
            )
        if again is not None:
            arguments |= again[1]
        size = int(self.chance.paretovariate(1.2) * 900)
        return name, arguments, self._text(min(size, 40_000)), self.chance.choice(errors)

    def _fails(self, name: str, arguments: dict[str, Any]) -> bool:
        """Whether this call fails. Most who fail try the same again, with one argument changed."""
        if self.chance.random() >= self.failing:
            return False
        if self.chance.random() < 0.8:
            changed = self.chance.choice(list(arguments))
            kept = {key: value for key, value in arguments.items() if key != changed}
            self._again = name, kept | {changed: f"{arguments[changed]}{self.chance.choice(WORDS)}"}
        return True

    def _claude(self, session: str) -> Iterator[dict[str, Any]]:
        second = 1_772_000_000.0 + self.calls

        def about(type: str) -> dict[str, Any]:
            nonlocal second
            second += 1.5
            return {
                "parentUuid": f"{self.chance.getrandbits(128):032x}",
                "isSidechain": False,
                "userType": "external",
                "cwd": "/home/ada/shop",
                "sessionId": session,
                "version": "2.1.325",
                "gitBranch": "main",
                "type": type,
                "uuid": f"{self.chance.getrandbits(128):032x}",
                "timestamp": _iso(second),
            }

        yield about("user") | {"message": {"role": "user", "content": self._sentence(30)}}
        for number in range(self.chance.randint(20, 120)):
            usage = {"input_tokens": 5, "cache_read_input_tokens": 90_000, "output_tokens": 300}
            thought = {"type": "thinking", "thinking": self._text(800), "signature": "A" * 400}
            answer = {"id": f"msg_{number}", "role": "assistant", "model": "claude-x", "usage": usage}
            yield about("assistant") | {"message": answer | {"content": [thought]}}
            name, arguments, result, error = self._call()
            id = f"toolu_{session}_{number}"
            call = {"type": "tool_use", "id": id, "name": name, "input": arguments}
            yield about("assistant") | {"message": answer | {"content": [call]}}
            failed = self._fails(name, arguments)
            block = {
                "tool_use_id": id,
                "type": "tool_result",
                "content": error if failed else result,
                "is_error": failed,
            }
            kept: Any = f"Error: {error}" if failed else {"stdout": result, "stderr": "", "interrupted": False}
            if name == "Edit" and not failed:
                kept = {"filePath": arguments["file_path"], "originalFile": self._text(12_000), "structuredPatch": []}
            yield about("user") | {"message": {"role": "user", "content": [block]}, "toolUseResult": kept}
            if number % 9 == 0:
                yield {"type": "file-history-snapshot", "messageId": id, "snapshot": {"trackedFileBackups": {}}}
            if number == 60:
                yield about("system") | {"subtype": "compact_boundary", "compactMetadata": {"trigger": "auto"}}

    def _codex(self, session: str) -> Iterator[dict[str, Any]]:
        second = 1_772_000_000.0 + self.calls

        def line(type: str, /, **payload: Any) -> dict[str, Any]:
            nonlocal second
            second += 1.5
            return {"timestamp": _iso(second), "type": type, "payload": payload}

        instructions = {"text": self._text(15_000)}
        yield line(
            "session_meta", id=session, cwd="/home/ada/shop", cli_version="0.166.0", base_instructions=instructions
        )
        yield line("event_msg", type="user_message", message=self._sentence(30))
        for number in range(self.chance.randint(20, 120)):
            name, arguments, result, error = self._call()
            id, failed = f"call_{number}", self._fails(name, arguments)
            command = json.dumps({"cmd": str(arguments.get("command", "cat x"))})
            yield line("response_item", type="reasoning", encrypted_content="gAAA" * 400, summary=[])
            yield line("response_item", type="function_call", name="exec_command", arguments=command, call_id=id)
            output = error if failed else result
            item = {"type": "CommandExecution", "id": id, "command": ["bash"], "aggregated_output": output}
            yield line("event_msg", type="item_completed", item=item | {"exit_code": int(failed)})
            framed = f"Wall time: 0.1 seconds\nProcess exited with code {int(failed)}\nOutput:\n{output}"
            yield line("response_item", type="function_call_output", call_id=id, output=framed)
            yield line("event_msg", type="token_count", info={"total_token_usage": {"input_tokens": 90_000}})

    def _gemini(self, session: str) -> Iterator[dict[str, Any]]:
        second = 1_772_000_000.0 + self.calls
        messages: list[dict[str, Any]] = [{"type": "user", "timestamp": _iso(second), "content": self._sentence(30)}]
        for number in range(self.chance.randint(20, 60)):
            second += 3
            name, arguments, result, error = self._call()
            failed = self._fails(name, arguments)
            response = {"error": error} if failed else {"output": result}
            call: dict[str, Any] = {
                "id": f"c{number}",
                "name": name,
                "args": arguments,
                "status": "error" if failed else "success",
            }
            call |= {"timestamp": _iso(second), "result": [{"functionResponse": {"response": response}}]}
            messages.append({"type": "gemini", "timestamp": _iso(second), "content": "", "toolCalls": [call]})
        yield {"sessionId": session, "projectHash": "x", "startTime": _iso(second), "messages": messages}


def _iso(second: float) -> str:
    from datetime import UTC, datetime

    return datetime.fromtimestamp(second, UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


def measured(what: str, folder: Path, files: int = 0) -> tuple[float, float]:
    """CPU seconds, and megabytes at most."""
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, what, str(folder), str(files)], check=True, capture_output=True, text=True
    )
    seconds, kilobytes = done.stdout.split()
    return float(seconds), float(kilobytes) / 1024


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--mb", type=int, default=500, help="megabytes of logs (default: 500)")
    parser.add_argument("--rounds", type=int, default=3, metavar="N", help="how often each is measured (default: 3)")
    parser.add_argument("--failing", type=float, default=FAILING, help="share of calls that fail (default: 0.045)")
    parser.add_argument("--keep", metavar="FOLDER", help="write the logs there and leave them")
    parser.add_argument("--json", action="store_true", help="print the same facts as JSON")
    options = parser.parse_args()
    if options.mb < 1 or options.rounds < 1:
        parser.error("--mb and --rounds are at least 1.")
    with tempfile.TemporaryDirectory() as place:
        folder = Path(options.keep or place)
        folder.mkdir(parents=True, exist_ok=True)
        if not any(folder.iterdir()):
            Writer(folder, options.failing).sessions(options.mb)
        files = sorted(folder.iterdir())
        size = sum(path.stat().st_size for path in files) / 1e6
        rounds = [(measured("decode", folder), measured("scan", folder)) for _ in range(options.rounds)]
        decode = statistics.median(each[0][0] for each in rounds)
        scan = statistics.median(each[1][0] for each in rounds)
        ratio = statistics.median(each[0][0] / each[1][0] for each in rounds)
        memory = max(each[1][1] for each in rounds)
        small = measured("scan", folder, max(1, len(files) // 10))[1]
    speed = SPEED if options.failing <= FAILING else SPEED_WITH_MANY_FAILURES
    is_met = {"speed": ratio >= speed, "memory": memory <= small + FLAT}
    facts = {
        "megabytes": round(size),
        "files": len(files),
        "decode_mb_per_cpu_second": round(size / decode),
        "scan_mb_per_cpu_second": round(size / scan),
        "speed": round(ratio, 2),
        "memory_mb": round(memory, 1),
        "memory_of_a_tenth_mb": round(small, 1),
        "met": is_met,
    }
    if options.json:
        print(json.dumps(facts))
    else:
        word = {True: "met", False: "MISSED"}
        print(f"{size:,.0f} MB in {len(files):,} logs, {options.rounds} rounds, medians of CPU time")
        print()
        print(f"  msgspec.json.decode of every line   {size / decode:>7,.0f} MB a second")
        print(f"  mulligan scan                       {size / scan:>7,.0f} MB a second")
        print()
        print(f"  speed beside the decoder    {ratio:>6.2f} x   at least {speed:.2f} x   {word[is_met['speed']]}")
        print(f"  memory for all of it        {memory:>6.0f} MB")
        print(f"  memory for a tenth of it    {small:>6.0f} MB  at most {FLAT} less   {word[is_met['memory']]}")
    return 0 if all(is_met.values()) else 1


if __name__ == "__main__":
    sys.exit(main())
