"""Bytes on disk of a recorded conversation: 200 messages, sent again and again by 30 model calls of one run.

    python benchmarks/conversations.py [--postgres URL] [--no-postgres] [--json]

`summary` is what a model records by default, `full` what `record="full"` adds to the store, and `whole` a store in
which every call has all of its messages in its own arguments. `messages` is the JSON of the 200 messages, each once.
Every store is compared with one that has the same run without arguments, results and messages, after VACUUM.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import sqlite3
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from msgspec.structs import replace

sys.path.append(str(Path(__file__).resolve().parent.parent / "tests" / "support"))

import postgres  # type: ignore[import-not-found]

import mulligan
from mulligan.capture.message_recording import parse_conversation
from mulligan.contract.store import DEFAULT_TENANT, Store
from mulligan.core.events import AnyEvent, StepEnded
from mulligan.core.records import encode
from mulligan.store.sqlite import SqliteStore
from mulligan.testing import sandbox

CALLS, MESSAGES = 30, 200
WORDS = (
    "the a of to and in order customer invoice refund address shipped returned warehouse ticket status pending failed "
    "succeeded retry request response header value field schema error timeout found missing updated created deleted "
    "Monday Tuesday January account balance payment card number total price item quantity list page search result "
    "please check whether this can be done before Friday because they asked for it twice already thanks"
).split()


def build_messages(seed: int = 7) -> list[dict[str, Any]]:
    """Return a conversation with tool calls: short questions and answers, results of one to four kilobytes."""
    draw = random.Random(seed)

    def text(words: int) -> str:
        return " ".join(draw.choice(WORDS) for _ in range(words))

    messages: list[dict[str, Any]] = [{"role": "system", "content": text(200)}]
    while len(messages) < MESSAGES:
        number = f"call_{draw.getrandbits(64):016x}"
        arguments = json.dumps({"query": text(6), "limit": draw.randrange(100)})
        call = {"id": number, "type": "function", "function": {"name": "search", "arguments": arguments}}
        messages += [
            {"role": "user", "content": text(30)},
            {"role": "assistant", "content": text(20), "tool_calls": [call]},
            {"role": "tool", "tool_call_id": number, "content": text(draw.randrange(150, 600))},
            {"role": "assistant", "content": text(60)},
        ]
    return messages[:MESSAGES]


def record(messages: list[dict[str, Any]], **options: Any) -> list[AnyEvent]:
    """Return the events of a run in which the conversation grows with each of the model calls."""
    with sandbox() as played:

        @mulligan.model(**options)
        def ask(messages: list[Any]) -> Any:
            return answers.pop()

        with mulligan.run("support"):
            for call in range(1, CALLS + 1):
                sent = messages[: MESSAGES * call // CALLS]
                following = messages[len(sent) :]
                is_answered = bool(following) and following[0]["role"] == "assistant"
                answers = [following[0] if is_answered else "That is all."]
                ask(sent)
    return [event for event in played.events if event.name in ("run.started", "run.ended", "step.ended")]


def to_whole_calls(events: list[AnyEvent], messages: list[dict[str, Any]]) -> list[AnyEvent]:
    """Return the same run with all messages in the arguments of every step."""
    calls = iter(range(1, CALLS + 1))

    def widen(event: AnyEvent) -> AnyEvent:
        if not isinstance(event, StepEnded):
            return event
        sent = parse_conversation({"messages": messages[: MESSAGES * next(calls) // CALLS]})
        return StepEnded(replace(event.step, arguments={"messages": json.loads(encode(sent))}))

    return [widen(event) for event in events]


def measure_sqlite(events: Sequence[AnyEvent], folder: Path) -> int:
    path = folder / "mulligan.db"
    path.unlink(missing_ok=True)
    store = SqliteStore(path)
    _fill(store, events)
    store.close()
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("VACUUM")
        connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    return path.stat().st_size


def measure_postgres(events: Sequence[AnyEvent], server: str) -> int:
    import psycopg

    from mulligan.store.postgres.postgres_store import PostgresStore

    with postgres.fresh_database(server) as url:
        store = PostgresStore(url)
        _fill(store, events)
        store.close()
        with psycopg.connect(url, autocommit=True) as connection:
            connection.execute("VACUUM FULL")
            row = connection.execute(
                "SELECT sum(pg_total_relation_size(oid)) FROM pg_class "
                "WHERE relkind = 'r' AND relnamespace = current_schema()::regnamespace"
            ).fetchone()
    return int(row[0]) if row else 0


def _fill(store: Store, events: Sequence[AnyEvent]) -> None:
    for number, event in enumerate(events, start=1):  # one call at a time, as they end
        store.append(DEFAULT_TENANT, [event], "journal_a", number)


def compare(measure: Callable[[Sequence[AnyEvent]], int]) -> dict[str, int]:
    messages = build_messages()
    full = record(messages, record="full")
    whole = to_whole_calls(full, messages)
    summary = record(messages)
    bare = measure([_without_values(event) for event in summary])
    return {name: measure(events) - bare for name, events in (("summary", summary), ("full", full), ("whole", whole))}


def _without_values(event: AnyEvent) -> AnyEvent:
    if not isinstance(event, StepEnded):
        return event
    return StepEnded(replace(event.step, arguments=None, result=None))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--postgres", default="", help="URL of a server; by default one is started")
    parser.add_argument("--no-postgres", action="store_true")
    parser.add_argument("--json", action="store_true")
    options = parser.parse_args()
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
        sizes = {"sqlite": compare(lambda events: measure_sqlite(events, folder))}
        if not options.no_postgres:
            server = options.postgres or stack.enter_context(postgres.Server()).url
            sizes["postgresql"] = compare(lambda events: measure_postgres(events, server))
    distinct = len(encode(parse_conversation({"messages": build_messages()})))
    if options.json:
        print(json.dumps({"messages": distinct, **sizes}))
        return
    print(f"{MESSAGES} messages as JSON, each once: {distinct:,} bytes")
    for database, by_name in sizes.items():
        print(f"{database:<12}" + "".join(f"{name} {size:>10,} bytes   " for name, size in by_name.items()))


if __name__ == "__main__":
    main()
