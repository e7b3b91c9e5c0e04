"""The same runs as in observability.py, sent to a real server by the real exporter of OpenTelemetry, as an agent would.

    python evals/observability_sent.py [--gzip] [--kill]

Reads ../shared/data and needs opentelemetry-sdk and opentelemetry-exporter-otlp-proto-http beside the extra `server`.
Spans go in the order in which they ended, 64 at a time, so that a trace comes in several exports; with --kill the
server is killed and started again in the middle. Exits 1 unless the figures of /v1/stats are those expected.
"""

from __future__ import annotations

import gzip
import json
import os
import re
import subprocess
import sys
import tempfile
import urllib.request
from pathlib import Path
from typing import Any

from observability import DATA, EXPECTED, ROOT, otlp

AT_ONCE = 64


def exported(row: dict[str, Any]) -> Any:
    """A recorded span as the SDK of OpenTelemetry has it when it ends."""
    from opentelemetry.sdk.resources import Resource
    from opentelemetry.sdk.trace import Event, ReadableSpan
    from opentelemetry.trace import SpanContext, Status, StatusCode, TraceFlags

    span = otlp(row)
    trace = int(span["traceId"], 16)

    def context(id: str) -> Any:
        return SpanContext(trace, int(id, 16), False, TraceFlags(1))

    def facts(given: list[dict[str, Any]]) -> dict[str, Any]:
        return {
            each["key"]: int(each["value"]["intValue"]) if "intValue" in each["value"] else each["value"]["stringValue"]
            for each in given
        }

    code = (StatusCode.UNSET, StatusCode.OK, StatusCode.ERROR)[span["status"]["code"]]
    return ReadableSpan(
        span["name"],
        context(span["spanId"]),
        context(span["parentSpanId"]) if span["parentSpanId"] else None,
        Resource({"service.name": "recorded"}),
        facts(span["attributes"]),
        [Event(event["name"], facts(event["attributes"])) for event in span["events"]],
        status=Status(code, span["status"]["message"] if code is StatusCode.ERROR else None),
        start_time=int(span["startTimeUnixNano"]),
        end_time=int(span["endTimeUnixNano"]),
    )


def serve(store: Path, port: int = 0) -> tuple[subprocess.Popen[str], str]:
    command = [sys.executable, "-m", "mulligan", "serve", "--no-auth", "--port", str(port), "--store", str(store)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    process = subprocess.Popen(command, env=environment, stdout=subprocess.PIPE, text=True)
    assert process.stdout is not None
    found = re.search(r"Listening on (http://\S+) with store ", process.stdout.readline())
    assert found is not None
    return process, found[1]


def main() -> None:
    if not DATA.exists():
        sys.exit(f"There is no {DATA}: this evaluation needs the recorded data, which is not part of the repository.")
    from opentelemetry.exporter.otlp.proto.http import Compression
    from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter

    with gzip.open(DATA, "rt") as file:
        spans = [exported(json.loads(line)) for line in file]
    spans.sort(key=lambda span: span.end_time)
    packing = Compression.Gzip if "--gzip" in sys.argv else Compression.NoCompression
    with tempfile.TemporaryDirectory() as folder:
        process, url = serve(Path(folder) / "kept.db")
        try:
            exporter = OTLPSpanExporter(endpoint=f"{url}/v1/traces", compression=packing)
            for start in range(0, len(spans), AT_ONCE):
                if "--kill" in sys.argv and start // AT_ONCE == len(spans) // AT_ONCE // 2:
                    process.kill()
                    process.wait()
                    process, _ = serve(Path(folder) / "kept.db", int(url.rpartition(":")[2]))
                exporter.export(spans[start : start + AT_ONCE])
            exporter.export(spans[-AT_ONCE:])  # once more, as after an answer that was lost
            exporter.shutdown()
            found = told(url)
        finally:
            process.kill()
            process.wait()
    for name, expected in EXPECTED.items():
        print(f"{name:<16}{found.get(name, 0):>6}{'' if found.get(name) == expected else f'  (expected {expected})'}")
    sys.exit(0 if found == EXPECTED else 1)


def told(url: str) -> dict[str, int]:
    def asked(path: str) -> Any:
        with urllib.request.urlopen(url + path, timeout=20) as answer:
            return json.load(answer)

    total = asked("/v1/stats?since=all")["total"]
    counts = {"failed calls": total["recovered"] + total["unrecovered"], "recovered calls": total["recovered"]}
    return {**total["runs"], **counts, "patterns": len(asked("/v1/patterns?limit=100")["patterns"])}


if __name__ == "__main__":
    main()
