"""The records: Run, Step, Recovery, Change, Link, Lesson and others, with the same field names in store and export."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from mulligan.core import fork_safety
from mulligan.core.failure import Failure, Kind, Remedy

try:
    from _blake2 import blake2b  # hashlib would also load OpenSSL, which takes as long as the rest of this import
except ImportError:
    from hashlib import blake2b

StepType = Literal["plan", "tool", "model", "retrieval", "respond", "custom", "run", "reflection"]
"""`run` stands for the run itself: a failure that belongs to no step. `reflection` is one request to the reflector: no
call of the agent, so it neither recovers a call nor counts as one."""
Outcome = Literal["success", "failure", "cancelled", "blocked"]
"""`blocked` means that mulligan answered without executing the call."""
EndReason = Literal["finished", "raised", "abandoned"]
Status = Literal["success", "recovered", "partial", "failure"]
ChangeOperation = Literal["cast", "rename", "drop", "clamp", "enum", "trim", "parse", "wrap", "default", "substitute"]
BoundSide = Literal["", "at most", "at least"]
ValueSource = Literal["call", "run", "schema", "rule", "memory", "error", "reflection"]
"""Where a changed value comes from. `error` is a number in an error text: a bound (SAFETY S1), or for a suggestion the
value that the error text expects. `reflection` is a value that only the reflector supplies."""
LinkMethod = Literal["retry", "repair", "prerequisite", "agent"]
LinkEvidence = Literal[
    "same_arguments", "same_values", "missing_arguments", "conversation", "attempt",
    "handler", "model_turn", "next_call", "stated_limit", "tool_result", "same_text", "explicit",
]  # fmt: skip
"""Why a success counts as the recovery of a failed call (`mulligan.core.links`)."""
Effects = Literal["none", "idempotent", "once"]
PatternState = Literal["new", "active", "resolved", "muted"]
PatternStatus = Literal["new", "active", "resolved", "muted", "acknowledged", "regressed"]
"""`new` occurred on one day only, `active` on several. An operator sets `resolved` and `muted`."""

FixState = Literal["proposed", "promoted", "approved", "demoted", "expired", "paused", "revoked"]
"""A fix is applied automatically only while it is promoted, or approved by an operator (SAFETY S3)."""

LessonState = Literal["proposed", "active", "disabled", "expired"]
"""`active` lessons are proven like a promoted fix, or approved by a person. Only these are shown to models."""
LessonSource = Literal["learned", "file", "seed"]
LessonVerdict = Literal["approve", "disable", "revoke"]
"""`revoke` also revokes the fix that the lesson is based on."""

FIRST_FAILURE_SEQ = 2**30
"""First step number for failures that a server receives without a step, above all regular step numbers."""
VERIFY = "verify"
"""The source of a recovery in which `verify` found that the call had executed."""
PROGRAM = "program"
"""The source of a recovery by the recorded program itself: mulligan only joined its attempts."""
WAIT_METADATA = "waiting"
"""In the metadata of a failed attempt: the target that is down, and when its next probe was due."""
RUN_SPECIFIC = "(another)"
"""In a learned change: stands for a value specific to its run, which is not shared."""
HIDDEN_VALUE = "(hidden)"
"""In a learned change: stands for a value that redaction level `shared` does not store."""
REQUOTED = "(requoted)"
"""In a learned change: the same text with other quotes or escapes."""
LAST_PATH_SEGMENT = "(last part)"
"""In a learned change: the part of a path after the last slash."""
FORM_PREFIX = "(form) "
"""In a learned change: a transformation of the call's own value, as characters of the value, `|` and the name of it."""
STEP_TYPES: tuple[StepType, ...] = ("plan", "tool", "model", "retrieval", "respond", "custom", "run", "reflection")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """Base class of records: immutable values that omit defaults when encoded."""


class Change(Record, frozen=True):
    """One edit of one argument."""

    path: str
    operation: ChangeOperation
    before: Any = None
    after: Any = None
    source: ValueSource = "call"
    privileged: bool = False
    """Whether the developer declared the argument as privileged or the tool as destructive: its value is not shared."""
    bound: BoundSide = ""
    """In a learned change: whether the value replaced several larger numbers, or several smaller ones."""

    @property
    def form(self) -> str:
        """The name of the transformation that a learned change applies to the call's own value; empty for others."""
        is_form = isinstance(self.after, str) and self.after.startswith(FORM_PREFIX)
        return self.after.removeprefix(FORM_PREFIX).partition("|")[2] if is_form else ""


class Recovery(Record, frozen=True):
    """The recovery action before an attempt."""

    remedy: Remedy
    backoff_seconds: float = 0.0
    """Delay before the attempt."""
    changes: tuple[Change, ...] = ()
    source: str = ""
    """The origin of the changes: schema, error, run, memory, rule or reflection; `verify` if a check found that the
    call had executed, `program` if the recorded program repeated the call itself."""
    fix_id: str | None = None
    confidence: float = 1.0
    prerequisites: tuple[str, ...] = ()
    """Prerequisite calls that were made before the attempt."""


class RecoveryStop(Record, frozen=True):
    """Why recovery made no further attempt, and the suggestions that remain."""

    reason: str
    suggestions: tuple[Recovery, ...] = ()
    """Repairs that were not attempted, for a model or a person to make."""
    spiral: str = ""
    """Note about a strategy that failed repeatedly with varied arguments, if any."""


TOKEN_PARTS = frozenset({"cached_input", "cache_write", "cache_write_1h", "audio_input", "reasoning", "audio_output"})
"""Token counts that are parts of `input` or `output`."""


def count_tokens(tokens: Mapping[str, int]) -> int:
    """Return the sum of the counts. Parts of the input and the output are not counted again."""
    return sum(count for name, count in tokens.items() if name not in TOKEN_PARTS)


class SuspectedFailure(Record, frozen=True):
    """What looks like a tool's own failure in a result that does not say so. It has no effect on the run's status."""

    kind: str
    """The name of the kind that it would have, such as `tool/permission_denied`."""
    confidence: float = 0.0
    """How sure it is that the call failed, from 0 to 1."""
    sentence: str = ""
    """The part of the result that looks like a failure. Untrusted text: quote it when shown."""


class AvoidedTurn(Record, frozen=True):
    """A model turn that was not needed because recovery corrected a tool call: its conversation, sent once more."""

    model: str = ""
    input_tokens: int = 0
    cost_nanos: int | None = None
    """Billionths of a US dollar; None if unknown."""


class Step(Record, frozen=True, gc=False):
    """One attempt of a call. Excluded from garbage collection: there are many, and none is part of a cycle."""

    run: str
    seq: int
    """Number within its run, from 1."""
    call: int
    """The seq of the first attempt of the same call."""
    attempt: int = 1
    parent: int | None = None
    """The seq of the enclosing step."""
    type: StepType = "tool"
    name: str = ""
    server: str | None = None
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    started_at: int = 0
    """UTC milliseconds."""
    duration_seconds: float = 0.0
    failure: Failure | None = None
    recovery: Recovery | None = None
    stop: RecoveryStop | None = None
    """Set on the last attempt of an unrecovered call."""
    tokens: dict[str, int] | None = None
    """Token counts by name: `input` and `output`, and their parts (`TOKEN_PARTS`)."""
    metadata: dict[str, Any] | None = None
    sample_rate: float = 1.0
    """The share of such steps that is stored: each stored success represents 1 / `sample_rate` calls."""
    effects: Effects | None = None
    """The declared side effects of the tool, on failed attempts where known."""
    key: str | None = None
    """Identity of the tool if its name is not unique: module and qualified name of a Python function."""
    links: tuple[Link, ...] = ()
    """Links from earlier failed calls to this one, as judged by the recording process before redaction. A success
    recovers them; a failed attempt only repeats them."""
    links_decided: bool = False
    """Whether the recording process decides which later call recovers this failed attempt."""
    cost_nanos: int | None = None
    """The cost of the tokens in billionths of a US dollar, by the prices when it was recorded; None if unknown."""
    avoided: AvoidedTurn | None = None
    """The model turn that this recovered call made unnecessary."""
    messages: tuple[tuple[int, int], ...] = ()
    """Of a model that records conversations: the messages that it received, as ranges of their numbers in the run."""
    answer: int | None = None
    """The number of the message that it answered."""
    within_recovery: bool = False
    """Whether a model was called by an attempt that served recovery, for example by the second attempt of a tool."""
    suspected: SuspectedFailure | None = None
    """What looks like a failure in the result of a success."""

    @property
    def model(self) -> str | None:
        """The model that was called, if known. For other steps, the one in the metadata."""
        name = self.metadata.get("model") if self.metadata else None
        if name is None and self.type == "model" and isinstance(self.arguments, dict):
            name = self.arguments.get("model")
        return name if isinstance(name, str) else None

    @property
    def may_have_cost(self) -> bool:
        """Whether the step has tokens or a cost, its own or one that it avoided."""
        return bool(
            self.tokens or self.avoided or self.cost_nanos is not None or (self.metadata and "cost" in self.metadata)
        )

    @property
    def is_summary(self) -> bool:
        """Whether a model summarized a text for a compression. That is a call of its own, which recovered nothing."""
        return self.attempt == 1 and self.recovery is not None and self.recovery.remedy is Remedy.COMPRESS

    @property
    def serves_recovery(self) -> bool:
        """Whether a failure was the reason for the attempt: a later attempt, a reflection, or a summary by a model.

        So are the models that such an attempt calls.
        """
        return self.attempt > 1 or self.is_summary or self.within_recovery or self.type == "reflection"

    @property
    def token_count(self) -> int:
        return count_tokens(self.tokens) if self.tokens else 0

    @property
    def tool_key(self) -> str:
        """Identity of the tool: its key, its server and name, or its bare name."""
        return self.key or (f"{self.server}/{self.name}" if self.server else self.name)

    @property
    def has_failed(self) -> bool:
        return self.outcome == "failure" and (self.failure is None or self.failure.is_failure)

    def with_failure(self, failure: Failure) -> Step:
        """Return the step with a failure that was recorded for it, which may have ended before.

        A success becomes a failed step. A failure that is none, such as a rejection, changes no failed step.
        """
        if self.has_failed:
            return msgspec.structs.replace(self, failure=failure) if failure.is_failure else self
        outcome: Outcome = "failure" if failure.is_failure else "cancelled" if failure.kind.is_cancelled else "blocked"
        return msgspec.structs.replace(self, failure=failure, outcome=outcome)

    @property
    def is_skipped(self) -> bool:
        """Whether a planned attempt was cancelled before execution. `stop` has the reason."""
        return self.outcome == "cancelled" and self.stop is not None


class MessagePart(Record, frozen=True):
    """One part of a recorded message."""

    type: Literal["text", "call", "result", "reasoning", "other"] = "text"
    text: str = ""
    """What was written, or what the tool returned; of a part without text, such as an image, its type and size."""
    name: str = ""
    """The tool that is called, or whose result it is."""
    arguments: Any = None
    """The arguments of the call."""
    is_error: bool = False
    """Whether the result is declared to be an error."""


class RecordedMessage(Record, frozen=True):
    """One message of a conversation. A store has equal messages once."""

    role: str
    """system, user, assistant or tool."""
    parts: tuple[MessagePart, ...] = ()
    number: int = 0
    """Number within its run, from 1. Not part of the content."""


ANY_FIX = "*"
"""Stands in `Link.advice` for advice about a tool that names no single fix, as of a person or a reminder."""
QUERY_TOOLS = ("suggest_fix", "known_failures")
"""Tools of mulligan's MCP server. Their answers may tell any fix."""
MAX_ADVISED_FIX_RECORDS = 100
"""Fixes told or held out that a run stores, the latest."""


class AdvisedFix(Record, frozen=True):
    """A learned fix for a failed call, which the model read or which was held out; or other help (`core.holdout`)."""

    call: int
    """The failed call; 0 for help that belongs to none."""
    fix: str
    held_out: bool = False
    """Whether the model was not told, so that the effect of the fix can be measured."""


class Run(Record, frozen=True):
    """One piece of work by an agent.

    Its status is not part of it: `links.derive_status` derives it from the steps, and a store caches it.
    """

    id: str
    agent: str = ""
    version: str | None = None
    environment: str | None = None
    session: str | None = None
    parent: str | None = None
    context: str | None = None
    """The task of the agent."""
    metadata: dict[str, Any] | None = None
    started_at: int = 0
    ended_at: int | None = None
    end_reason: EndReason | None = None
    traceparent: str | None = None
    """The parent span in another program, from its `traceparent` header (W3C)."""
    withdrawn: tuple[int, ...] = ()
    """Calls whose provisional links turned out to be a loop over items before the run ended."""
    items: dict[str, tuple[str, ...]] | None = None
    """By tool key: arguments that name items, because two successful calls differ in that argument alone."""
    cut_off: tuple[int, ...] = ()
    """Calls that were cancelled while the run went on, and not made again."""
    advice: tuple[AdvisedFix, ...] = ()
    """The learned fixes that memory had for failed calls, the latest."""


class Link(Record, frozen=True):
    """A recovery link: a failed call and the later success that recovered it, by their call numbers."""

    run: str
    failed_call: int
    recovering_call: int
    method: LinkMethod
    """`repair` without changes means another recovery action, such as compression or a refreshed key; `agent` without
    changes, that the conversation continued or that another command came first."""
    changes: tuple[Change, ...] = ()
    intermediate_tools: tuple[str, ...] = ()
    """Tools that succeeded between the two calls, models excluded; for a prerequisite, the missing calls."""
    evidence: tuple[LinkEvidence, ...] = ()
    """Why both calls have the same intent."""
    provisional: bool = False
    """Whether a later success of the run may still show that a changed argument names an item."""
    advice: tuple[str, ...] = ()
    """The fixes that the run was told about the tool, by id; `ANY_FIX` if it is unknown which."""
    possible: bool = False
    """Whether it is unknown if both calls have the same intent. Such a link recovers nothing; if it recurs in other
    runs, it teaches."""


class Prerequisite(Record, frozen=True):
    """A call that must succeed before another."""

    tool: str
    arguments: dict[str, Any] = {}
    """Arguments that were the same in nearly every run."""
    variable_arguments: tuple[str, ...] = ()
    """Names of arguments whose values are specific to a run."""


class PatternPeriod(Record, frozen=True):
    """The occurrences and recoveries of a pattern over some days."""

    days: int = 0
    occurrences: int = 0
    recovered: int = 0


class Lesson(Record, frozen=True):
    """A fix in words: mistake, correction and evidence.

    Text and action are stored. Counts and state are computed when the lesson is read.
    """

    id: str
    tool: str
    mistake: str
    correction: str
    fingerprint: str = ""
    pattern: str = ""
    kind: str = ""
    error: str = ""
    """The message template of such failures. Untrusted text: quote it when shown."""
    failing_example: str = ""
    """A failing call, with names and shareable values only."""
    working_example: str = ""
    """The same call as it succeeds."""
    changes: tuple[Change, ...] = ()
    prerequisites: tuple[Prerequisite, ...] = ()
    fix_id: str = ""
    """The fix that the lesson is based on; empty for a lesson that a person wrote."""
    trials: int = 0
    successes: int = 0
    """In how many runs the correction was tried, and succeeded."""
    followed: int = 0
    """In how many runs it succeeded after a model had read it."""
    confidence: float = 0.0
    """Lower bound of the success rate."""
    occurrences: int = 0
    """How often the pattern occurred."""
    agents: dict[str, int] = {}
    """The agents with the most occurrences."""
    helped_runs: int = 0
    unhelped_runs: int = 0
    """Runs with the pattern since the lesson became active: recovered by it, and not."""
    stats_before: PatternPeriod = PatternPeriod()
    stats_after: PatternPeriod = PatternPeriod()
    """The pattern before the lesson became active, and since."""
    state: LessonState = "proposed"
    reason: str = ""
    """Why the lesson is not active."""
    stale: bool = False
    """Whether the tool's schema has changed since the lesson was proven or approved."""
    edited: bool = False
    """Whether a person wrote or changed the text."""
    source: LessonSource = "learned"
    origin: str = ""
    """The source of a seed lesson."""
    created_at: int = 0
    active_since: int = 0
    """When the lesson became active; 0 if it never was."""
    last_tried_at: int = 0
    """When its correction was last tried. UTC milliseconds."""

    @property
    def is_seed(self) -> bool:
        """Whether it is an unedited seed lesson."""
        return self.source == "seed" and not self.edited

    @property
    def can_show_to_model(self) -> bool:
        """Whether it may be shown to a model: it is enabled and matches the current schema of its tool."""
        return self.state not in ("disabled", "expired") and not self.stale

    @property
    def is_trusted(self) -> bool:
        """Whether it is shown without `include_proposed`: it is active, or a seed lesson."""
        return self.can_show_to_model and (self.is_seed or self.state == "active")


class Example(Record, frozen=True):
    """A step in which a pattern occurred."""

    run: str
    seq: int
    started_at: int = 0


class PatternEvent(Record, frozen=True):
    """What a person did with a pattern."""

    at: int
    by: str
    action: str
    text: str = ""
    """The comment, owner, link, version or other pattern."""


class Pattern(Record, frozen=True):
    """All failures of one tool with one fingerprint.

    Counts include those of merged patterns. `occurrences` is the sum of `recovered` and `unrecovered`, in failed
    attempts.
    """

    id: str
    tool: str
    fingerprint: str
    kind: str
    server: str | None = None
    message: str = ""
    """The message of the first occurrence."""
    template: str = ""
    """The message template: variable parts masked, codes and limits unchanged."""
    occurrences: int = 0
    recovered: int = 0
    unrecovered: int = 0
    runs: int = 0
    """The number of runs with this pattern."""
    first_seen_at: int = 0
    last_seen_at: int = 0
    """UTC milliseconds."""
    agents: dict[str, int] = {}
    """The agents with the most occurrences."""
    examples: tuple[Example, ...] = ()
    """The latest examples."""
    days: dict[int, int] = {}
    """Occurrences per day of the query's period, by the first millisecond of the day."""
    state: PatternState = "new"
    reopened: int = 0
    """How often it occurred again after it was resolved."""
    resolved_at: int = 0
    """When it was last resolved, in UTC milliseconds; 0 if it was not, or was reopened by a person."""
    merged: tuple[str, ...] = ()
    """The ids of the patterns merged into it."""
    note: str = ""
    """A note of people: what is known, who takes care."""
    owner: str = ""
    """The person or team that takes care."""
    link: str = ""
    """Address of its issue in a tracker."""
    acknowledged: bool = False
    resolved_version: str = ""
    """The version in which it is resolved. Occurrences in older versions do not reopen it."""
    regressed_at: int = 0
    """When it occurred again after it was resolved; 0 if it did not, or was decided about since."""
    regressed_version: str = ""
    """The version in which it did."""
    muted_until: int | None = None
    muted_max_per_day: int | None = None
    """It is muted until this time, or while it occurs at most so often per day."""
    history: tuple[PatternEvent, ...] = ()
    """Decisions and comments of people, the newest first; with the details of one pattern only."""

    @property
    def status(self) -> PatternStatus:
        """The state, or `acknowledged` or `regressed` if it is open."""
        if self.state in ("resolved", "muted"):
            return self.state
        return "acknowledged" if self.acknowledged else "regressed" if self.regressed_at else self.state


CompressionVerb = Literal["summarized", "cut", "dropped", "rewritten"]


class CompressionAction(Record, frozen=True):
    """What compression did to a message, or to a range of messages."""

    action: CompressionVerb
    message: int
    """Index of the first message in the original conversation, from 0."""
    messages: int = 1
    """How many messages."""
    tool: str = ""
    """The tool whose result it was, if known."""
    tokens_before: int = 0
    tokens_after: int = 0


class Compaction(Record, frozen=True):
    """A conversation that was shortened, by the agent's host (compaction) or by mulligan (compression)."""

    run: str | None = None
    session: str | None = None
    at: int = 0
    """UTC milliseconds."""
    attempt: int = 0
    reason: str = ""
    steps: int = 0
    chars_before: int | None = None
    chars_after: int | None = None
    tokens_before: int | None = None
    tokens_after: int | None = None
    known_failures: tuple[str, ...] = ()
    """Failures that the session has tracked before, as pattern ids: `failure_identity`."""
    actions: tuple[CompressionAction, ...] = ()
    """What mulligan did to which messages."""


class History(Record, frozen=True):
    """The stored history of a run: steps in order, recovery links and compactions.

    Of the session's compactions before the run, only the last is included.
    """

    run: Run
    steps: tuple[Step, ...] = ()
    links: tuple[Link, ...] = ()
    compactions: tuple[Compaction, ...] = ()
    messages: tuple[RecordedMessage, ...] = ()
    """The recorded messages by number. Lists of runs leave them out."""

    @property
    def links_by_call(self) -> dict[int, Link]:
        """The recovery links by the failed call."""
        return {link.failed_call: link for link in self.links}


class ValueProfile(Record, frozen=True):
    """What the values of one argument had in common in recent successful calls of a tool. It has no text of a run."""

    argument: str
    """The path of the argument: `days`, or `request.days` inside an object."""
    calls: int
    """Successful calls with the argument."""
    runs: int
    """Runs with these calls."""
    always_given: bool = False
    """Whether every successful call had the argument."""
    type: str = ""
    """The JSON type of all values; empty if they differ."""
    format: str = ""
    """The format of all texts: date, time, date-time or uuid."""
    minimum: float | None = None
    maximum: float | None = None
    """Lowest and highest number, if the numbers repeat. Numbers that are all different may be identifiers."""
    values: tuple[str, ...] = ()
    """All texts, if they are few words that repeat, such as enum members."""
    min_length: int | None = None
    max_length: int | None = None
    """Length of texts in characters, or of lists in items."""


class Precedent(Record, frozen=True):
    """What recovered the same failure of the same tool in earlier runs."""

    method: LinkMethod
    changes: tuple[Change, ...] = ()
    intermediate_tools: tuple[str, ...] = ()
    successes: int = 1
    """The number of runs in which it recovered the failure."""
    occurrences: int = 1
    """The number of runs with the failure."""
    prerequisites: tuple[Prerequisite, ...] = ()
    """The prerequisites, with their constant arguments."""
    similarity: float = 1.0
    """Below 1 for a similar failure; 0 if derived from exemplars."""
    shareable: bool = False
    """Whether its values may be shown to a model."""
    fix: str = ""
    """The id of the fix."""
    forms: tuple[tuple[str, str], ...] = ()
    """Arguments whose value is another form of the call's own one, each with the name of the transformation."""
    followed: int = 0
    """The number of runs in which it succeeded after a model had read it."""


SHOWN_ONLY_TO = "shown only to "
"""Start of a reason why only some agents see a fix."""


class Fix(Record, frozen=True):
    """What turned a pattern's failure into a success, with its trials."""

    id: str
    tool: str
    fingerprint: str
    type: Literal["change", "prerequisite", "retry", "exemplar"] = "change"
    """An `exemplar` was never tried: it is derived from successful calls."""
    changes: tuple[Change, ...] = ()
    """The changes in shareable form: path, operation, and a value only if it is not text of a run."""
    prerequisites: tuple[Prerequisite, ...] = ()
    trials: int = 0
    """The number of runs that tried it; each run has one vote."""
    successes: int = 0
    followed: int = 0
    """The part of `successes` after the model had read the fix."""
    passed_over: int = 0
    """The number of runs in which a model had read it, and something else succeeded. Of the latest runs."""
    imported: int = 0
    """The part of `trials` from imported logs, which do not count towards promotion."""
    principals: int = 0
    """The number of principals for whom it succeeded."""
    days: int = 0
    """The number of days on which it succeeded."""
    agents: dict[str, int] = {}
    last_tried_at: int = 0
    """When it was last tried. UTC milliseconds."""
    state: FixState = "proposed"
    reason: str = ""
    """Why it is not applied automatically."""
    similarity: float = 1.0
    """Similarity of the query's failure and the fix's failure: 1 for the same pattern."""
    exemplars: int = 0
    """The number of successful calls that it is derived from, if it was never tried."""
    key: str = ""
    """Identity of the tool; empty if the records only have its name."""
    showable: bool = False
    """Whether it may be shown to a model."""
    hidden_reason: str = ""
    """Why it may not be shown, or only to some agents."""

    @property
    def is_partly_shown(self) -> bool:
        """Whether only agents whose own experience it is see it."""
        return self.hidden_reason.startswith(SHOWN_ONLY_TO)


class ReplayResult(Record, frozen=True):
    """The action that current rules and memory would take for a recorded failed call."""

    run: str
    call: int
    tool: str
    kind: str
    move: Literal["repair", "retry", "suggest", "nothing"] = "nothing"
    """Changed arguments, or the same call after a backoff, both automatic; a suggestion to the model; or no action."""
    agrees: bool | None = None
    """Whether the action matches the call that recovered the failure; None if nothing did."""
    source: str = ""
    fix_id: str | None = None
    confidence: float = 0.0
    reason: str = ""
    """Why no action would be automatic."""
    recovered: bool = False
    """Whether the failure was recovered by any means."""
    seconds: float = 0.0
    """Estimated duration of the action: the backoff, and a call as long as the recovering one."""
    saved_seconds: float = 0.0
    """Seconds from the failure to its recovery, if the action matches."""
    calls: int = 0
    """Calls made between failure and recovery, including the recovering one."""
    tokens: int = 0
    """Tokens of these calls, where known."""


_LETTERS = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in range(256))
_MIN_POOLED_IDS, _MAX_POOLED_IDS = 64, 4096
_SHARED_ID_CHARS, _UNIQUE_ID_CHARS = 2, 14
"""Characters that ids of one batch share, and random characters per id."""
_id_pool: list[str] = []
"""Unused ids. A system call for every id would be too slow: each standalone call needs one."""
_pool_size = 0
"""The size of the last batch."""


pooled_run_id = _id_pool.pop
"""Take a run id from the pool. Raises IndexError if it is empty; then call `new_id`, which refills it."""


def new_id(prefix: str = "run") -> str:
    """Return `run_` and 16 base32 characters: 80 bits, unique without coordination between processes."""
    try:
        id = _id_pool.pop()
    except IndexError:
        id, *others = _draw_ids()
        _id_pool.extend(others)
    return id if prefix == "run" else prefix + id[3:]


def _draw_ids() -> list[str]:
    """Draw a batch of ids, twice as large each time.

    A system call releases the GIL, and the next thread waits its switch interval again. With a system call per id, a
    busy program would starve other threads.

    Ids of one batch share a prefix, so that they are stored on few index pages. The remaining characters keep them
    unique, and distinguishable by the few characters that are displayed.
    """
    global _pool_size
    _pool_size = min(max(_MIN_POOLED_IDS, 2 * _pool_size), _MAX_POOLED_IDS)
    letters = os.urandom(_SHARED_ID_CHARS + _UNIQUE_ID_CHARS * _pool_size).translate(_LETTERS).decode()
    shared_prefix = letters[:_SHARED_ID_CHARS]
    return [
        f"run_{shared_prefix}{letters[start : start + _UNIQUE_ID_CHARS]}"
        for start in range(_SHARED_ID_CHARS, len(letters), _UNIQUE_ID_CHARS)
    ]


fork_safety.run_in_child(_id_pool.clear)  # a child would otherwise use the same ids as its parent


def message_numbers(step: Step) -> list[int]:
    """Return the numbers of the messages that a model received, in order."""
    numbers: list[int] = []
    for first, last in step.messages:
        # Messages of one step that are read: a step of another program may state any range.
        numbers += range(first, min(last, first + 100_000 - len(numbers) - 1) + 1)
    return numbers


def failure_identity(step: Step) -> str:
    """Return the identity of a failure across repetitions: its pattern, or its kind if it has no fingerprint."""
    failure = step.failure
    return pattern_id(step.name, (failure.fingerprint or str(failure.kind)) if failure else "")


def pattern_id(tool: str, fingerprint: str) -> str:
    """Return `pat_` and 12 hex digits, the same in every store."""
    content = f"{fingerprint}\n{tool}".encode("utf-8", "surrogatepass")
    return f"pat_{digest(content, 6).hex()}"


def fix_id(tool: str, fingerprint: str, form: object) -> str:
    """Return `fix_` and 12 hex digits, the same in every store."""
    content = f"{fingerprint}\n{tool}\n".encode("utf-8", "surrogatepass") + encode(form)
    return f"fix_{digest(content, 6).hex()}"


def digest(content: bytes, size: int) -> bytes:
    """Return a blake2b digest of this size."""
    return blake2b(content, digest_size=size).digest()


def lesson_id(tool: str, key: str) -> str:
    """Return `les_` and 12 hex digits, the same in every store. The key is the id of its fix or the name of its
    file."""
    content = f"{key}\n{tool}".encode("utf-8", "surrogatepass")
    return f"les_{digest(content, 6).hex()}"


T = TypeVar("T")

_encoder = msgspec.json.Encoder(enc_hook=str)  # the hook handles Kind, a subclass of str, which msgspec does not encode


def encode(record: object) -> bytes:
    """Encode a record, or a structure of records, as JSON."""
    return _encoder.encode(record)


"""Encode into a bytearray, replacing its content."""


def decode(data: bytes | str, type: type[T]) -> T:
    decoder = _decoders.get(type)
    if decoder is None:
        decoder = _decoders[type] = build_decoder(type, _decode_kind)
    record: T = decoder.decode(data)
    return record


def build_decoder(type: Any, dec_hook: Callable[[Any, Any], Any] | None = None) -> msgspec.json.Decoder[Any]:
    """Build a decoder in one thread at a time: msgspec 0.22 crashes if two threads use a struct first at once."""
    with fork_safety.import_lock:
        return msgspec.json.Decoder(type, dec_hook=dec_hook)


_decoders: dict[Any, msgspec.json.Decoder[Any]] = {}
"""Decoders by type. To build one for a union of records takes many times as long as to decode one."""


def to_builtins(record: object) -> Any:
    """Convert a record to dictionaries and lists, with the fields of `encode`."""
    return msgspec.json.decode(encode(record))


def _decode_kind(type: type, value: Any) -> Any:
    if type is Kind:
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{value.__class__.__name__}`")
        return Kind.from_name(value)
    raise NotImplementedError(f"No decoder for {type}")


def sort_steps(steps: Sequence[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: step.seq)
