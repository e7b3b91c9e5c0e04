"""The worlds, one row each: what the model has to do, how it writes its calls at first, and what goes wrong."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from service import Fault, Goal

DAY_SECONDS = 86_400.0


@dataclass(frozen=True)
class World:
    """A task in one or more conversations."""

    name: str
    group: str
    goals: tuple[Goal, ...]
    faults: tuple[Fault, ...] = ()
    days: int = 1
    """Conversations, one a day, with `{day}` in the arguments replaced by its number."""
    later_goals: tuple[Goal, ...] = ()
    """Those of a second conversation, which goes on after the first was compacted to a summary."""
    is_parallel: bool = False
    window: int = 0
    """Tokens that fit into the model; 0: any number."""
    has_inner_retries: bool = False
    """Whether the tools have a retry loop of their own: three attempts, a second apart."""
    answer: str = ""
    right_answer: str = ""

    @property
    def conversations(self) -> tuple[tuple[Goal, ...], ...]:
        if self.later_goals:
            return self.goals, self.later_goals
        return tuple(tuple(at_day(goal, day) for goal in self.goals) for day in range(1, self.days + 1))


def at_day(goal: Goal, day: int) -> Goal:
    def fill(arguments: Mapping[str, Any] | None) -> dict[str, Any] | None:
        if arguments is None:
            return None
        return {
            name: value.replace("{day}", str(day)) if isinstance(value, str) else value
            for name, value in arguments.items()
        }

    alternates = tuple(fill(arguments) or {} for arguments in goal.alternates)
    return replace(goal, right=fill(goal.right), first=fill(goal.first), alternates=alternates)


READ = Goal("get_order", {"order_id": "A-17"})
READS = tuple(Goal("get_order", {"order_id": f"A-{number}"}) for number in range(1, 7))
LABEL = Goal("set_label", {"ticket": 7, "label": "urgent"})
PAID = ("get_invoice", {"invoice": "INV-1"})
PAY = Goal("pay", {"invoice": "INV-1", "amount": 120}, lookup=PAID)
PAY_BLIND = Goal("pay", {"invoice": "INV-1", "amount": 120})
MAIL = Goal("send_email", {"to": "ann@shop.test", "subject": "Your order"})
FILES = tuple(Goal("read_file", {"path": f"report_{number}.txt"}, chars=6000) for number in range(1, 6))


def wrong(tool: str, right: Mapping[str, Any], first: Mapping[str, Any], **options: Any) -> Goal:
    return Goal(tool, right, first, **options)


ORDERS = {"customer": "ann", "status": "open", "per_page": 25}
ROOM = {"room": "R2", "day": "2026-03-02", "hours": 2}
PAGE_SIZE = wrong(
    "list_orders", ORDERS | {"customer": "customer {day}"}, ORDERS | {"customer": "customer {day}", "per_page": 100},
    refusals={"per_page": "This page size is not supported."}, cues=("per_page", "25"),
    alternates=(ORDERS | {"customer": "customer {day}", "per_page": 50}, ORDERS | {"customer": "customer {day}"}),
)  # fmt: skip
QUERIES = tuple({"query": query, "top_k": 5} for query in ("refund rules", "refunds", "refund policy", "returns", "money back", "refund terms", "return policy", "refund"))  # fmt: skip
SEARCHING = Goal(
    "search", {"query": "policy 12", "top_k": 5}, QUERIES[0], {"query": "The index has no entry for {value!r}."},
    cues=("policy 12",), alternates=QUERIES[1:], instead=("read_file", {"path": "policies.txt"}), repeats=20,
)  # fmt: skip

WORLDS = (
    # Nothing goes wrong: what recovery must not disturb.
    World("three reads", "control", READS[:3]),
    World("payment and mail", "control", (PAY, MAIL)),
    World("a file that speaks of errors", "control", (Goal("read_file", {"path": "log.txt"}, text="ERROR 503: connection reset, timeout. Traceback (most recent call last)"),)),
    World("two equal mails, on purpose", "control", (MAIL, MAIL)),
    # Tools that fail for a while.
    World("read: one 503", "flaky tool", (READ,), (Fault("get_order", "503", 1),)),
    World("read: two timeouts", "flaky tool", (READ,), (Fault("get_order", "timeout", 2),)),
    World("read: three resets", "flaky tool", (READ,), (Fault("get_order", "reset", 3),)),
    World("six reads, 30 % fail", "flaky tool", READS, (Fault("get_order", "503", rate=0.3),)),
    World("six reads at once, 60 % fail", "flaky tool", READS, (Fault("get_order", "503", rate=0.6),), is_parallel=True),
    World("label: two 503", "flaky tool", (LABEL,), (Fault("set_label", "503", 2),)),
    World("payment: refused twice", "flaky tool", (PAY,), (Fault("pay", "refused", 2),)),
    World("returned error, once", "flaky tool", (READ,), (Fault("get_order", "returned temporarily unavailable", 1),)),
    World("key rejected for good", "flaky tool", (READ,), (Fault("get_order", "401", 100),)),
    # Limits.
    World("tool: 429, no time", "rate limit", (READ,), (Fault("get_order", "429", 2),)),
    World("tool: 429 after 4 s", "rate limit", (READ,), (Fault("get_order", "429 after 4", until=4.0),)),
    World("tool: 429 after 25 s", "rate limit", (READ,), (Fault("get_order", "429 after 25", until=25.0),)),
    World("payment: 429 after 3 s", "rate limit", (PAY,), (Fault("pay", "429 after 3", until=3.0),)),
    World("model: 429, no time", "rate limit", (READ,), (Fault("model", "429", 2),)),
    World("model: 429 after 7 s", "rate limit", (READ,), (Fault("model", "429 after 7", until=7.0),)),
    World("model: 429 after 50 s", "rate limit", (READ,), (Fault("model", "429 after 50", until=50.0),)),
    World("model: one deployment limited for 5 min", "rate limit", READS[:2], (Fault("model-a", "429", until=300.0),)),
    # Bursts.
    World("6 reads at once, 3 in 4 s", "burst", READS, (Fault("get_order", "429", limit=(3, 4.0)),), is_parallel=True),
    World("6 reads at once, 2 in 6 s, time stated", "burst", READS, (Fault("get_order", "429 after 6", limit=(2, 6.0)),), is_parallel=True),
    World("model: 2 requests in 5 s", "burst", READS[:4], (Fault("model", "429", limit=(2, 5.0)),)),
    # Outages.
    World("tool: 8 s", "outage", (READ,), (Fault("get_order", "503", until=8.0),)),
    World("tool: 18 s", "outage", (READ,), (Fault("get_order", "reset", until=18.0),)),
    World("tool: 35 s", "outage", (READ,), (Fault("get_order", "503", until=35.0),)),
    World("tool: 70 s", "outage", (READ,), (Fault("get_order", "503", until=70.0),)),
    World("model: 3 s", "outage", (READ,), (Fault("model", "503", until=3.0),)),
    World("model: 15 s, reset", "outage", (READ,), (Fault("model", "reset", until=15.0),)),
    World("model: 40 s", "outage", (READ,), (Fault("model", "503", until=40.0),)),
    World("model: 10 min", "outage", (READ,), (Fault("model", "503", until=600.0),)),
    World("model: one deployment down for 10 min", "outage", READS[:2], (Fault("model-a", "503", until=600.0),)),
    # Arguments that are wrong in ten ways.
    World("number as text", "arguments", (wrong("set_label", LABEL.right or {}, {"ticket": "7", "label": "urgent"}),)),
    World("other name", "arguments", (wrong("search", {"query": "x", "top_k": 5}, {"query": "x", "topK": 5}),)),
    World("name of another meaning", "arguments", (wrong("get_order", {"order_id": "A-17"}, {"number": "A-17"}),)),
    World("case of a choice", "arguments", (wrong("list_orders", ORDERS, ORDERS | {"status": "Open"}),)),
    World("synonym of a choice", "arguments", (wrong("list_orders", ORDERS, ORDERS | {"status": "unpaid"}),)),
    World("above the bound, stated", "arguments", (wrong("search", {"query": "x", "top_k": 10}, {"query": "x", "top_k": 50}, refusals={"top_k": "top_k must be 10 or less, got {value}."}),)),
    World("argument missing", "arguments", (wrong("find_rooms", {"day": "2026-03-02", "seats": 4}, {"day": "2026-03-02"}),)),
    World("list as text", "arguments", (wrong("create_ticket", {"title": "x", "tags": ["a", "b"]}, {"title": "x", "tags": '["a", "b"]'}),)),
    World("one value for a list", "arguments", (wrong("create_ticket", {"title": "x", "tags": ["a"]}, {"title": "x", "tags": "a"}),)),
    World("arguments in a wrapper", "arguments", (wrong("search", {"query": "x", "top_k": 5}, {"arguments": {"query": "x", "top_k": 5}}),)),
    World("other form of a date", "arguments", (wrong("book", ROOM, ROOM | {"day": "2 March 2026"}, refusals={"day": "day must have the form YYYY-MM-DD, got {value!r}."}),)),
    World("argument too many", "arguments", (wrong("get_order", {"order_id": "A-17"}, {"order_id": "A-17", "verbose": True}),)),
    World("id without its mark", "arguments", (Goal("search", {"query": "W123", "top_k": 5}, text="order #W123 of ann"), wrong("get_order", {"order_id": "#W123"}, {"order_id": "W123"}, refusals={"order_id": "There is no order {value!r}."}, cues=("order",)))),
    # Where a correction that looks right would be wrong. The model gives up after the first refusal.
    World("payment above the bound", "no repair is right", (Goal("pay", None, {"invoice": "INV-1", "amount": 5000}, {"amount": "amount must be 1000 or less, got {value}."}),)),
    World("recipient with a near name", "no repair is right", (Goal("send_email", None, {"to": "an@shop.test", "subject": "Hi"}, {"to": "There is no address {value!r}. Did you mean ann@shop.test?"}),)),
    World("room that is taken", "no repair is right", (Goal("book", None, ROOM, {"room": "Room {value!r} is taken. Free rooms: R3, R4."}),)),
    World("wish to cancel one order", "no repair is right", (Goal("cancel_orders", None, {"order_id": "A-17"}, name="cancel_order"),)),
    # Tools that do not exist.
    World("name with a prefix", "unknown tool", (Goal("search", {"query": "x", "top_k": 5}, name="functions.search"),)),
    World("name in another case", "unknown tool", (Goal("get_order", {"order_id": "A-17"}, name="getOrder"),)),
    World("name of no tool", "unknown tool", (Goal("list_orders", ORDERS, name="query_database"),)),
    # Effects whose reply is lost.
    World("payment: timeout after it", "lost reply", (PAY,), (Fault("pay", "timeout", 1, executes=True),)),
    World("payment: reset after it", "lost reply", (PAY,), (Fault("pay", "reset", 1, executes=True),)),
    World("payment: timeout before it", "lost reply", (PAY,), (Fault("pay", "timeout", 1),)),
    World("payment: timeout, no lookup", "lost reply", (PAY_BLIND,), (Fault("pay", "timeout", 1, executes=True),)),
    World("mail: 503 after it", "lost reply", (MAIL,), (Fault("send_email", "503", 1, executes=True),)),
    World("label: timeout after it", "lost reply", (LABEL,), (Fault("set_label", "timeout", 1, executes=True),)),
    World("booking: returned timeout after it", "lost reply", (Goal("book", ROOM),), (Fault("book", "returned upstream timed out", 1, executes=True),)),
    # Tools with a retry loop of their own.
    World("read: two 503 inside", "nested retries", (READ,), (Fault("get_order", "503", 2),), has_inner_retries=True),
    World("read: 12 s outage", "nested retries", (READ,), (Fault("get_order", "503", until=12.0),), has_inner_retries=True),
    World("read: 10 min outage", "nested retries", (READ,), (Fault("get_order", "503", until=600.0),), has_inner_retries=True),
    # Conversations that are too long.
    World("five files, the last does not fit", "overflow", FILES, window=6500),
    World("five files, half fits", "overflow", FILES, window=4000),
    World("one file beyond the window", "overflow", (Goal("read_file", {"path": "big.txt"}, chars=40_000),), window=5000),
    # JSON that does not parse.
    World("arguments with a comma too many", "bad JSON", (Goal("search", {"query": "x", "top_k": 5}, raw='{"query": "x", "top_k": 5,}'),)),
    World("arguments in Python's spelling", "bad JSON", (Goal("search", {"query": "x", "top_k": 5}, raw="{'query': 'x', 'top_k': 5}"),)),
    World("arguments cut off", "bad JSON", (Goal("pay", {"invoice": "INV-1", "amount": 120}, raw='{"invoice": "INV-1", "amount": 12'),)),
    World("answer in a fence", "bad JSON", (READ,), answer='```json\n{"total": 2, "items": ["a", "b"]}\n```', right_answer='{"total": 2, "items": ["a", "b"]}'),
    World("answer with a missing field", "bad JSON", (READ,), answer='{"total": 2}', right_answer='{"total": 2, "items": ["a", "b"]}'),
    World("answer cut off", "bad JSON", (READ,), answer='{"total": 2, "items": ["a", "', right_answer='{"total": 2, "items": ["a", "b"]}'),
    World("empty answer, once", "bad JSON", (READ,), (Fault("model", "empty", 1),)),
    # One way that fails again and again.
    World("eight searches that find nothing", "spiral", (SEARCHING,)),
    World("an order that is gone, asked ten times", "spiral", (Goal("get_order", {"order_id": "A-17"}, repeats=10, instead=("read_file", {"path": "orders.txt"})),), (Fault("get_order", "404", 100),)),
    # Mistakes that a conversation forgets.
    World("mistake before and after a compaction", "compaction", (replace(at_day(PAGE_SIZE, 1)), READ), later_goals=(at_day(PAGE_SIZE, 2), MAIL)),
    World("bound before and after a compaction", "compaction", (wrong("search", {"query": "x", "top_k": 10}, {"query": "x", "top_k": 50}, refusals={"top_k": "top_k must be 10 or less, got {value}."}, cues=("top_k", "10")),), later_goals=(wrong("search", {"query": "y", "top_k": 10}, {"query": "y", "top_k": 50}, refusals={"top_k": "top_k must be 10 or less, got {value}."}, cues=("top_k", "10")),)),
    World("lost reply before a compaction", "compaction", (PAY_BLIND,), (Fault("pay", "timeout", 1, executes=True),), later_goals=(PAY,)),
    # The same mistake in fourteen conversations, one a day.
    World("page size, 14 days", "14 days", (PAGE_SIZE,), days=14),
    World("bound, 14 days", "14 days", (wrong("search", {"query": "day {day}", "top_k": 10}, {"query": "day {day}", "top_k": 50}, refusals={"top_k": "top_k must be 10 or less, got {value}."}, cues=("top_k", "10")),), days=14),
    World("name of a tool, 14 days", "14 days", (Goal("get_order", {"order_id": "A-{day}"}, name="fetch_order_details"),), days=14),
    World("flaky read, 14 days", "14 days", (Goal("get_order", {"order_id": "A-{day}"}),), (Fault("get_order", "503", rate=0.4),), days=14),
)  # fmt: skip
