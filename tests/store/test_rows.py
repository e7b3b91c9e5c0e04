"""Records as they stand in a database: what a row says is not said again in its body, and everything comes back."""

from __future__ import annotations

import sqlite3
from typing import Any, get_args

import hypothesis.strategies as st
from hypothesis import given, settings
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from mulligan.contract.store import DEFAULT_TENANT, ForgetRequest, Retention
from mulligan.core.events import RunEnded, RunStarted, StepEnded
from mulligan.core.failure import Failure, Kind
from mulligan.core.records import MessagePart, Outcome, RecordedMessage, Run, Step, SuspectedFailure, encode
from mulligan.store import erasure
from mulligan.store.rows import compress, decode_body, decode_step, step_row
from mulligan.store.sqlite import MemoryStore, SqliteStore

JSON = st.recursive(st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=9), st.lists, max_leaves=4)
STEPS = st.builds(
    Step,
    run=st.text(min_size=1, max_size=9),
    seq=st.just(7),
    call=st.integers(5, 7),
    attempt=st.integers(1, 3),
    outcome=st.sampled_from(get_args(Outcome)),
    failure=st.none() | st.builds(Failure.of, st.just(Kind("tool", "timeout")), st.text(max_size=9)),
    links_decided=st.booleans(),
    name=st.text(max_size=9),
    parent=st.none() | st.integers(1, 6),
    type=st.sampled_from(["tool", "model", "custom"]),
    server=st.none() | st.text(max_size=9),
    arguments=st.none() | st.dictionaries(st.text(max_size=9), JSON, max_size=3),
    result=JSON,
    started_at=st.integers(0, 2**41),
    duration_seconds=st.floats(0, 1e6),
    tokens=st.none() | st.dictionaries(st.sampled_from(["input", "output"]), st.integers(0, 9)),
    metadata=st.none() | st.dictionaries(st.text(max_size=9), JSON, max_size=2),
    sample_rate=st.just(1.0) | st.just(0.1),
    messages=st.lists(st.tuples(st.integers(1, 9), st.integers(1, 9)), max_size=2).map(tuple),
    within_recovery=st.booleans(),
    answer=st.none() | st.integers(1, 9),
    suspected=st.none() | st.builds(SuspectedFailure, kind=st.just("tool/not_found"), sentence=st.text(max_size=9)),
)


TENANTS, RUNS = st.sampled_from(["ours", "theirs"]), st.sampled_from(["run_a", "run_b", "run_c"])
TEXTS = st.sampled_from(["zebra", "giraffe", "zebra and giraffe", "user"])


@given(STEPS, st.booleans())
def test_a_step_comes_back_as_it_was_whether_its_body_is_whole_or_what_is_left_of_it(step, is_packed):
    *_, rest = step_row(DEFAULT_TENANT, step)
    for body in (bytes(rest), encode(step)):  # 0.1.0 stored the attempts of failed calls whole
        body = compress(body) if is_packed else body
        read = decode_step(step.run, step.seq, step.name, step.started_at, body)
        assert read == step
        assert encode(read) == encode(step)  # also what is not said because it goes without saying


def test_the_body_of_a_step_does_not_repeat_what_its_row_says(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    plain = Step(
        run="run_a", seq=1, call=1, name="look", arguments={"k": 1}, started_at=1_700_000_000_000, duration_seconds=0.5
    )
    again = Step(run="run_a", seq=2, call=1, attempt=2, name="look", started_at=1_700_000_000_001)
    store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a")), StepEnded(plain), StepEnded(again)], "j", 1)

    with sqlite3.connect(tmp_path / "a.db") as database:
        kept = [body for (body,) in database.execute("SELECT body FROM steps ORDER BY seq")]
    assert kept == [b'{"arguments":{"k":1},"duration_seconds":0.5}', b'{"call":1,"attempt":2}']
    assert store.run(DEFAULT_TENANT, "run_a").steps == (plain, again)
    store.close()


def test_a_text_is_forgotten_where_only_the_columns_of_a_row_have_it(tmp_path):
    store = SqliteStore(tmp_path / "a.db")
    steps = [
        Step(run="run_a", seq=seq, call=seq, name=name) for seq, name in enumerate(["look", "ask_annabel"], start=1)
    ]
    store.append(DEFAULT_TENANT, [RunStarted(Run(id="run_a")), *map(StepEnded, steps)], "j", 1)
    store.append(
        DEFAULT_TENANT, [StepEnded(Step(run="run_of_annabel", seq=1, call=1, name="look"))], "j", 2
    )  # and begun elsewhere

    store.forget(DEFAULT_TENANT, ForgetRequest(text="annabel"))

    assert "annabel" not in str(store.run(DEFAULT_TENANT, "run_a"))
    with sqlite3.connect(tmp_path / "a.db") as database:
        assert [run for (run,) in database.execute("SELECT run FROM steps WHERE run LIKE '%annabel%'")] == []
    store.close()


class Conversations(RuleBasedStateMachine):
    """Runs with messages in common: those of a run are there as long as it is, and none longer than all of its runs."""

    def __init__(self) -> None:
        super().__init__()
        self.store = MemoryStore(lambda: 1000)
        self.expected: dict[tuple[str, str], dict[int, str]] = {}
        self.offset = 0

    @rule(tenant=TENANTS, run=RUNS, texts=st.lists(TEXTS, max_size=3), ends=st.booleans())
    def record(self, tenant: str, run: str, texts: list[str], ends: bool) -> None:
        stored = self.expected.setdefault((tenant, run), {})
        messages = [
            RecordedMessage(role="user", parts=(MessagePart(text=text),), number=len(stored) + index)
            for index, text in enumerate(texts, start=1)
        ]
        stored |= {message.number: text for message, text in zip(messages, texts, strict=True)}
        self.offset += 1
        used = ((1, len(stored)),) if stored else ()
        step = Step(run=run, seq=self.offset, call=self.offset, type="model", name="ask", messages=used)
        reason: Any = "finished" if ends else None
        events = [RunEnded(Run(id=run, session="s", end_reason=reason)), StepEnded(step, tuple(messages))]
        self.store.append(tenant, events, "journal_a", self.offset)

    @rule(tenant=TENANTS, run=RUNS)
    def forget_run(self, tenant: str, run: str) -> None:
        self.store.forget(tenant, ForgetRequest(run=run))
        self.expected.pop((tenant, run), None)

    @rule(tenant=TENANTS, text=TEXTS)
    def forget_text(self, tenant: str, text: str) -> None:
        self.store.forget(tenant, ForgetRequest(text=text))
        for (owner, _), stored in self.expected.items():
            if owner == tenant:
                stored |= {n: said.replace(text, erasure.ERASED_MARK) for n, said in stored.items()}

    @rule(tenant=TENANTS, request=st.sampled_from([ForgetRequest(session="s"), ForgetRequest(tool="ask")]))
    def forget_all(self, tenant: str, request: ForgetRequest) -> None:
        self.store.forget(tenant, request)
        self.expected = {key: stored for key, stored in self.expected.items() if key[0] != tenant}

    @rule(tenant=TENANTS)
    def prune(self, tenant: str) -> None:
        self.store.prune(tenant, Retention(keep_successes=1, keep_failures=1), 2000)
        self.expected = {key: stored for key, stored in self.expected.items() if key[0] != tenant}

    @rule(tenant=TENANTS, sample=st.sampled_from([1e-9, 0.5]))
    def sample(self, tenant: str, sample: float) -> None:
        policy = Retention(keep_successes=None, keep_failures=None, sample=sample, sample_after=0, compress_after=0)
        self.store.prune(tenant, policy, 2000)
        left = {history.run.id for history in self.store.export(tenant)}
        self.expected = {key: stored for key, stored in self.expected.items() if key[0] != tenant or key[1] in left}

    @invariant()
    def messages_are_those_of_the_runs(self) -> None:
        for tenant in ("ours", "theirs"):
            found = {
                (tenant, history.run.id): {message.number: message.parts[0].text for message in history.messages}
                for history in self.store.export(tenant)
            }
            assert found == {key: stored for key, stored in self.expected.items() if key[0] == tenant}
            texts = {text for stored in found.values() for text in stored.values()}
            rows = self.store.read_rows(tenant, "SELECT body FROM messages WHERE tenant = ?", (tenant,))
            assert sorted(decode_body(body, RecordedMessage).parts[0].text for (body,) in rows) == sorted(texts)


TestConversations = Conversations.TestCase
TestConversations.settings = settings(max_examples=30, stateful_step_count=20, deadline=None)


def test_a_conversation_of_200_messages_costs_each_message_once_in_30_calls(tmp_path):
    store = SqliteStore(tmp_path / "mulligan.db")
    texts = [f"message {number}: {'what was said, ' * 20}" for number in range(1, 201)]
    messages = [
        RecordedMessage(role="user", parts=(MessagePart(text=text),), number=number)
        for number, text in enumerate(texts, start=1)
    ]
    for call in range(1, 31):
        first, last = 200 * (call - 1) // 30, 200 * call // 30
        step = Step(run="run_a", seq=call, call=call, type="model", name="ask", messages=((1, last),))
        events = [RunStarted(Run(id="run_a")), StepEnded(step, tuple(messages[first:last]))]
        store.append(DEFAULT_TENANT, events, "journal_a", call)

    sql = "SELECT count(*), sum(length(body)) FROM {} WHERE tenant = ?"
    assert store.read_rows(DEFAULT_TENANT, sql.format("messages"), (DEFAULT_TENANT,))[0][0] == 200
    assert store.read_rows(DEFAULT_TENANT, sql.format("messages"), (DEFAULT_TENANT,))[0][1] < sum(map(len, texts))
    assert store.read_rows(DEFAULT_TENANT, sql.format("steps"), (DEFAULT_TENANT,))[0][1] < 30 * 60
    assert len(store.run(DEFAULT_TENANT, "run_a").messages) == 200
    store.close()
