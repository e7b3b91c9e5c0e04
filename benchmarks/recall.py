"""What it costs to ask memory when 100,000 and a million calls are kept, and what learning adds to keeping a call.

    python benchmarks/recall.py [--calls 100000 1000000] [--folder DIR] [--keep] [--json]
    python benchmarks/recall.py --store postgresql    the same in PostgreSQL: its process that answers is counted

The stores are filled by their own writer: runs of ten calls to 200 tools, one call in ten of which fails in one of some
hundred ways a tool has, and then recovers by another argument, by a call that had been missing, or not at all. Then
2,000 failures are asked about, each in one of four ways, in nine rounds in which the stores alternate; what is told is
the CPU time of the thread, of each question the middle one. The ways to tell whether two wordings are alike are
compared beside it, each on one new wording and 256 known ones; how often each is right is told by
`evals/memory.py --alike`. Learning is measured in rounds that alternate with rounds without it.
"""

from __future__ import annotations

import argparse
import contextlib
import gc
import json
import random
import shutil
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from difflib import SequenceMatcher
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any
from zlib import crc32

from mulligan.contract.counters import StatsQuery
from mulligan.contract.store import DAY, DEFAULT_TENANT, FixQuery, RecallQuery, Store
from mulligan.core.events import AnyEvent, RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind, Remedy, TookEffect
from mulligan.core.records import Run, Step
from mulligan.learn import fixes, patterns
from mulligan.store import fix_votes
from mulligan.store.sqlite import SqliteStore

TOOLS = 200
WAYS = 300
"""In which a tool can fail; most are seldom met."""
NOW = 1_790_000_000_000
BATCH = 100
"""Runs that are kept together."""
ASKED = 2000
ROUNDS = 9
"""In which each is asked; the middle one counts. A slow question is slow each time, a busy machine now and then."""
TARGET = 2.0
"""Milliseconds of CPU, p99 at a million calls."""
GROWTH = 1.5
"""Of that to what it is at 100,000, over all questions."""
ALL = "all of them"
LEARNING = 15.0
"""Microseconds of CPU a call."""

REJECTED = Kind("tool", "invalid_arguments", Remedy.REPAIR, TookEffect.NO)
MISSING = Kind("orchestration", "precondition", Remedy.REPLAN)
WORDS = (
    "account order ticket door engine flight message folder branch table index session quota token engine brake lock "
    "window payment refund address region cluster volume record queue topic worker report export import schedule user"
).split()


def wording(tool: int, way: int) -> str:
    chance = random.Random(tool * WAYS + way)
    one, two, three, four = (chance.choice(WORDS) for _ in range(4))
    return (
        f"The {one} of this {two} does not allow that while its {three} is not {four}ed (rule {chance.choice(WORDS)})"
    )


def failure(tool: int, way: int) -> Failure:
    kind = MISSING if way % 3 == 1 else REJECTED
    return Failure.of(kind, wording(tool, way), fingerprint=f"1:{tool:03d}{way:03d}")


def picked(chance: random.Random) -> tuple[int, int]:
    """A tool, and a way to fail: a few of each are met all the time, and many a few times."""
    way = int(chance.expovariate(1 / 6)) if chance.random() < 0.7 else chance.randrange(WAYS)
    return min(int(chance.expovariate(1 / 40)), TOOLS - 1), min(way, WAYS - 1)


def run(chance: random.Random, number: int) -> Iterator[AnyEvent]:
    id = f"run_{number:016d}"
    started = NOW - 25 * DAY + (number * 7919) % (24 * DAY)
    about = Run(id=id, agent=f"agent-{number % 10}", started_at=started, ended_at=started + 9000, end_reason="finished")
    yield RunStarted(about)
    seq = calls = 0
    while calls < 10:
        tool, way = picked(chance)
        arguments = {"query": "the weather in the capital", "k": 10}
        shared: dict[str, Any] = {"run": id, "name": f"tool_{tool}", "started_at": started + calls * 900}
        seq, calls = seq + 1, calls + 1
        if chance.random() >= 0.1:
            yield StepEnded(Step(seq=seq, call=seq, arguments=arguments, result={"found": 3}, **shared))
            continue
        failed = failure(tool, way)
        wrong = {**arguments, "k": 50} if way % 3 == 0 else arguments
        yield StepEnded(
            Step(seq=seq, call=seq, arguments=wrong, outcome="failure", failure=failed, effects="none", **shared)
        )
        if way % 3 == 2:
            continue  # nothing helps
        if way % 3 == 1:
            seq, calls = seq + 1, calls + 1
            first = {**shared, "name": f"prepare_{tool}_{way % 7}"}
            yield StepEnded(Step(seq=seq, call=seq, arguments={"level": 1.0, "for": id}, **first))
        if chance.random() < 0.9:
            seq, calls = seq + 1, calls + 1
            yield StepEnded(Step(seq=seq, call=seq, arguments=arguments, **shared))
    yield RunEnded(about)


def fill(store: SqliteStore, calls: int, show: Callable[[str], None] = lambda text: None) -> int:
    """Keeps about so many calls; answers how many they were."""
    chance = random.Random(8)
    kept = number = 0
    began = time.monotonic()
    while kept < calls:
        batch = [event for each in range(number, number + BATCH) for event in run(chance, each)]
        number += BATCH
        store.append(DEFAULT_TENANT, batch, f"journal_{number}", 1)
        kept += sum(isinstance(event, StepEnded) for event in batch)
        if number % (50 * BATCH) == 0:
            spent = time.monotonic() - began
            show(f"  {kept:,} calls kept in {spent:.0f} s, about {spent * calls / kept - spent:.0f} s to go")
    return kept


# Asking

Clock = Callable[[], float]
"""Seconds of CPU so far, of whoever takes part in an answer."""


def questions() -> dict[str, list[Callable[[Store], object]]]:
    """Failures, asked about in each way that the cascade can take."""
    chance = random.Random(20)
    made: dict[str, list[Callable[[Store], object]]] = {}

    def add(name: str, asking: Callable[[Store], object]) -> None:
        made.setdefault(name, []).append(asking)

    for _ in range(ASKED // 4):
        tool, way = picked(chance)
        name, failed = f"tool_{tool}", failure(tool, way)
        arguments = {"query": "x", "k": 50}
        known = FixQuery.for_failure(name, failed, arguments, now=NOW)
        add("the same failure", partial(_fixes, known))
        text = failed.message.replace("does not allow", "forbids")
        other = Failure.of(failed.kind, text, fingerprint=f"1:new{crc32(text.encode()):x}")
        alike = FixQuery.for_failure(name, other, arguments, now=NOW)
        add("one like it", partial(_fixes, alike))
        strange = Failure.of(REJECTED, "Zq 17: ~~ bad ~~", fingerprint="1:strange")
        unknown = FixQuery.for_failure(name, strange, {"query": "x", "topK": 50}, now=NOW)
        add("calls that worked", partial(_fixes, unknown))
        question = RecallQuery(tool=name, fingerprint=failed.fingerprint, run="run_asking")
        add("precedents", partial(_precedents, question))
    return made


def _fixes(query: FixQuery, store: Store) -> object:
    return store.fixes(DEFAULT_TENANT, query)


def _precedents(question: RecallQuery, store: Store) -> object:
    return store.recall(DEFAULT_TENANT, question)


def asked(stores: Mapping[int, tuple[Store, Clock]]) -> dict[int, dict[str, tuple[float, float, int]]]:
    """Of each store, milliseconds by its clock: p50, p99, and how many questions had an answer."""
    # Whoever asks has not just made a million records: what that left behind is not looked through while we measure.
    gc.collect()
    gc.freeze()
    found: dict[int, dict[str, tuple[float, float, int]]] = {size: {} for size in stores}
    every_one: dict[int, list[float]] = {size: [] for size in stores}
    for name, every in questions().items():
        rounds: dict[int, list[list[float]]] = {size: [] for size in stores}
        answered = dict.fromkeys(stores, 0)
        for number in range(ROUNDS + 1):
            for size, (store, clock) in stores.items():
                taken, answered[size] = [], 0
                for ask in every if number else every[:50]:  # the first warms up
                    began = clock()
                    answer = ask(store)
                    taken.append(1000 * (clock() - began))
                    answered[size] += bool(answer)
                if number:
                    rounds[size].append(taken)
        for size in stores:
            spent = [statistics.median(each) for each in zip(*rounds[size], strict=True)]
            found[size][name] = _figures(spent, answered[size])
            every_one[size] += spent
    for size, told in found.items():
        told[ALL] = _figures(every_one[size], sum(answered for _, _, answered in told.values()))
    return found


def _figures(spent: list[float], answered: int) -> tuple[float, float, int]:
    spent = sorted(spent)
    return spent[len(spent) // 2], spent[int(0.99 * len(spent))], answered


# Which way to tell whether two wordings are alike


def vector(text: str) -> dict[int, int]:
    folded = f"  {' '.join(text[:400].casefold().split())} ".encode("utf-8", "replace")
    return Counter(
        crc32(folded[start : start + size]) % 512 for size in (3, 4, 5) for start in range(len(folded) - size + 1)
    )


def cosine(one: dict[int, int], other: dict[int, int]) -> float:
    shared = sum(count * other.get(place, 0) for place, count in one.items())
    return float(shared / (sum(each**2 for each in one.values()) * sum(each**2 for each in other.values())) ** 0.5)


def ways() -> dict[str, float | None]:
    """Milliseconds of CPU for one new wording and 256 known ones."""
    texts = [wording(3, way) for way in range(256)]
    new = wording(3, 7).replace("does not allow", "forbids")
    sketches = [(str(place), patterns.pack(patterns.sketch(text))) for place, text in enumerate(texts)]
    vectors = list(map(vector, texts))
    compared: dict[str, Callable[[], object] | None] = {
        "pieces as the bits of a number, kept": lambda: patterns.nearest(
            new, [(name, patterns.unpack(bits)) for name, bits in sketches]
        ),
        "difflib": lambda: max(SequenceMatcher(None, new, text, autojunk=False).ratio() for text in texts),
        "hashed 3-5-grams, 512 places, kept": lambda: max(cosine(vector(new), each) for each in vectors),
    }
    try:
        fuzz, process = import_module("rapidfuzz.fuzz"), import_module("rapidfuzz.process")
    except ImportError:
        compared["rapidfuzz (not installed)"] = None
    else:
        compared["rapidfuzz ratio"] = lambda: process.extractOne(new, texts, scorer=fuzz.ratio)
        compared["rapidfuzz token_set"] = lambda: process.extractOne(new, texts, scorer=fuzz.token_set_ratio)
    return {
        name: None if way is None else _median(way, 3 if "difflib" in name else 20) for name, way in compared.items()
    }


def _median(way: Callable[[], object], rounds: int) -> float:
    spent = []
    for _ in range(rounds):
        began = time.thread_time()
        way()
        spent.append(1000 * (time.thread_time() - began))
    return statistics.median(spent)


# What learning adds


def learning_adds(folder: Path, calls: int = 20_000, rounds: int = 5) -> tuple[float, float]:
    """Microseconds of CPU a call, without learning and with it; in rounds that alternate.

    Each store has kept as many calls before: what every tool can do wrong is not met for the first time all the time.
    """
    chance = random.Random(8)
    batches: list[list[AnyEvent]] = []
    sizes: list[int] = []
    while sum(sizes) < 2 * calls:
        first = len(batches) * BATCH
        batches.append([event for each in range(first, first + BATCH) for event in run(chance, each)])
        sizes.append(sum(isinstance(event, StepEnded) for event in batches[-1]))
    half = len(batches) // 2
    kept = sum(sizes[half:])
    real = fixes.find_trials, fix_votes.add_votes
    spent: dict[bool, list[float]] = {False: [], True: []}
    for place in range(2 * rounds):
        is_learning = place % 2 == 1
        store = SqliteStore(folder / f"learning_{place}.db", lambda: NOW)
        fixes.find_trials, fix_votes.add_votes = real if is_learning else (_no_trials, _no_news)  # type: ignore[assignment]
        began = 0.0
        for at, batch in enumerate(batches):
            if at == half:
                began = time.process_time()
            store.append(DEFAULT_TENANT, batch, f"journal_{at}", 1)
        spent[is_learning].append(1e6 * (time.process_time() - began) / kept)
        fixes.find_trials, fix_votes.add_votes = real
        store.close()
    return statistics.median(spent[False]), statistics.median(spent[True])


def _no_trials(*about: Any, **options: Any) -> list[Any]:
    return []


def _no_news(*about: Any) -> None:
    return None


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    options.add_argument("--calls", type=int, nargs="+", default=[100_000, 1_000_000])
    options.add_argument("--folder", type=Path, help="where stores are made, or are found from the last time")
    options.add_argument("--keep", action="store_true", help="leave them there")
    options.add_argument("--json", action="store_true")
    options.add_argument("--store", default="sqlite", help="sqlite, postgresql, or the URL of a server")
    given = options.parse_args()
    folder = given.folder or Path(tempfile.mkdtemp(prefix="mulligan-recall-"))
    folder.mkdir(parents=True, exist_ok=True)
    told: dict[str, Any] = {}
    try:
        told["recall"] = _measured(folder, given.calls, given.store, given.keep)
        told["alike"] = ways()
        told["learning"] = learning_adds(folder)
    finally:
        if not given.keep and given.folder is None:
            shutil.rmtree(folder, ignore_errors=True)
        else:
            for left in folder.glob("learning_*"):
                left.unlink()
    print(json.dumps(told)) if given.json else _print(told, given.calls)
    sys.exit(1 if _misses(told, given.calls) else 0)


def _measured(
    folder: Path, sizes: Sequence[int], where: str, stays: bool
) -> dict[int, dict[str, tuple[float, float, int]]]:
    paths = {calls: _filled(folder, calls) for calls in sizes}
    with contextlib.ExitStack() as opened:
        if where == "sqlite":
            return asked({calls: (opened.enter_context(_opened(path, calls)), time.thread_time)
                          for calls, path in paths.items()})  # fmt: skip
        import postgres_store  # those who ask PostgreSQL have the extra

        url = opened.enter_context(postgres_store.server(where, folder / "postgresql" if stays else None))
        stores: dict[int, tuple[Store, Clock]] = {}
        for calls, path in paths.items():
            store = opened.enter_context(postgres_store.filled(url, folder if stays else None, path, NOW))
            store.run(DEFAULT_TENANT, "none")  # so that there is a process of the server that answers
            stores[calls] = store, postgres_store.Clock(store)
        return asked(stores)


def _filled(folder: Path, calls: int) -> Path:
    """A file with so many calls: that of the last time, or a new one."""
    path = folder / f"recall_{calls}.db"
    part = path.with_suffix(".part")
    if not path.exists():
        print(f"keeping {calls:,} calls", file=sys.stderr)
        store = SqliteStore(part, lambda: NOW)
        fill(store, calls, lambda text: print(text, file=sys.stderr))
        store.close()
        part.rename(path)
    return path


@contextlib.contextmanager
def _opened(path: Path, calls: int) -> Iterator[Store]:
    with contextlib.closing(SqliteStore(path, lambda: NOW)) as store:
        kept = store.stats(DEFAULT_TENANT, StatsQuery(now=NOW)).total.attempts
        if kept < calls:
            print(f"error: {path} has {kept:,} calls, not {calls:,}. Remove it, and it is made anew.", file=sys.stderr)
            sys.exit(2)
        yield store


def _misses(told: dict[str, Any], sizes: Sequence[int]) -> bool:
    first, last = told["recall"][sizes[0]], told["recall"][sizes[-1]]
    is_slow = any(p99 > TARGET for _, p99, _ in last.values()) or last[ALL][1] > GROWTH * first[ALL][1]
    return is_slow or told["learning"][1] - told["learning"][0] > LEARNING


def _print(told: dict[str, Any], sizes: Sequence[int]) -> None:
    print("A question to memory, CPU ms, p50 / p99 (and how many of the questions had an answer)\n")
    print(f"  {'':<20}" + "".join(f"{f'{size:,} calls':>28}" for size in sizes) + "      p99, last to first")
    for name in told["recall"][sizes[0]]:
        cells = [told["recall"][size][name] for size in sizes]
        shown = "".join(f"{f'{p50:.3f} / {p99:.3f} ({answered})':>28}" for p50, p99, answered in cells)
        print(f"  {name:<20}{shown}      {cells[-1][1] / cells[0][1]:.2f} x")
    worst = max(p99 for _, p99, _ in told["recall"][sizes[-1]].values())
    print(f"\n  asked for: p99 at most {TARGET:g} ms at a million, and 1.5 x; the worst is {worst:.2f} ms")
    print("\nOne new wording and 256 known ones, CPU ms\n")
    for way, spent in told["alike"].items():
        print(f"  {way:<42}{'-' if spent is None else f'{spent:.3f}':>10}")
    without, learned = told["learning"]
    print(f"\nKeeping a call takes {without:.1f} us of CPU, with learning {learned:.1f} us:", end=" ")
    print(f"learning adds {learned - without:.1f} us (asked for: at most {LEARNING:g}).")


if __name__ == "__main__":
    main()
