"""Run, Step, Recovery, Change, Link and Lesson: what is kept, under the same names in Python, store and export."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Sequence
from typing import Any, Literal, TypeVar

import msgspec

from mulligan import forks
from mulligan.failure import Failure, Kind, Remedy

StepType = Literal["plan", "tool", "model", "retrieval", "respond", "custom", "run"]
"""`run` stands for the run itself: a failure that belongs to no step."""
Outcome = Literal["success", "failure", "cancelled", "refused"]
"""`refused` was answered without being made."""
End = Literal["finished", "raised", "abandoned"]
Status = Literal["success", "recovered", "partial", "failure"]
How = Literal["cast", "rename", "drop", "clamp", "enum", "trim", "parse", "wrap", "default", "substitute"]
Origin = Literal["call", "run", "schema", "rule", "memory", "error"]
"""Where a changed value comes from. `error` is a number in an error text: a bound (SAFETY S1), or for a suggestion
what it says was expected."""
LinkMethod = Literal["retry", "repair", "recipe", "agent"]
LinkEvidence = Literal[
    "same_arguments", "same_values", "missing_arguments", "conversation", "attempt",
    "handler", "model_turn", "next_call", "stated_limit", "tool_result", "same_text", "explicit",
]  # fmt: skip
"""Why a success counts as the recovery of a failed call (`mulligan.links`)."""
Effects = Literal["none", "repeatable", "once"]
PatternState = Literal["new", "active", "resolved", "muted"]
"""`new` is seen within one day only, `active` on later ones too; a person says `resolved` and `muted`."""

FixState = Literal["proposed", "promoted", "approved", "demoted", "expired", "paused", "revoked"]
"""A fix is tried without asking only while it is promoted, or approved by an operator (SAFETY S3)."""

LessonState = Literal["proposed", "active", "disabled", "expired"]
"""`active` is in force: proven as a fix is, or approved by a person. Only then is it told to models."""
LessonSource = Literal["learned", "file", "seed"]
LessonVerdict = Literal["approve", "disable", "revoke"]
"""`revoke` takes back the fix beneath it too."""

VERIFY = "verify"
"""The source of a recovery that was a check: it found that the call had worked."""
OPEN = "(another)"
"""In a change that was learned: a value that belongs to its run and is nobody else's."""
REQUOTED = "(requoted)"
"""In a change that was learned: the same text with other quotes or escapes."""
LAST_PART = "(last part)"
"""In a change that was learned: what stands after the last stroke of a path."""
STEP_TYPES: tuple[StepType, ...] = ("plan", "tool", "model", "retrieval", "respond", "custom", "run")


class Record(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """What all records share: they are values, made once, and leave out what is not known."""


class Change(Record, frozen=True, rename={"from_": "from"}):
    """One argument that is not what it was."""

    path: str
    how: How
    before: Any = None
    after: Any = None
    from_: Origin = "call"
    privileged: bool = False
    """Whether the developer declared the argument as privileged or the tool as destructive: its value is not shared."""


class Recovery(Record, frozen=True):
    """What led to an attempt: the move that was made after the one before it failed."""

    remedy: Remedy
    seconds: float = 0.0
    """Waited before the attempt."""
    changes: tuple[Change, ...] = ()
    source: str = ""
    """Who suggested the changes: schema, error, run, memory, rule; `verify` where a check found that it had worked."""
    fix: str | None = None
    confidence: float = 1.0
    first: tuple[str, ...] = ()
    """The calls that were made before the attempt, because a recipe says that they were missing."""


class Ending(Record, frozen=True):
    """Why recovery went no further, and what it left to the model or a person."""

    why: str
    offered: tuple[Recovery, ...] = ()
    """What may work and was not tried: changes that a model or a person can make."""
    spiral: str = ""
    """That the same strategy has failed before in other words, where it has."""


class Step(Record, frozen=True, gc=False):
    """One attempt at a call, with its own clock and its own failure. Made by the thousand, and never part of a ring."""

    run: str
    seq: int
    """Counts from 1 within its run."""
    call: int
    """The seq of the first attempt at the same thing."""
    attempt: int = 1
    parent: int | None = None
    """The seq of the step it happened inside."""
    type: StepType = "tool"
    name: str = ""
    server: str | None = None
    arguments: Any = None
    outcome: Outcome = "success"
    result: Any = None
    started: int = 0
    """UTC milliseconds."""
    seconds: float = 0.0
    failure: Failure | None = None
    after: Recovery | None = None
    ending: Ending | None = None
    """Of the last attempt at a call that was given up."""
    tokens: dict[str, int] | None = None
    metadata: dict[str, Any] | None = None
    sampled: float = 1.0
    """The share of its kind that is kept, so that a kept success can stand for several."""
    effects: Effects | None = None
    """Of a failed attempt: what calls of its tool do, where that is known."""
    key: str | None = None
    """Identity of the tool where its name is not enough: module and qualified name of a Python function."""
    links: tuple[Link, ...] = ()
    """The failed calls that this call issues again, as the recording process judged before redaction."""
    judged: bool = False
    """Of a failed attempt: whether the recording process decides which later call recovers it."""

    @property
    def tool_key(self) -> str:
        """Identity of the tool: its key, its server and name, or its bare name."""
        return self.key or (f"{self.server}/{self.name}" if self.server else self.name)

    @property
    def has_failed(self) -> bool:
        return self.outcome == "failure" and (self.failure is None or self.failure.counts)

    @property
    def is_unmade(self) -> bool:
        """Whether it was planned and waited for, and then not made: `ending` says why."""
        return self.outcome == "cancelled" and self.ending is not None


class Run(Record, frozen=True):
    """A piece of work by an agent. Its status is derived (`mulligan.links.derive_status`), never set."""

    id: str
    agent: str = ""
    version: str | None = None
    environment: str | None = None
    session: str | None = None
    parent: str | None = None
    context: str | None = None
    """What the agent was trying to do."""
    metadata: dict[str, Any] | None = None
    started: int = 0
    ended: int | None = None
    end: End | None = None
    traceparent: str | None = None
    """Which span of another program it was begun under, as that one said (W3C)."""
    withdrawn: tuple[int, ...] = ()
    """Calls whose provisional links turned out to be a loop over items before the run ended."""
    items: dict[str, tuple[str, ...]] | None = None
    """By tool key: arguments in which alone two successful calls of the run differ, so that they name items."""


class Link(Record, frozen=True):
    """A failed call and the later success that overcame it. Both are named by their call."""

    run: str
    failed: int
    overcame: int
    how: LinkMethod
    """`repair` without changes: recovery did something else, such as to shorten the conversation or renew a key."""
    changes: tuple[Change, ...] = ()
    between: tuple[str, ...] = ()
    """The names of what succeeded between them, models apart; for a recipe, what had been missing."""
    evidence: tuple[LinkEvidence, ...] = ()
    """Why both calls have the same intent."""
    provisional: bool = False
    """Whether a later success of the run may still show that a changed argument names an item."""


class Ahead(Record, frozen=True):
    """A call that had to come first, in a recipe."""

    tool: str
    arguments: dict[str, Any] = {}
    """What was the same in nearly every run."""
    open: tuple[str, ...] = ()
    """The names of arguments whose values came from the run."""


class Span(Record, frozen=True):
    """How often a pattern was met in some days, and how often it was overcome."""

    days: int = 0
    met: int = 0
    overcome: int = 0


class Lesson(Record, frozen=True):
    """What overcomes a pattern, in words, with its evidence.

    Its words and its form are kept; its figures and its state are those of the moment in which it is told.
    """

    id: str
    tool: str
    mistake: str
    correction: str
    fingerprint: str = ""
    pattern: str = ""
    kind: str = ""
    error: str = ""
    """What such a failure says, without what varies: somebody's text, and shown as such."""
    failed: str = ""
    """A call that failed: names and closed-class values, nobody's texts."""
    works: str = ""
    """The same call as it works."""
    changes: tuple[Change, ...] = ()
    first: tuple[Ahead, ...] = ()
    fix: str = ""
    """The fix it rests on; empty for one that a person wrote."""
    tried: int = 0
    worked: int = 0
    """In how many runs its correction was tried, and worked."""
    confidence: float = 0.0
    """The lower end of the share that may work, by its record."""
    seen: int = 0
    """How often the pattern was met."""
    agents: dict[str, int] = {}
    """The agents that met it most, with how often."""
    helped: int = 0
    unhelped: int = 0
    """In how many runs the pattern was met after the lesson came into force: overcome by it, and not."""
    before: Span = Span()
    after: Span = Span()
    """The days before it came into force, and those since."""
    state: LessonState = "proposed"
    why: str = ""
    """Why it is not in force."""
    stale: bool = False
    """Whether the tool's schema has changed since it was proven or approved."""
    edited: bool = False
    """Whether a person wrote or changed its words."""
    source: LessonSource = "learned"
    origin: str = ""
    """Where a seed comes from."""
    created: int = 0
    since: int = 0
    """When it came into force; 0 while it never was."""
    last: int = 0
    """When its correction was last tried. UTC milliseconds."""

    @property
    def is_seed(self) -> bool:
        """Whether it came with mulligan, in the words in which it came."""
        return self.source == "seed" and not self.edited

    @property
    def may_be_told(self) -> bool:
        """Whether a model may hear of it at all: it is in use, and was learned under the schema that its tool has."""
        return self.state not in ("disabled", "expired") and not self.stale

    @property
    def is_trusted(self) -> bool:
        """Whether a model may hear of it that did not ask for proposals: it is in force, or came with mulligan."""
        return self.may_be_told and (self.is_seed or self.state == "active")


class Example(Record, frozen=True):
    """A step in which a pattern was met."""

    run: str
    seq: int
    started: int = 0


class Pattern(Record, frozen=True):
    """Failures of one fingerprint and one tool: the same thing going wrong again.

    Its figures include those of the patterns that a person merged into it. `count` is `overcome` and `given_up`
    together, in failed attempts.
    """

    id: str
    tool: str
    fingerprint: str
    kind: str
    server: str | None = None
    message: str = ""
    """As the first one put it."""
    template: str = ""
    """Why these are one: the message with what varies masked, and codes and limits kept."""
    count: int = 0
    overcome: int = 0
    given_up: int = 0
    runs: int = 0
    """How many runs met it."""
    first: int = 0
    last: int = 0
    """UTC milliseconds."""
    agents: dict[str, int] = {}
    """The agents that met it most, with how often."""
    examples: tuple[Example, ...] = ()
    """The newest."""
    days: dict[int, int] = {}
    """How often in each day it was met, by the day's first millisecond; of the time asked about."""
    state: PatternState = "new"
    reopened: int = 0
    """How often it came back after it was resolved."""
    merged: tuple[str, ...] = ()
    """The ids of the patterns merged into it."""


class Compaction(Record, frozen=True):
    """A conversation that was made smaller, by the agent or by recovery."""

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
    known: tuple[str, ...] = ()
    """What its session remembers to have failed before, as the ids of patterns: `repeated_id`."""


class History(Record, frozen=True):
    """A run as it was kept: its steps in order, what overcame what, and when its conversation was made smaller.

    Of the compactions of its session that were before it began, there is the last.
    """

    run: Run
    steps: tuple[Step, ...] = ()
    links: tuple[Link, ...] = ()
    compactions: tuple[Compaction, ...] = ()


class Precedent(Record, frozen=True):
    """Something that overcame the same failure of the same tool before."""

    how: LinkMethod
    changes: tuple[Change, ...] = ()
    between: tuple[str, ...] = ()
    worked: int = 1
    """In how many runs."""
    seen: int = 1
    """In how many runs the failure was met at all."""
    first: tuple[Ahead, ...] = ()
    """Of a recipe that was learned: the calls that had been missing, with what is constant in them."""
    likeness: float = 1.0
    """Less where it overcame a failure that was only alike; 0 where calls that worked merely look like that."""
    tellable: bool = False
    """Whether its values are settings that a model may be told."""


class Fix(Record, frozen=True):
    """What turned a failure of one pattern into a success, and how often that worked."""

    id: str
    tool: str
    fingerprint: str
    sort: Literal["change", "recipe", "retry", "exemplar"] = "change"
    """`exemplar` was never tried: it is drawn from what calls that worked look like."""
    changes: tuple[Change, ...] = ()
    """In closed-class form: which argument, how, and a value only where it is no text of a run."""
    first: tuple[Ahead, ...] = ()
    tried: int = 0
    """In how many runs; each run has one vote."""
    worked: int = 0
    imported: int = 0
    """Those of `tried` that come from imported logs, which prove nothing by themselves."""
    principals: int = 0
    """How many of those who write here saw it work."""
    days: int = 0
    """On how many days it worked."""
    agents: dict[str, int] = {}
    last: int = 0
    """When it was last tried. UTC milliseconds."""
    state: FixState = "proposed"
    why: str = ""
    """Why it is not tried without asking."""
    likeness: float = 1.0
    """How alike the failure asked about and that of the fix are: 1 for the same pattern."""
    exemplars: int = 0
    """The calls that worked of which it is drawn, where it was never tried."""
    key: str = ""
    """Identity of the tool; empty where records know it by a bare name only."""
    tellable: bool = False
    """Whether a model may be told about it."""
    why_untold: str = ""
    """Why not."""


class Replayed(Record, frozen=True):
    """What the rules and the memory of today would have made of a call that failed."""

    run: str
    call: int
    tool: str
    kind: str
    move: Literal["repair", "wait", "suggest", "nothing"] = "nothing"
    """Other arguments or the same call later, by itself; something to tell the model; or neither."""
    agrees: bool | None = None
    """Whether that is what then worked; None where nothing did, so that the record cannot tell."""
    source: str = ""
    fix: str | None = None
    confidence: float = 0.0
    why: str = ""
    """Why nothing would have been done by itself."""
    overcome: bool = False
    """Whether it was overcome all the same, by whomever."""
    seconds: float = 0.0
    """What the move would have taken: the wait, and a call as long as the one that then worked."""
    saved: float = 0.0
    """Seconds from the failure until it was overcome, where the move agrees."""
    calls: int = 0
    """Calls that were made meanwhile, the one that overcame it included."""
    tokens: int = 0
    """Of these calls, where they are known."""


_LETTERS = bytes(b"abcdefghijklmnopqrstuvwxyz234567"[byte % 32] for byte in range(256))
_FEW, _MANY = 64, 4096
_ALIKE, _OWN = 2, 14
"""Letters that ids have in common which were drawn together, and those that are each one's own."""
_ids: list[str] = []
"""Drawn and not used yet: every call outside a run needs an id, and a system call for each would take long."""
_drawn = 0
"""How many were drawn last."""


drawn_id = _ids.pop
"""The id of a run that is drawn already; raises an IndexError where there is none, and then `new_id` draws more."""


def new_id(prefix: str = "run") -> str:
    """`run_` and 16 base32 characters: 80 bits, so that processes need not agree on anything."""
    try:
        id = _ids.pop()
    except IndexError:
        id, *others = _draw()
        _ids.extend(others)
    return id if prefix == "run" else prefix + id[3:]


def _draw() -> list[str]:
    """Twice as many each time. A system call lets go of the interpreter's lock for a moment, and whoever waits for that
    lock begins to count its five milliseconds anew: a host that needs many ids would let no other thread have it.

    Those that are drawn together begin alike: they are kept together, and so touch a few pages of an index, not each
    its own. The rest is enough to tell them apart, and enough of it in the few letters that people see.
    """
    global _drawn
    _drawn = min(max(_FEW, 2 * _drawn), _MANY)
    letters = os.urandom(_ALIKE + _OWN * _drawn).translate(_LETTERS).decode()
    alike = letters[:_ALIKE]
    return [f"run_{alike}{letters[start : start + _OWN]}" for start in range(_ALIKE, len(letters), _OWN)]


forks.renew(_ids.clear)  # or a child would draw what its parent draws


def repeated_id(step: Step) -> str:
    """What a failure has in common with itself when it is met again: its pattern, or its kind where it has none."""
    failure = step.failure
    return pattern_id(step.name, (failure.fingerprint or str(failure.kind)) if failure else "")


def pattern_id(tool: str, fingerprint: str) -> str:
    """`pat_` and 12 digits, the same in every store."""
    said = f"{fingerprint}\n{tool}".encode("utf-8", "surrogatepass")
    return f"pat_{digest(said, 6).hex()}"


def fix_id(tool: str, fingerprint: str, form: object) -> str:
    """`fix_` and 12 digits, the same in every store."""
    said = f"{fingerprint}\n{tool}\n".encode("utf-8", "surrogatepass") + encode(form)
    return f"fix_{digest(said, 6).hex()}"


def digest(said: bytes, size: int) -> bytes:
    """So many bytes that only this has; blake2b."""
    made: bytes = _blake2b()(said, digest_size=size).digest()
    return made


@functools.cache
def _blake2b() -> Callable[..., Any]:
    """On the first failure, not on import."""
    try:
        from _blake2 import blake2b  # hashlib would load OpenSSL too, and take as long as a hook takes to classify
    except ImportError:
        from hashlib import blake2b

    return blake2b


def lesson_id(tool: str, key: str) -> str:
    """`les_` and 12 digits, the same in every store. The key is the fix it rests on, or the name of its file."""
    from hashlib import blake2b  # only consolidation and files come here

    said = f"{key}\n{tool}".encode("utf-8", "surrogatepass")
    return f"les_{blake2b(said, digest_size=6).hexdigest()}"


T = TypeVar("T")

_encoder = msgspec.json.Encoder(enc_hook=str)  # a Kind is a str of its own class, which msgspec asks about


def encode(record: object) -> bytes:
    """A record, or anything made of records, as JSON."""
    return _encoder.encode(record)


encode_into = _encoder.encode_into
"""The same into a bytearray, in the place of what was in it."""


def decode(data: bytes | str, type: type[T]) -> T:
    return msgspec.json.decode(data, type=type, dec_hook=_decode_kind)


def decoder(type: type[T]) -> Callable[[bytes | str], T]:
    """The same for many of one type, which it need not look up each time."""
    return msgspec.json.Decoder(type, dec_hook=_decode_kind).decode


def builtins(record: object) -> Any:
    """The same facts as `encode`, as dictionaries and lists."""
    return msgspec.json.decode(encode(record))


def _decode_kind(type: type, value: Any) -> Any:
    if type is Kind:
        if not isinstance(value, str):
            raise ValueError(f"Expected `str`, got `{value.__class__.__name__}`")
        return Kind.named(value)
    raise NotImplementedError(f"no decoding for {type}")


def ordered(steps: Sequence[Step]) -> list[Step]:
    return sorted(steps, key=lambda step: step.seq)
