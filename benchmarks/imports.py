"""What `import mulligan` and its first use cost, beside opentelemetry-sdk, in one run.

Each case is a fresh interpreter. Cases alternate, so that a busy machine slows all of them alike; byte code is compiled
beforehand, as an installer would have done. Exit 1 if a target is missed, 2 if it cannot be measured.
"""

from __future__ import annotations

import argparse
import compileall
import importlib.metadata
import importlib.util
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import NoReturn

try:
    from packaging.requirements import Requirement
    from packaging.utils import canonicalize_name
except ImportError:
    print("error: this benchmark needs the bench dependencies. Type: make bench", file=sys.stderr)
    sys.exit(2)

BARE, IMPORT, DECORATE, USE, OTEL, OTEL_USE = (
    "python -c pass",
    "import mulligan",
    "first decoration",
    "first use, stored at exit",
    "import otel sdk",
    "first otel span",
)

CASES = {
    BARE: "pass",
    IMPORT: "import mulligan",
    DECORATE: """
import mulligan

@mulligan.tool
def double(number: int) -> int:
    return 2 * number
""",
    USE: """
import mulligan

@mulligan.tool
def double(number: int) -> int:
    return 2 * number

assert double(21) == 42
""",
    OTEL: "import opentelemetry.sdk.trace, opentelemetry.sdk.trace.export",
    OTEL_USE: """
import os
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, ConsoleSpanExporter

provider = TracerProvider()
provider.add_span_processor(BatchSpanProcessor(ConsoleSpanExporter(out=open(os.devnull, "w"))))
with provider.get_tracer("benchmark").start_as_current_span("double") as span:
    span.set_attribute("number", 21)
provider.shutdown()
""",
}

# The peak of this address space alone. The kernel's ru_maxrss would not do: across exec it keeps the parent's peak.
PEAK_MB = """
import sys
if sys.platform == "linux":
    with open("/proc/self/status") as status:
        print(next(int(line.split()[1]) / 1024 for line in status if line.startswith("VmHWM")))
else:
    import resource
    print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20)
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cost:
    case: str
    cpu: float
    """Milliseconds, user and system, all threads, until the process has ended."""
    wall: float
    """Milliseconds."""
    peak: float
    """Megabytes of memory at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Target:
    what: str
    measured: float
    limit: float
    unit: str

    @property
    def is_met(self) -> bool:
        return self.measured <= self.limit


def start(code: str, environment: dict[str, str]) -> subprocess.Popen[str]:
    # -I: neither the current folder nor PYTHON* variables take part. In the home folder is no settings file.
    return subprocess.Popen(
        [sys.executable, "-I", "-c", code],
        cwd=environment["HOME"],
        env=environment,
        stdout=subprocess.PIPE,
        text=True,
    )


def timed(case: str, environment: dict[str, str]) -> tuple[float, float]:
    """CPU and wall milliseconds of one process."""
    started = time.perf_counter()
    process = start(CASES[case], environment)
    _, status, usage = os.wait4(process.pid, 0)
    wall = time.perf_counter() - started
    process.returncode = os.waitstatus_to_exitcode(status)
    if process.stdout is not None:
        process.stdout.close()
    if process.returncode != 0:
        stop(f"{case} ended with exit code {process.returncode}; its own message stands above.")
    return 1000 * (usage.ru_utime + usage.ru_stime), 1000 * wall


def peak(case: str, environment: dict[str, str]) -> float:
    answer, _ = start(CASES[case] + "\n" + PEAK_MB, environment).communicate()
    return float(answer)


def measure(rounds: int) -> dict[str, Cost]:
    with tempfile.TemporaryDirectory(prefix="mulligan-bench-") as home:
        environment = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": home,
            "MULLIGAN_HOME": home,
            "MULLIGAN_MODE": "observe",
        }
        cases = list(CASES)
        # One round is thrown away: it reads the files from disk and makes the store that later processes find.
        for case in cases:
            timed(case, environment)
        times: dict[str, list[tuple[float, float]]] = {case: [] for case in cases}
        for turn in range(rounds):
            progress(f"round {turn + 1} of {rounds}")
            # Another case goes first in each round, so that none profits from its neighbour.
            first = turn % len(cases)
            for case in cases[first:] + cases[:first]:
                times[case].append(timed(case, environment))
        progress("")
        return {
            case: Cost(
                case=case,
                cpu=statistics.median(cpu for cpu, _ in times[case]),
                wall=statistics.median(wall for _, wall in times[case]),
                peak=statistics.median(peak(case, environment) for _ in range(3)),
            )
            for case in cases
        }


def compile_packages() -> None:
    for name in ("mulligan", "opentelemetry"):
        spec = importlib.util.find_spec(name)
        if spec is None or spec.submodule_search_locations is None:
            stop(f"{name} is not installed here. Type: make bench")
        for folder in spec.submodule_search_locations:
            compileall.compile_dir(folder, quiet=2)
    for distribution in closure("mulligan").values():
        for file in distribution.files or ():
            if file.suffix == ".py":
                compileall.compile_file(str(distribution.locate_file(file)), quiet=2)


def closure(name: str) -> dict[str, importlib.metadata.Distribution]:
    """The distribution and everything it needs here without extras."""
    found: dict[str, importlib.metadata.Distribution] = {}
    wanted = [name]
    while wanted:
        key = canonicalize_name(wanted.pop())
        if key in found:
            continue
        found[key] = importlib.metadata.distribution(key)
        for line in found[key].requires or ():
            requirement = Requirement(line)
            if requirement.marker is None or requirement.marker.evaluate({"extra": ""}):
                wanted.append(requirement.name)
    return found


def installed_megabytes(distributions: dict[str, importlib.metadata.Distribution]) -> float:
    paths = {Path(str(one.locate_file(file))) for one in distributions.values() for file in one.files or ()}
    # An editable install lists no modules of ours: count what a wheel would bring.
    spec = importlib.util.find_spec("mulligan")
    for folder in (spec.submodule_search_locations if spec else None) or ():
        paths.update(Path(folder).rglob("*"))
    return sum(path.stat().st_size for path in {path.resolve() for path in paths} if path.is_file()) / 1e6


def targets(costs: dict[str, Cost], distributions: int, megabytes: float) -> list[Target]:
    bare = costs[BARE]
    otel = costs[OTEL].cpu - bare.cpu
    return [
        *(
            Target(
                what=f"{case}, CPU ratio to otel sdk",
                measured=(costs[case].cpu - bare.cpu) / otel,
                limit=limit,
                unit="x",
            )
            for case, limit in ((IMPORT, 1.0), (DECORATE, 1.0), (USE, 1.1))
        ),
        Target(what="import, memory above python", measured=costs[IMPORT].peak - bare.peak, limit=10, unit="MB"),
        Target(what="base install, distributions", measured=distributions, limit=10, unit=""),
        Target(what="base install, size", measured=megabytes, limit=40, unit="MB"),
    ]


def table(costs: dict[str, Cost], verdicts: list[Target], rounds: int) -> str:
    bare, otel = costs[BARE], costs[OTEL]
    met = sum(target.is_met for target in verdicts)
    lines = [
        f"import mulligan costs {verdicts[0].measured:.2f} x the CPU of opentelemetry-sdk, "
        f"decorating {verdicts[1].measured:.2f} x, the first use with its store {verdicts[2].measured:.2f} x; "
        f"{met} of {len(verdicts)} targets met.",
        "",
        f"  CPU ms  wall ms  above bare: CPU ms  x otel    MB  case (medians of {rounds} rounds)",
    ]
    for cost in costs.values():
        above = cost.cpu - bare.cpu
        share = f"{above / (otel.cpu - bare.cpu):.2f}" if cost is not bare else "-"
        lines.append(
            f"  {cost.cpu:6.1f}  {cost.wall:7.1f}  {above:18.1f}  {share:>6}  {cost.peak - bare.peak:4.1f}  {cost.case}"
        )
    lines.append("")
    for target in verdicts:
        verdict = "met" if target.is_met else "MISSED"
        digits = 0 if not target.unit else 2 if target.unit == "x" else 1
        figures = f"{target.measured:7.{digits}f} {target.unit:2}  of at most {target.limit:4g} {target.unit:2}"
        lines.append(f"  {verdict:6}  {figures}  {target.what}")
    return "\n".join(lines)


def progress(text: str) -> None:
    if sys.stderr.isatty():
        print(f"\r\033[K{text}", end="", file=sys.stderr, flush=True)


def stop(message: str) -> NoReturn:
    print(f"error: {message}", file=sys.stderr)
    sys.exit(2)


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=15, metavar="N", help="how often each case is run (default: 15)")
    parser.add_argument("--json", action="store_true", help="print the same facts as JSON")
    options = parser.parse_args()
    if options.rounds < 1:
        parser.error(f"--rounds must be at least 1, got {options.rounds}.")

    compile_packages()
    base = closure("mulligan")
    costs = measure(options.rounds)
    verdicts = targets(costs, len(base), installed_megabytes(base))
    if options.json:
        facts = {
            "rounds": options.rounds,
            "python": sys.version.split()[0],
            "cases": [asdict(cost) for cost in costs.values()],
            "distributions": sorted(base),
            "targets": [asdict(target) | {"met": target.is_met} for target in verdicts],
        }
        print(json.dumps(facts, indent=2))
    else:
        print(table(costs, verdicts, options.rounds))
    return 0 if all(target.is_met for target in verdicts) else 1


if __name__ == "__main__":
    sys.exit(main())
