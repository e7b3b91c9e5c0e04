"""The setting `log`: one record for each failure, retry, repair, recovery and stop, redacted, on standard loggers."""

from __future__ import annotations

import contextlib
import io
import logging
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

import mulligan
from mulligan.build import Components
from mulligan.core.events import (
    ContextCompacted,
    FailureRecorded,
    LessonLearned,
    RecoveryPlanned,
    RunEnded,
    RunStarted,
    StepEnded,
    StepStarted,
)
from mulligan.core.failure import Failure, Kind, Remedy, SettingsError, TookEffect
from mulligan.core.records import (
    Change,
    Compaction,
    CompressionAction,
    Lesson,
    Link,
    Recovery,
    RecoveryStop,
    Run,
    Step,
)
from mulligan.logging import EventLog, FallbackHandler, format_event, format_fields, iter_records
from mulligan.settings import load_settings

TIMEOUT = Failure.of(Kind("tool", "timeout", Remedy.RETRY, TookEffect.UNKNOWN), 'it said "no" = 100%', fingerprint="f1")
FAILED = Step(run="run_1", seq=2, call=2, name="search", outcome="failure", duration_seconds=0.25, failure=TIMEOUT)
REPAIR = Recovery(
    remedy=Remedy.REPAIR,
    backoff_seconds=0.5,
    changes=(Change(path="k", operation="clamp", before=50, after=10),),
    source="schema",
    confidence=0.9,
)
STOP = RecoveryStop(reason="the limit of 3 attempts is reached", suggestions=(REPAIR,))


@pytest.fixture(autouse=True)
def loggers() -> Iterator[logging.Logger]:
    """The logger `mulligan`, restored after the test."""
    logger = logging.getLogger("mulligan")
    handlers, level, propagates = list(logger.handlers), logger.level, logger.propagate
    yield logger
    logger.handlers[:] = handlers
    logger.setLevel(level)
    logger.propagate = propagates


def lines(*events) -> list[str]:
    return [f"{record.word} {format_fields(record.fields)}" for event in events for record in iter_records(event)]


def read(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, str]]:
    """Return logger, level and first word of each record."""
    return [(record.name, record.levelname, record.getMessage().split()[0]) for record in caplog.records]


def search_three_times(ours: mulligan.Mulligan) -> None:
    """Call a tool that recovers by a repair, one that recovers by a retry and one that fails for good."""
    results = iter([TimeoutError("no answer")])

    @ours.tool(clamp=["top_k"])
    def search(query: str, top_k: int = 5) -> list[str]:
        if top_k > 10:
            raise mulligan.AgentError(f"top_k must be 10 or less, got {top_k}.")
        return [query] * top_k

    @ours.tool(effects="none")
    def fetch(url: str) -> str:
        for error in results:
            raise error
        return "page"

    @ours.tool
    def pay(amount: int, api_key: str) -> None:
        raise TimeoutError(f"no answer for {api_key}")

    with ours.run("helper"):
        search("refunds", top_k=50)
        fetch("https://example.com")
        with pytest.raises(TimeoutError):
            pay(5, api_key="sk-" + "a1B2c3D4" * 5)


def quick(**settings) -> mulligan.Mulligan:
    return mulligan.Mulligan(store="memory:", initial_backoff=0.001, max_backoff=0.001, **settings)


def test_log_setting_writes_a_record_for_each_failure_retry_repair_recovery_and_stop(caplog):
    search_three_times(quick(log="info"))
    assert read(caplog) == [
        ("mulligan.capture", "WARNING", "failed"),
        ("mulligan.recover", "INFO", "repair"),
        ("mulligan.recover", "INFO", "recovered"),
        ("mulligan.capture", "WARNING", "failed"),
        ("mulligan.recover", "INFO", "retry"),
        ("mulligan.recover", "INFO", "recovered"),
        ("mulligan.capture", "WARNING", "failed"),
        ("mulligan.recover", "WARNING", "stopped"),
    ]


def test_warning_level_leaves_out_retries_repairs_and_recoveries(caplog):
    search_three_times(quick(log="warning"))
    assert [word for _, _, word in read(caplog)] == ["failed", "failed", "failed", "stopped"]


def test_debug_level_adds_runs_and_successful_steps(caplog):
    search_three_times(quick(log="debug"))
    words = [word for _, _, word in read(caplog)]
    assert (words[0], words[-1], words.count("step.started")) == ("run.started", "run.ended", 5)
    caplog.clear()
    ours = quick(log="debug")
    ours.tool(name="double")(lambda number: 2 * number)(4)
    assert [word for _, _, word in read(caplog)] == ["run.started", "step.started", "step.ended", "run.ended"]


def test_nothing_is_logged_by_default(caplog):
    caplog.set_level(logging.DEBUG)
    search_three_times(quick())
    assert caplog.records == []


def test_handler_that_raises_does_not_harm_the_call(loggers):
    class BrokenHandler(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            raise RuntimeError("the disk is full")

    loggers.addHandler(BrokenHandler())
    search_three_times(quick(log="debug"))


def test_records_carry_run_step_and_kind_as_fields(caplog):
    search_three_times(quick(log=True))
    fields = caplog.records[0].mulligan  # type: ignore[attr-defined]
    assert fields["run"].startswith("run_")
    expected = {"event": "failed", "tool": "search", "attempt": 1, "step": 1, "kind": "tool/invalid_arguments"}
    assert {name: fields[name] for name in expected} == expected


def test_no_secret_is_logged(caplog):
    search_three_times(quick(log="debug"))
    assert "no answer for" in caplog.text
    assert "a1B2c3D4" not in caplog.text
    assert not any("a1B2c3D4" in str(record.__dict__) for record in caplog.records)


def test_successful_calls_cost_no_more_with_a_log_at_info():
    """The recorder builds their events, as without a log: nobody listens in the caller's thread."""
    components = Components(load_settings({"store": "memory:", "log": "info"}))
    assert components.stream.listeners == []


def test_records_of_a_level_that_is_off_are_not_formatted(caplog, loggers, monkeypatch):
    loggers.setLevel(logging.ERROR)  # the program's own choice, which the setting respects
    monkeypatch.setattr("mulligan.logging.format_fields", lambda fields: pytest.fail("formatted"))
    search_three_times(quick(log="info"))
    assert caplog.records == []


@pytest.mark.parametrize(
    ("value", "level"),
    [(True, "info"), ("on", "info"), ("INFO", "info"), ("Debug", "debug"), (False, "off"), ("", "off"), ("0", "off")],
)
def test_log_setting_takes_switches_and_levels(value, level, monkeypatch):
    monkeypatch.setenv("MULLIGAN_LOG", str(value))
    assert load_settings().log == load_settings({"log": value}).log == level


def test_unknown_level_is_rejected_with_the_valid_ones():
    with pytest.raises(SettingsError, match="log must be off, warning, info or debug, got 'loud'"):
        mulligan.Mulligan(log="loud")
    with pytest.raises(SettingsError, match=r"Did you mean log\?"):
        mulligan.Mulligan(logging=True)


# Handlers


@contextlib.contextmanager
def unconfigured() -> Iterator[io.StringIO]:
    """A program without logging handlers. Yield its standard error."""
    root = logging.getLogger()
    handlers, root.handlers = root.handlers, []
    try:
        with contextlib.redirect_stderr(io.StringIO()) as stream:
            yield stream
    finally:
        root.handlers = handlers


def test_program_without_handlers_gets_lines_on_standard_error():
    with unconfigured() as stderr:
        search_three_times(quick(log="info"))
    first, *others = stderr.getvalue().splitlines()
    assert len(others) == 7
    time, level, text = first.split(maxsplit=2)
    assert (len(time), level) == (8, "WARNING")
    assert text.startswith("mulligan.capture failed tool=search attempt=1 duration_seconds=")
    assert 'kind=tool/invalid_arguments took_effect=no message="top_k must be 10 or less, got 50."' in text


@pytest.mark.parametrize("name", ["", "mulligan", "mulligan.recover"])
def test_handlers_of_the_program_receive_each_record_once(name):
    """Whether they were added before or after mulligan was configured."""
    handler, logger = logging.StreamHandler(received := io.StringIO()), logging.getLogger(name)
    with unconfigured() as stderr:
        ours = quick(log="info")
        ours.tool(name="double")(lambda number: 2 * number)(4)
        logger.addHandler(handler)
        try:
            search_three_times(ours)
        finally:
            logger.removeHandler(handler)
    texts = received.getvalue().splitlines() + stderr.getvalue().splitlines()
    assert sum("stopped tool=pay" in text for text in texts) == 1
    assert sum("failed tool=pay" in text for text in texts) == 1
    assert received.getvalue().count("stopped tool=pay") == 1


def test_several_instances_add_one_handler(loggers):
    with unconfigured() as stderr:
        for _ in range(3):
            search_three_times(quick(log="info"))
    assert sum(isinstance(handler, FallbackHandler) for handler in loggers.handlers) == 1
    assert stderr.getvalue().count("stopped tool=pay") == 3


def test_own_warnings_of_mulligan_are_visible_without_any_setting(monkeypatch):
    """A program whose settings cannot be read must not run unrecorded in silence."""
    monkeypatch.setenv("MULLIGAN_ATTEMPTS", "many")
    with unconfigured() as stderr:
        mulligan.Mulligan().tool(name="double")(lambda number: 2 * number)(4)
    assert "calls run without recording and recovery" in stderr.getvalue()


# Records of events


def test_each_event_is_one_line_with_its_fields():
    assert lines(
        StepEnded(FAILED),
        FailureRecorded("run_1", 2, TIMEOUT),
        RecoveryPlanned(FAILED, REPAIR),
        ContextCompacted(
            Compaction(
                session="s",
                reason="overflow",
                chars_before=10,
                chars_after=5,
                tokens_before=4,
                tokens_after=2,
                actions=(
                    CompressionAction(action="summarized", message=2),
                    CompressionAction(action="summarized", message=4),
                    CompressionAction(action="dropped", message=5, messages=3),
                ),
            )
        ),
        LessonLearned(Lesson(id="les_1", tool="search", mistake="m", correction="c")),
        RunStarted(Run(id="run_1", agent="helper", started_at=1000)),
        StepStarted(Step(run="run_1", seq=1, call=1, name="search")),
    ) == [
        "failed tool=search attempt=1 duration_seconds=0.25 kind=tool/timeout took_effect=unknown "
        'message="it said \\"no\\" = 100%" fingerprint=f1 run=run_1 step=2',
        'failed kind=tool/timeout took_effect=unknown message="it said \\"no\\" = 100%" fingerprint=f1 run=run_1 '
        "step=2",
        'repair tool=search attempt=2 backoff_seconds=0.5 changes="k 50 -> 10" confidence=0.9 source=schema run=run_1 '
        "step=2",
        "context.compacted reason=overflow chars_before=10 chars_after=5 tokens_before=4 tokens_after=2 session=s "
        "run=None summarized=2 dropped=3",
        "lesson.learned lesson=les_1 tool=search state=proposed",
        "run.started agent=helper version=None environment=None session=None end_reason=None duration_seconds=None "
        "run=run_1",
        "step.started tool=search attempt=1 run=run_1 step=1",
    ]


def test_failed_attempt_after_which_recovery_stops_has_two_lines():
    step = Step(run="run_1", seq=1, call=1, name="pay", outcome="failure", failure=TIMEOUT, stop=STOP)
    failed, stopped = lines(StepEnded(step))
    assert failed.startswith("failed tool=pay ")
    assert stopped == (
        'stopped tool=pay attempt=1 reason="the limit of 3 attempts is reached" suggestions=1 run=run_1 step=1'
    )


def test_blocked_call_is_one_line_with_the_reason():
    step = Step(run="run_1", seq=1, call=1, name="pay", outcome="blocked", failure=TIMEOUT, stop=STOP)
    (line,) = lines(StepEnded(step))
    assert line.startswith('blocked tool=pay attempt=1 reason="the limit')


def test_failure_that_a_later_call_recovered_is_named():
    link = Link(run="run_1", failed_call=2, recovering_call=5, method="agent", changes=REPAIR.changes)
    step = Step(run="run_1", seq=5, call=5, name="search", links=(link,))
    assert 'recovered tool=search by="step 5" changes="k 50 -> 10" run=run_1 step=2' in lines(StepEnded(step))


def test_repeated_call_that_always_fails_is_never_logged_as_recovered(caplog):
    ours = quick(log="info")

    @ours.tool
    def boom(city: str) -> str:
        raise RuntimeError("boom")

    with ours.run("agent") as run:
        for _ in range(5):
            with pytest.raises(RuntimeError):
                boom("Rome")
    assert (run.status, run.links()) == ("failure", [])
    assert {word for _, _, word in read(caplog)} == {"failed", "stopped"}


def test_summary_of_a_model_recovered_nothing():
    summary = Step(run="run_1", seq=2, call=2, name="chat summary", recovery=Recovery(remedy=Remedy.COMPRESS))
    (line,) = lines(StepEnded(summary))
    assert line.startswith('step.ended tool="chat summary"')


def test_tail_says_how_a_conversation_was_compressed():
    facts = {"by": "model", "tokens_before": 12_237, "tokens_after": 7176}
    step = Step(run="run_1", seq=3, call=1, attempt=2, name="chat", metadata={"compressed": facts})
    assert format_event(StepEnded(step)).endswith(
        "+ chat, attempt 2, 0 ms, compressed 12,237 -> 7,176 tokens, by model"
    )


def test_empty_fields_are_omitted(caplog):
    EventLog("debug")(RunEnded(Run(id="run_1", started_at=1000, ended_at=3500, end_reason="finished")))
    assert caplog.messages == ["run.ended end_reason=finished duration_seconds=2.5 run=run_1"]


@given(st.text())
def test_line_is_one_printable_line_whatever_is_in_it(text):
    step = Step(
        run="r", seq=1, call=1, name=text, outcome="failure", failure=Failure.of(TIMEOUT.kind, text),
        stop=RecoveryStop(reason=text),
    )  # fmt: skip
    change = Change(path=text, operation="enum", before=text, after=text)
    planned = RecoveryPlanned(step, Recovery(remedy=Remedy.REPAIR, changes=(change,), source=text))
    for line in (*lines(StepEnded(step), planned), format_event(StepEnded(step), text)):
        assert line.isprintable()


def test_tail_shows_time_run_agent_and_attempt():
    line = format_event(StepEnded(FAILED), "helper")
    assert line.split("  ")[1:3] == ["run_1", "helper"]
    assert "x search, 250 ms, tool/timeout: it said" in line
    ended = format_event(RunEnded(Run(id="run_1", agent="helper", started_at=1000, ended_at=3500, end_reason="raised")))
    assert ended.endswith(". run raised after 2.5 s")
    step = Step(run="run_1", seq=1, call=1, name="pay", outcome="failure", failure=TIMEOUT, stop=STOP)
    assert format_event(StepEnded(step)).endswith("(unrecovered: the limit of 3 attempts is reached)")
