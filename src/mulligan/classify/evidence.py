"""Evidence of an error as plain data: class names, status, codes, headers and bounded text.

All values are read by duck typing and with exceptions caught. The objects belong to other libraries: a property may
raise, a body may be unread, a cause may form a cycle.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from typing import Any, Literal

import msgspec

from mulligan.classify.declared_errors import AgentError, InfraError
from mulligan.classify.rules.numbers import StatedNumber
from mulligan.core.failure import ToolCategory, to_code
from mulligan.redaction.plain_data import to_plain_data
from mulligan.redaction.regex import compile_regex

HEAD_CHARS, TAIL_CHARS = 8_192, 2_048
"""Characters that are read at both ends of a long text."""
MAX_CHAINED_ERRORS = 5
"""Maximum number of causes and group members read. The first few name the problem."""
_UNINFORMATIVE_CLASSES = (Exception, RuntimeError)
"""Classes that only say that something failed."""
_GENERAL_BASES = (
    *(ArithmeticError, AssertionError, AttributeError, ImportError, IndexError, KeyError, LookupError),
    *(ModuleNotFoundError, NameError),
    *(NotImplementedError, OSError, RuntimeError, SyntaxError, TypeError, UnboundLocalError, ValueError),
)
"""Classes that libraries extend for errors of any kind."""
ErrorRelation = Literal["", "cause", "context", "member"]
"""How an exception belongs to an earlier one of its chain. Empty for the first."""


class Evidence(msgspec.Struct):
    """Everything known about one error before classification."""

    source: str | None = None
    tool: str = ""
    text: str = ""
    """Bounded text: the error's own message first, then those of its causes."""
    detail: str = ""
    """Bounded further text: notes, response bodies, output."""
    names: list[str] = []
    """Class names, most specific first, followed by those of the causes."""
    library_bases: set[str] = set()
    """Those of `names` that are base classes of a library. They are known only while the exception exists."""
    modules: set[str] = set()
    """Modules of these classes."""
    status: int | None = None
    codes: list[str] = []
    headers: dict[str, str] = {}
    rpc: int | None = None
    """Code of a JSON-RPC error."""
    quoted_rpc: int | None = None
    """JSON-RPC code that appears only in the text."""
    exit_code: int | None = None
    number: StatedNumber | None = None
    """A number or a name of an error code that the text or a code states, which means the same in every language."""
    is_error: bool | None = None
    is_listed: bool = False
    """Whether the server of the tool lists it."""
    category: ToolCategory = "other"
    """Whether the tool is a shell."""
    is_exception: bool = False
    """Whether the error was raised in this process. The code that raised it may have executed part of the call."""
    is_raised: bool = False
    """Whether the class was passed explicitly and not parsed from the text."""
    has_known_class: bool = False
    """Whether that class tells what failed. Without it, the text decides as if a tool had returned it."""
    is_wrapped: bool = False
    """Whether the error was wrapped in another one without a message of its own."""
    is_retried: bool = False
    """Whether the wrapper reports several attempts, of which only the last is known."""
    arguments: Mapping[str, Any] | None = None

    def add_text(self, text: object) -> None:
        bounded_text = to_bounded_text(text)
        if bounded_text and bounded_text not in self.text:
            self.text = bound_text(f"{self.text}\n{bounded_text}" if self.text else bounded_text)

    def add_detail(self, text: object) -> None:
        bounded_text = to_bounded_text(text)
        if bounded_text and bounded_text not in self.detail and bounded_text not in self.text:
            self.detail = bound_text(f"{self.detail}\n{bounded_text}" if self.detail else bounded_text)

    def add_code(self, code: object) -> None:
        text = to_code(code)
        if text and len(text) <= 80 and text not in self.codes:
            self.codes.append(text)

    def add_class(self, path: object) -> None:
        """Add a class by its path, such as `openai.RateLimitError`."""
        if isinstance(path, str) and path.strip():
            module, _, name = path.strip()[:200].rpartition(".")
            if name not in self.names:
                self.names.append(name)
            if module:
                self.modules.add(module)

    def add_status(self, status: object) -> None:
        number = to_integer(status)
        if self.status is None and number is not None and 100 <= number <= 599:
            self.status = number

    def add_rpc(self, code: object) -> None:
        number = to_integer(code)
        if number is not None and -33_000 <= number <= -32_000:
            self.rpc = number

    def add_headers(self, headers: Any) -> None:
        if headers is not None and not self.headers:
            pairs = _call_safely(lambda: [(str(name), str(value)) for name, value in list(headers.items())[:100]])
            self.headers = {name.lower(): value[:200] for name, value in pairs or ()}


def gather_evidence(error: object, into: Evidence) -> None:
    """Add everything that this object reports to the evidence."""
    if isinstance(error, (str, bytes, bytearray, memoryview)):
        into.add_text(error)
    elif isinstance(error, BaseException):
        into.is_exception = True
        for relation, chained_error in iter_chain(error):
            _add_exception(chained_error, into, is_cause=bool(relation))
    elif isinstance(error, Mapping):
        _add_mapping(error, into)
    elif isinstance(error, (list, tuple)):
        for item in error[:MAX_CHAINED_ERRORS]:
            gather_evidence(item, into)
    elif error is not None:
        _add_object(error, into)


def unwrap_error(error: object, into: Evidence) -> object:
    """Return the error inside wrappers without information: groups of one, or retry errors. Record the wrapping."""
    for _ in range(MAX_CHAINED_ERRORS):
        inner_error = _inner_error(error) if isinstance(error, BaseException) else None
        if inner_error is None:
            break
        into.is_wrapped = True
        if _is_retry_error(error):
            into.is_retried = True
        else:
            into.add_detail(_safe_str(error))
        _add_notes(error, into)
        error = inner_error
    return error


def unwrap_logged_error(into: Evidence) -> None:
    """Replace the logged class of tenacity's `RetryError` by that of the last attempt, which its message names."""
    if into.names != ["RetryError"]:
        return
    match = compile_regex(r"RetryError\[<Future at 0x[0-9a-f]{1,16} state=finished raised (\w{1,80})>\]\Z").match(
        into.text
    )
    if match:
        into.names, into.text = [match.group(1)], match.group(1)
        into.is_wrapped = into.is_retried = True


def _inner_error(error: BaseException) -> BaseException | None:
    if isinstance(error, (AgentError, InfraError)):
        return None
    cause = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        member = error.exceptions[0]
        is_uninformative = type(member) in _UNINFORMATIVE_CLASSES and not _safe_str(member)
        return member if len(error.exceptions) == 1 and not is_uninformative else None
    if cause is None or _is_retry_error(error):
        return cause
    is_uninformative = _safe_str(error) in ("", _safe_str(cause))
    is_wrapper = type(error) in _UNINFORMATIVE_CLASSES or isinstance(cause, (AgentError, InfraError))
    return cause if is_uninformative and is_wrapper else None


def _is_retry_error(error: object) -> bool:
    """Return whether this is tenacity's `RetryError`, whose message is only the address of the last attempt."""
    return type(error).__name__ == "RetryError" and get_attribute(error, "last_attempt") is not None


def _call_safely(read: Callable[[], Any]) -> Any:
    """Call code of an arbitrary exception class. Return None if it raises."""
    try:
        return read()
    except Exception:  # noqa: BLE001 - classification must not raise
        return None


def _safe_str(error: object) -> str:
    return _call_safely(lambda: str(error)) or ""


def get_attribute(thing: object, name: str) -> Any:
    """Return an attribute, or None if it is missing or reading it raises."""
    return _call_safely(lambda: getattr(thing, name, None))


def bound_text(text: str) -> str:
    """Return both ends of a long text: the message is at the start, the outcome of a program at the end."""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return text
    return f"{text[:HEAD_CHARS]}\n...\n{text[-TAIL_CHARS:]}"


def to_bounded_text(text: object) -> str:
    """Return text or bytes as bounded text. Bytes are cut before decoding, so that 10 MB cost no more than 10 KB."""
    if isinstance(text, str):
        return bound_text(text).strip()
    if not isinstance(text, (bytes, bytearray, memoryview)):
        return ""
    if len(text) <= HEAD_CHARS + TAIL_CHARS:
        return bytes(text).decode("utf-8", "replace").strip()
    head, tail = (bytes(part).decode("utf-8", "replace") for part in (text[:HEAD_CHARS], text[-TAIL_CHARS:]))
    return f"{head}\n...\n{tail}".strip()


def to_integer(value: object) -> int | None:
    """Return an integer, also from an integer enum such as `HTTPStatus`, else None. A boolean is not an integer."""
    if isinstance(value, int) and not isinstance(value, bool):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("-").isdigit() and len(value) < 10:
        return int(value)
    return None


def iter_chain(error: BaseException, include_handled: bool = False) -> Iterator[tuple[ErrorRelation, BaseException]]:
    """Yield an exception, its group members, causes and contexts, each once, with its relation to an earlier one.

    Args:
        error: The exception that was raised.
        include_handled: Whether to yield also general errors that code handled before it raised another with a message.
    """
    visited_ids: set[int] = set()
    queue: list[tuple[ErrorRelation, BaseException]] = [("", error)]
    while queue and len(visited_ids) < MAX_CHAINED_ERRORS:
        relation, chained_error = queue.pop(0)
        if id(chained_error) in visited_ids:
            continue
        visited_ids.add(id(chained_error))
        yield relation, chained_error
        if isinstance(chained_error, BaseExceptionGroup):
            # A cancelled sibling carries no information, so it comes last.
            members = chained_error.exceptions[:MAX_CHAINED_ERRORS]
            members = tuple(sorted(members, key=lambda member: type(member).__name__ == "CancelledError"))
            queue.extend(("member", member) for member in members)
        if chained_error.__cause__ is not None:
            queue.append(("cause", chained_error.__cause__))
            continue
        context = chained_error.__context__
        if context is None or chained_error.__suppress_context__:
            continue
        # A general error that was handled says nothing about the one with a message that was raised instead.
        if include_handled or type(context) not in _GENERAL_BASES or not _safe_str(chained_error):
            queue.append(("context", context))


def _add_exception(error: BaseException, into: Evidence, is_cause: bool) -> None:
    # A `ValueError` has words of its own, so its causes tell less than they do.
    for cls in type(error).__mro__ if into.names[:1] != ["ValueError"] else ():
        # A log has only the class itself, so a general base must not change the kind either. Nor does a general cause:
        # a missing key behind "No such user" is no bug.
        is_general = cls in _GENERAL_BASES and (is_cause or cls is not type(error))
        if cls not in (object, BaseException, Exception) and not is_general and cls.__name__ not in into.names:
            into.names.append(cls.__name__)
            into.modules.add(cls.__module__)
            if cls is not type(error) and cls.__module__.partition(".")[0] not in sys.stdlib_module_names:
                into.library_bases.add(cls.__name__)
    into.add_text(_safe_str(error) or ("" if is_cause else type(error).__name__))
    _add_attributes(error, into)
    _add_notes(error, into)


def _add_notes(error: object, into: Evidence) -> None:
    notes = get_attribute(error, "__notes__")
    for note in notes[:MAX_CHAINED_ERRORS] if isinstance(notes, list) else ():
        into.add_detail(note)


def _add_attributes(error: object, into: Evidence) -> None:
    """Add the attributes with which client libraries report a failure."""
    for name in ("status_code", "http_status", "status", "code"):
        into.add_status(get_attribute(error, name))
    for name in ("code", "type", "status", "reason_code", "error_code", "sqlstate", "pgcode", "sqlite_errorname"):
        into.add_code(get_attribute(error, name))
    code = get_attribute(error, "code")
    into.add_rpc(code)
    if callable(code) and not isinstance(code, type) and get_attribute(error, "details") is not None:  # gRPC
        into.add_code(get_attribute(_call_safely(code), "name"))
    inner = get_attribute(error, "error")  # MCP's own exception holds {code, message, data}
    if inner is not None and not isinstance(inner, (str, bytes, BaseException)):
        into.add_rpc(_get_field(inner, "code"))
    into.add_headers(get_attribute(error, "headers"))
    for name in ("body", "error", "details"):
        body = get_attribute(error, name)
        if isinstance(body, Mapping):
            _add_mapping(body, into)
        elif isinstance(body, (str, bytes)):
            into.add_detail(body)
    response = get_attribute(error, "response")
    if isinstance(response, Mapping):
        _add_mapping(response, into)
    elif response is not None:
        _add_response(response, into)
    _add_process_result(error, into)


def _get_field(thing: object, name: str) -> Any:
    return thing.get(name) if isinstance(thing, Mapping) else get_attribute(thing, name)


def _add_response(response: object, into: Evidence) -> None:
    into.add_status(get_attribute(response, "status_code"))
    into.add_status(get_attribute(response, "status"))
    into.add_headers(get_attribute(response, "headers"))
    # Use only a body that is in memory already: reading a stream could block, or consume it before the caller.
    body = get_attribute(response, "_content") or get_attribute(response, "_body")
    if body is None and "_content" not in (get_attribute(response, "__dict__") or {}):
        body = get_attribute(response, "text")
        if not isinstance(body, str):
            body = get_attribute(response, "content")
    if isinstance(body, (str, bytes, bytearray)):
        into.add_detail(body)
    if not into.text:
        reason = get_attribute(response, "reason") or get_attribute(response, "reason_phrase")
        into.add_text(into.detail or (reason if isinstance(reason, str) else ""))


def _add_process_result(error: object, into: Evidence) -> None:
    code = get_attribute(error, "returncode")
    number = to_integer(get_attribute(error, "exit_code") if code is None else code)
    if number is None:
        return
    into.exit_code = number
    output = [to_bounded_text(get_attribute(error, name)) for name in ("stderr", "stdout", "output")]
    if any(output):
        into.add_detail(into.text)
        into.text = bound_text("\n".join(filter(None, output)))


def _add_mapping(mapping: Mapping[Any, Any], into: Evidence) -> None:
    flag = mapping.get("isError", mapping.get("is_error"))
    if isinstance(flag, bool) and into.is_error is None:
        into.is_error = flag
    into.add_rpc(mapping.get("code"))
    for name in ("status", "statusCode", "status_code", "code", "HTTPStatusCode"):
        into.add_status(mapping.get(name))
    for name in ("code", "type", "Code", "__type", "status", "reason", "error_code", "errorCode", "errorType"):
        into.add_code(mapping.get(name))
    error = mapping.get("error")
    if isinstance(error, str) and error.isidentifier():
        into.add_code(error)
    rpc_status = mapping.get("code")
    if type(rpc_status) is int and 0 < rpc_status <= len(_RPC_STATUSES) and RPC_STATUS_KEYS.issuperset(mapping):
        into.add_code(_RPC_STATUSES[rpc_status - 1])
    number = to_integer(mapping.get("returncode", mapping.get("exit_code", mapping.get("exitCode"))))
    if number is not None:
        into.exit_code = number
    into.add_headers(mapping.get("headers") or mapping.get("HTTPHeaders"))
    for name in ("error", "Error", "ResponseMetadata", "response"):
        inner = mapping.get(name)
        if isinstance(inner, Mapping) and inner is not mapping:
            _add_mapping(inner, into)
    for name in _MESSAGE_FIELDS:
        if isinstance(mapping.get(name), (str, bytes)):
            into.add_text(mapping[name])
    if not into.text:
        for name in _MORE_MESSAGE_FIELDS:
            if isinstance(mapping.get(name), (str, bytes)):
                into.add_text(mapping[name])
        errors = mapping.get("errors")
        if isinstance(errors, list) and errors and isinstance(errors[0], Mapping) and not into.text:
            _add_mapping(errors[0], into)
    content = mapping.get("content")
    if isinstance(content, str):
        into.add_text(content)
    elif isinstance(content, (list, tuple)):
        for block in content[:20]:
            into.add_text(_get_field(block, "text"))
    if not into.text:
        fields = to_plain_data(dict(islice(mapping.items(), 20)), nodes=1000, chars=HEAD_CHARS)
        into.add_text(repr(fields)[:HEAD_CHARS])


RPC_STATUS_KEYS = frozenset({"code", "message", "details"})
"""The fields of a gRPC status as a dictionary."""
_RPC_STATUSES = tuple(
    "cancelled unknown invalid_argument deadline_exceeded not_found already_exists permission_denied "
    "resource_exhausted failed_precondition aborted out_of_range unimplemented internal unavailable data_loss "
    "unauthenticated".split()
)
"""The names of gRPC codes, from 1."""
_MESSAGE_FIELDS = tuple(
    "message Message msg error_description error detail error_message errorMessage text stderr stdout".split()
)
_MORE_MESSAGE_FIELDS = ("errmsg", "description", "reason", "title", "exception", "body")
"""Read only where the fields above hold no text."""


def _add_object(thing: object, into: Evidence) -> None:
    content = get_attribute(thing, "content")
    flag = get_attribute(thing, "isError")
    if not isinstance(flag, bool):
        flag = get_attribute(thing, "is_error")
    if isinstance(flag, bool) and isinstance(content, (list, tuple)):
        _add_mapping({"isError": flag, "content": content}, into)
    elif to_integer(get_attribute(thing, "returncode")) is not None:
        _add_process_result(thing, into)
        into.add_text(f"exit code {into.exit_code}")
    elif any(to_integer(get_attribute(thing, name)) is not None for name in ("status_code", "status")):
        _add_response(thing, into)
    else:
        _add_attributes(thing, into)
        message = get_attribute(thing, "message")
        if isinstance(message, str):
            into.add_text(message)
        if not into.text:
            into.add_text(_call_safely(lambda: repr(thing)[:HEAD_CHARS]) or type(thing).__name__)
