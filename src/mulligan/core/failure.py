"""Failure, Kind and Remedy: what failed and which action can help; and the errors of mulligan itself."""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from mulligan.redaction import quote_untrusted, strip_quote_marks
from mulligan.redaction.regex import LazyRegex

if TYPE_CHECKING:
    from mulligan.redaction import Redactor


class Remedy(enum.Enum):
    """The next action that can help."""

    RETRY = "retry"
    """Repeat the same call after a backoff."""
    REPAIR = "repair"
    """Repeat the call with changed arguments, which mulligan may derive."""
    COMPRESS = "compress"
    """Shorten the conversation and resend it."""
    REPLAN = "replan"
    """Return the failure to the model, which must act differently."""
    STOP = "stop"
    """Stop: a person must act."""


class TookEffect(enum.Enum):
    """Whether the failed call executed."""

    NO = "no"
    YES = "yes"
    UNKNOWN = "unknown"


ToolCategory = Literal[
    "shell", "file", "fetch", "search", "sql", "browser", "code", "message", "action", "model", "other"
]
Returns = Literal["content", "status"]
"""What the result of a tool is: data such as a file, whatever its words say, or a report about the call."""
DetectErrors = bool | Literal["text"]
"""Which results are failures: by what they state and the category of the tool, none, or by their words too."""


DEFAULT_HINTS = {
    Remedy.RETRY: "Retry later, or continue without it.",
    Remedy.REPAIR: "Correct the arguments as the message says, then repeat the call.",
    Remedy.COMPRESS: "Shorten the conversation, then retry.",
    Remedy.REPLAN: "Read the message and choose a different approach.",
    Remedy.STOP: "A retry cannot help. Report the failure: a person must act.",
}
"""Hints for kinds that are declared without one."""


def to_code(code: object) -> str:
    """Return an error code as a plain string. A member of an enum is its text, or its name if it has another value."""
    if isinstance(code, enum.Enum):
        code = code.value if isinstance(code.value, str) else code.name
    return str(code) if isinstance(code, str) else ""


KIND_PROPERTIES: dict[str, dict[str, Any]] = {}
"""Properties of the kinds in the table `core/kinds.py`, by name and by code."""


class Kind(str):
    """The name of a kind of failure, such as `tool/timeout`, with what is true of every failure of this kind.

    A string subclass: it prints, compares and serializes as a string. Two kinds with the same name are equal. A kind
    that is read from a store or declared by a user has the properties of its row in the table of kinds, or else of the
    first row with its code.
    """

    type: str = ""
    code: str = ""
    remedy: Remedy = Remedy.REPLAN
    took_effect: TookEffect = TookEffect.UNKNOWN
    hint: str = ""

    # How it is recognized
    statuses: tuple[int, ...] = ()
    """HTTP statuses that mean this kind unless other evidence tells more."""
    possible_statuses: tuple[int, ...] = ()
    """HTTP statuses with which other evidence, such as words, may mean this kind."""
    numbers: str = ""
    """Numbers and names that mean this kind in any language: `ENOENT; errno 2; sqlstate 42501`. See `read_numbers`."""
    possible_numbers: str = ""
    """Numbers with which other evidence, such as words, may mean this kind."""
    permanent_numbers: str = ""
    """Numbers of this kind that another attempt gets again, whatever the remedy of the kind."""
    can_occur_in_output: bool = False
    """Whether the output of a program can report it about the call. Other kinds there are about its internals."""
    retrieval_code: str = ""
    """Its code where a search reports it, if that is another one."""
    model_codes: tuple[str, ...] = ()
    """Codes of the model kinds that it may mean if a model was called, likeliest first."""

    # What it says about the call
    is_refusal: bool = False
    """Whether the call was refused: its arguments, its caller, or because something is missing."""
    rejects_if_declared: bool = False
    """Whether nothing has executed if the author of a tool declares it."""
    loses_answer: bool = False
    """Whether no answer of the tool itself has arrived."""
    is_timeout: bool = False
    """Whether the call has occupied the tool for as long as it was allowed to."""
    accepted_arguments: bool = False
    """Whether the tool accepted the arguments and looked for their object."""
    rejects_arguments: bool = False
    """Whether the arguments do not fit the tool."""
    rejects_values: bool = False
    """Whether the value of an argument is rejected."""
    is_about_tool_name: bool = False
    """Whether no tool has the name of the call."""
    is_about_object: bool = False
    """Whether it is about the object that an argument names: a similar name is another object."""
    is_about_quotation: bool = False
    """Whether the call quotes a text wrongly: another quotation makes the same edit."""
    is_about_state: bool = False
    """Whether it is about a service, a resource or executed code, whose texts quote what they please."""
    is_about_connection: bool = False
    """Whether the connection failed, which an untrusted certificate may cause."""
    is_about_code: bool = False
    """Whether the code is wrong that a build or a test executed, and not the call."""
    is_about_tests: bool = False
    """Whether tests failed, which print what they like."""
    is_about_answer: bool = False
    """Whether the answer of a model could not be used."""
    is_empty_lookup: bool = False
    """Whether it is an answer if the call only reads: there is no such thing."""
    has_no_cause: bool = False
    """Whether the call ran and failed, and nothing tells why."""
    is_vague: bool = False
    """Whether failures with very different causes have this kind."""
    is_unknown: bool = False
    """Whether nothing is known about the failure."""
    is_loop: bool = False
    """Whether the call was blocked because it had failed before."""
    are_retries_exhausted: bool = False
    """Whether all retries of the same call have failed."""
    is_user_rejection: bool = False
    """Whether the user rejected the call."""
    is_cancelled: bool = False
    """Whether the call was cancelled."""

    # What can recover it
    is_cured_by_time: bool = False
    """Whether any later call overcomes it, whatever its values. After a timeout, less may really help."""
    is_limit: bool = False
    """Whether the caller exceeded a limit of a service that works, and that states its own delay."""
    is_used_up: bool = False
    """Whether a quota, a plan or a credit is used up."""
    code_if_short: str = ""
    """Its code if it clears within an hour by itself: a quota is then a rate limit."""
    is_outage: bool = False
    """Whether it affects all models of a provider."""
    has_no_repair: bool = False
    """Whether no change of the arguments repairs it: it needs an edit, a person or an installation."""
    is_unrelated_to_values: bool = False
    """Whether no other value of the same run repairs it."""
    prepared_by: Literal["", "edit", "read"] = ""
    """What makes the same call succeed: to edit or to read a file."""
    needs_reread: bool = False
    """Whether reading the file again may recover it."""
    fallback: Literal["", "default", "requested"] = ""
    """Whether a fallback model may serve the call: never, always, or if the fallback names this kind."""
    model_moves: tuple[Literal["shorten", "refresh", "clamp", "note", "fallback"], ...] = ()
    """What is tried after a failed model call, in order."""
    stop_reason: str = ""
    """Why recovery of a model call stops if nothing of that helped."""
    advice: str = ""
    """Advice in `mulligan stats` if it happens often."""

    def __new__(
        cls,
        type: str,
        code: str,
        remedy: Remedy = Remedy.REPLAN,
        took_effect: TookEffect = TookEffect.UNKNOWN,
        hint: str = "",
    ) -> Kind:
        name = f"{type}/{code}"
        kind = super().__new__(cls, name)
        kind.__dict__ = {
            **(KIND_PROPERTIES.get(name) or KIND_PROPERTIES.get(code) or {}),
            "type": type,
            "code": code,
            "remedy": remedy,
            "took_effect": took_effect,
            "hint": hint,
        }
        return kind

    def is_one_of(self, names: Iterable[str]) -> bool:
        """Return whether one of these names or codes means this kind."""
        return any(name in (self, self.code) for name in names)

    def with_remedy(self, remedy: Remedy, hint: str | None = None) -> Kind:
        """Return this kind with the remedy of one failure."""
        return Kind(self.type, self.code, remedy, self.took_effect, self.hint if hint is None else hint)

    @classmethod
    def from_name(cls, name: str) -> Kind:
        """Build a kind from its name alone, as read from a store."""
        type, _, code = name.partition("/")
        return cls(type, code or "unknown")

    def __getnewargs__(self) -> tuple[Any, ...]:
        return self.type, self.code, self.remedy, self.took_effect, self.hint


class Failure(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """An error after classification.

    It repeats the remedy of its kind, because a reader may not know a kind that another agent defined.
    """

    kind: Kind
    remedy: Remedy
    took_effect: TookEffect
    message: str = ""
    """The message, in one sanitized sentence."""
    hint: str = ""
    """What a model can do differently: from the kind, or from the `AgentError` raised."""
    detail: str = ""
    """The rest of the error text: body, stack trace, notes."""
    status: int | None = None
    """The HTTP status, if any."""
    code: str = ""
    """The error code of the provider or the author (`insufficient_quota`, `E0308`)."""
    retry_after: float | None = None
    """The delay in seconds that the server requested."""
    evidence: tuple[str, ...] = ()
    """The signals that determined the kind, strongest first."""
    confidence: float = 1.0
    fingerprint: str = ""
    recoverable: bool = True
    """False if the author of the error declared that retrying cannot help."""
    exception: str = ""
    """The class of the raised exception with its module, such as `httpx.ReadTimeout`."""
    trace: str = ""
    """The stack trace, one frame per line, the user's code first; then causes and group members. Never for a model."""
    clears_after: float | None = None
    """Seconds after which a limit, a quota or an outage ends, if the service says so. Without them it is unknown, or a
    person must act: then the remedy is `stop`."""

    def __post_init__(self) -> None:
        kind = self.kind
        if kind.remedy is not self.remedy:  # read from a store, or the error overrides the remedy of its kind
            msgspec.structs.force_setattr(self, "kind", kind.with_remedy(self.remedy))

    @classmethod
    def of(
        cls,
        kind: Kind,
        message: str = "",
        *,
        took_effect: TookEffect | None = None,
        hint: str | None = None,
        **fields: Any,
    ) -> Failure:
        """Build a failure with the defaults of its kind."""
        return cls(
            kind=kind,
            remedy=kind.remedy,
            took_effect=kind.took_effect if took_effect is None else took_effect,
            message=message,
            hint=kind.hint if hint is None else hint,
            **fields,
        )

    def with_recorded(self, recorded: Failure) -> Failure:
        """Return this failure of an exception with the kind, and every other fact, that was recorded by hand."""
        facts = {name: fact for name, fact in msgspec.structs.asdict(recorded).items() if fact not in ("", None)}
        if not recorded.message:
            facts.pop("fingerprint", None)  # that of no message
        return msgspec.structs.replace(self, **facts)

    @property
    def is_failure(self) -> bool:
        """Whether it counts as a failure: user rejections and cancelled siblings have the type `none`."""
        return self.kind.type != "none"

    @property
    def has_unknown_outcome(self) -> bool:
        """Whether to say that the call may have executed. A refusal says that it did not, which does not prove it.

        Only a proof (`took_effect`) allows to repeat a call that has side effects.
        """
        is_refused = self.kind.is_refusal or not REFUSAL_EVIDENCE.isdisjoint(self.evidence)
        # Confidence of a kind that only the class of an exception suggests.
        is_guess = self.confidence <= 0.6 and self.evidence[:1] == (f"class {self.class_name}",)
        is_refused = is_refused and not is_guess  # a `ValueError` without such words may be about a response
        return self.took_effect is TookEffect.UNKNOWN and (
            not is_refused or not UNSURE_EVIDENCE.isdisjoint(self.evidence)
        )

    @property
    def has_lost_answer(self) -> bool:
        """Whether the call may have executed and its answer never arrived: a timeout, a reset, a 5xx, cut off, killed.

        Everything else that a function raises or returns is an answer, also if it does not prove what happened.
        """
        if self.took_effect is TookEffect.NO:
            return False
        if KILLED.search(self.message[:MAX_SEARCHED_CHARS]):
            return True
        is_answered = self.status is not None and self.status < 500 and self.status != HTTP_REQUEST_TIMEOUT
        is_server_error = self.status is not None and self.status >= 500
        return self.has_unknown_outcome and not is_answered and (is_server_error or self.kind.loses_answer)

    @property
    def is_guess(self) -> bool:
        """Whether words alone suggest the kind, and may be about something else. Then no call is repeated for it."""
        return self.clears_after is None and is_guess(self.evidence, self.confidence)

    @property
    def class_name(self) -> str:
        """The class of the raised exception without its module."""
        return self.exception.rpartition(".")[2]

    def to_tool_response(self, tool: str = "") -> dict[str, Any]:
        """Return the failure as a tool result that a model can act on, without a stack trace.

        `tool` names the author of the message. It knows no settings: only secrets of a known form are redacted.
        """
        from mulligan.redaction import Redactor  # lazy: rarely needed, and slow to import

        return build_tool_response(self, Redactor(personal=False), tool)


def is_guess(evidence: tuple[str, ...], confidence: float) -> bool:
    """Return whether the evidence is words alone, with a confidence that is too low to repeat a call."""
    # Confidence from which on words alone may lead to another attempt. Of such answers at most 1 % are harmful.
    return confidence < 0.8 and all(reason.startswith("text: ") for reason in evidence)


REFUSAL_EVIDENCE = frozenset(
    {"text: refused connection", "text: unknown host", "class ConnectionRefusedError", "code ECONNREFUSED"}
)
"""Signals that a call never reached its target."""
KILLED = LazyRegex(
    r"(?i)\Akilled\b|\bSIG(?:KILL|TERM)\b|\bexit (?:status|code):? (?:137|143)\b|\bterminated abruptly\b"
)
"""Messages about a program that was ended from outside."""
HTTP_REQUEST_TIMEOUT = 408
UNKNOWN_OUTCOME_HINT = "Do not repeat the call, nor a variant of it, before you have checked whether it took effect."
MAX_SEARCHED_CHARS = 2000
EARLIER_ATTEMPTS = "earlier attempts of a retry library"
"""The evidence of an error after other attempts: the refusal of the last one says nothing about them."""
INNER_EFFECTS = "a call inside it may have executed"
"""The evidence of an error after a call with effects="once" inside the attempt: a refusal says nothing about that."""
RETURNED_ERROR = "a returned error"
"""The evidence of an error that a tool with side effects returned: it ran, and its words do not say how far."""
UNSURE_EVIDENCE = frozenset({EARLIER_ATTEMPTS, INNER_EFFECTS, RETURNED_ERROR})
"""Signals that a refusal says nothing about a part of the call."""
CODE = LazyRegex(r"[A-Za-z0-9][\w.:/-]{0,47}", re.ASCII)
"""A code of one word, such as a kind. A sentence in its place could be read as an instruction."""
MAX_LABEL_CHARS = 80
"""Shown characters of names, which may come from models and untrusted servers."""
INFRA_ERROR = "InfraError"
"""The evidence of an `InfraError`. Its message is for people."""


def build_tool_response(
    failure: Failure, redactor: Redactor, tool: str = "", *, has_effects: bool = True
) -> dict[str, Any]:
    """Build the tool result for a failed call. The message may contain untrusted values, so it is quoted."""
    redact = redactor.text_for_display
    is_hidden = INFRA_ERROR in failure.evidence
    response: dict[str, Any] = {
        "error": to_label(redactor, failure.kind),
        "code": to_error_code(redactor, failure.code) or to_label(redactor, failure.kind.code),
        "message": quote_untrusted(
            "The tool is unavailable." if is_hidden else redact(_describe_error(failure)),
            author=to_label(redactor, tool) or "tool",
        ),
        "hint": "Continue without it; a person must act."
        if is_hidden
        else build_hint(failure, redactor, has_effects=has_effects),
        "recoverable": failure.recoverable and (failure.remedy is not Remedy.STOP or failure.is_guess),
    }
    if failure.has_unknown_outcome and has_effects:
        response["outcome"] = "unknown: the call may have executed. Check before you repeat it."
    return response


def _describe_error(failure: Failure) -> str:
    """Return the message, with the class if it is a bare key, and with the errors of an exception group."""
    message = failure.message
    if failure.class_name == "KeyError" and " " not in message:
        return f"KeyError: {message}"
    if failure.class_name in ("ExceptionGroup", "BaseExceptionGroup"):
        members = [line for line in failure.detail.splitlines() if line and line != message]
        # Lines about the errors of an exception group in a message for a model.
        return "; ".join((message, *members[:5]))
    return message


_OWN_BLOCK = LazyRegex(
    r'\{"mulligan":\{(?:[^{}"]|"(?:[^"\\]|\\.)*(?:"|\Z))*(?:\}\})?'  # as the proxy writes it; the end may be cut off
    r'|\{\\"mulligan\\":(?:[^"\\]|\\.)*'  # inside a JSON string: up to the end of that string
    r'|"mulligan/(?:failure|note)":\{(?:[^{}"]|"(?:[^"\\]|\\.)*(?:"|\Z))*\}?',  # in the metadata of an MCP result
    re.DOTALL,
)


def strip_own_blocks(text: str) -> str:
    """Remove the failure blocks that our proxy added to an answer, so that no record and no hint quotes them."""
    return _OWN_BLOCK.sub("", text).rstrip() if "mulligan" in text and _OWN_BLOCK.search(text) else text


def build_hint(failure: Failure, redactor: Redactor, *, has_effects: bool = False) -> str:
    """Return the hint for a model: its author's, or that of the kind. `has_effects`: a repetition may harm."""
    if failure.hint == failure.kind.hint:
        if not failure.recoverable and failure.remedy is not Remedy.STOP:
            return "A retry cannot help: continue without this call, or report that it failed."
        # Hints of such kinds lead to another attempt. It could pay twice, with other arguments too.
        if has_effects and failure.has_unknown_outcome and failure.remedy is Remedy.RETRY:
            return UNKNOWN_OUTCOME_HINT
        if failure.clears_after is not None:
            return f"{failure.hint} It clears in {describe_wait(failure.clears_after)}."
    return strip_quote_marks(redactor.text_for_display(failure.hint, 300))


def describe_wait(seconds: float) -> str:
    """Return a wait in words, in its two largest units: `8 h 44 min`."""
    remaining = max(0, round(seconds))
    parts = []
    for unit, length in (("d", 86400), ("h", 3600), ("min", 60), ("s", 1)):
        if number := remaining // length:
            parts.append(f"{number} {unit}")
        remaining %= length
    return " ".join(parts[:2]) or "0 s"


def to_error_code(redactor: Redactor, code: str) -> str:
    """Return an error code if it has the form of a code; a sentence belongs into the quotation."""
    return code if CODE.fullmatch(code) and to_label(redactor, code) == code else ""


def to_label(redactor: Redactor, name: str, limit: int = MAX_LABEL_CHARS) -> str:
    """Return a name on one line, redacted and without quotation marks of ours."""
    # Join lines first: a secret may be split over two lines.
    return strip_quote_marks(" ".join(redactor.text_for_display(" ".join(name.split()), limit).split()))


class MulliganError(Exception):
    """Base class of mulligan's own errors. Errors of the user are never wrapped in it."""


class SettingsError(MulliganError):
    """An invalid setting. The message names a valid one."""


def require_choice(name: str, value: object, choices: tuple[str, ...]) -> None:
    """Raise `SettingsError` unless the value is one of the choices."""
    if value not in choices:
        raise SettingsError(f"{name} must be {', '.join(choices[:-1])} or {choices[-1]}, got {value!r}.")


class StoreError(MulliganError):
    """A store that cannot be opened, read or written. The message says what to do."""


class StoreDeniedError(StoreError):
    """A store that refuses this process, and will until someone changes the token or its role."""


class StoreLockedError(StoreError):
    """A store that another process has locked for longer than this process waits."""


class NewerStoreError(StoreError):
    """A store that a newer version of mulligan has written or migrated."""


class WorkerUnavailableError(StoreError):
    """A server of a distributed store that does not answer. Only the tenants whose records it stores are affected."""

    def __init__(self, message: str, worker: str) -> None:
        """`worker` is its host and port."""
        super().__init__(message)
        self.worker = worker


class UnsupportedOperationError(StoreError):
    """An operation that this store does not support. The message names an alternative."""


class RecordConflictError(MulliganError):
    """Records that contradict stored ones. Nothing of their batch is stored. The message names each of them."""


class LessonFileError(MulliganError):
    """A lesson file that cannot be read, with the line, or a folder that cannot be written."""


INSTALL_EXTRA = "In a checkout of mulligan, run: pip install '.[{}]'"
"""How to install an extra. mulligan is on no package index yet: under its name there, anything could be installed."""
UPGRADE = "Upgrade: update your checkout of mulligan and run there: pip install ."


class MissingExtraError(MulliganError):
    """A feature whose optional package is not installed."""
