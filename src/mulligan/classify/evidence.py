"""Evidence of an error as plain data: class names, status, codes, headers and bounded text.

All values are read by duck typing and with exceptions caught. The objects belong to other libraries: a property may
raise, a body may be unread, a cause may form a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.classify.rules.matching import HEAD_CHARS, TAIL_CHARS, bound_text
from mulligan.core.failure import AgentError, InfraError

MAX_CHAINED_ERRORS = 5
"""Maximum number of causes and group members read. The first few name the problem."""


class Evidence:
    """Everything known about one error before classification.

    A plain class: a dataclass would double the import cost of classification.
    """

    __slots__ = (
        "arguments",
        "codes",
        "detail",
        "exit_code",
        "has_explicit_class",
        "headers",
        "is_error",
        "is_exception",
        "is_retried",
        "is_wrapped",
        "modules",
        "names",
        "quoted_rpc",
        "rpc",
        "source",
        "status",
        "text",
        "tool",
    )

    def __init__(self, source: str | None = None, tool: str = "", is_error: bool | None = None) -> None:
        self.source = source
        self.tool = tool
        self.text = ""
        """Bounded text: the error's own message first, then those of its causes."""
        self.detail = ""
        """Bounded further text: notes, response bodies, output."""
        self.names: list[str] = []
        """Class names, most specific first, followed by those of the causes."""
        self.modules: set[str] = set()
        """Modules of these classes."""
        self.status: int | None = None
        self.codes: list[str] = []
        self.headers: dict[str, str] = {}
        self.rpc: int | None = None
        """Code of a JSON-RPC error."""
        self.quoted_rpc: int | None = None
        """JSON-RPC code that appears only in the text."""
        self.exit_code: int | None = None
        self.is_error = is_error
        self.is_exception = False
        """Whether the error was raised in this process. The code that raised it may have executed part of the call."""
        self.has_explicit_class = False
        """Whether the class was passed explicitly and not parsed from the text."""
        self.is_wrapped = False
        """Whether the error was wrapped in another one without a message of its own."""
        self.is_retried = False
        """Whether the wrapper reports several attempts, of which only the last is known."""
        self.arguments: Mapping[str, Any] | None = None

    def add_text(self, text: object) -> None:
        bounded_text = to_bounded_text(text)
        if bounded_text and bounded_text not in self.text:
            self.text = bound_text(f"{self.text}\n{bounded_text}" if self.text else bounded_text)

    def add_detail(self, text: object) -> None:
        bounded_text = to_bounded_text(text)
        if bounded_text and bounded_text not in self.detail and bounded_text not in self.text:
            self.detail = bound_text(f"{self.detail}\n{bounded_text}" if self.detail else bounded_text)

    def add_code(self, code: object) -> None:
        if isinstance(code, str) and code and len(code) <= 80 and code not in self.codes:
            self.codes.append(code)

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


def gather_evidence(error: object, into: Evidence) -> Evidence:
    """Add everything that this object reports to the evidence."""
    if error is None:
        return into
    if isinstance(error, (str, bytes, bytearray, memoryview)):
        into.add_text(error)
    elif isinstance(error, BaseException):
        into.is_exception = True
        for depth, chained_error in enumerate(_iter_chain(error)):
            _add_exception(chained_error, into, is_cause=depth > 0)
    elif isinstance(error, Mapping):
        _add_mapping(error, into)
    elif isinstance(error, (list, tuple)):
        for item in error[:MAX_CHAINED_ERRORS]:
            gather_evidence(item, into)
    else:
        _add_object(error, into)
    return into


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
        for note in _exception_notes(error):
            into.add_detail(note)
        error = inner_error
    return error


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
    return (
        cause
        if is_uninformative and (type(error) in _UNINFORMATIVE_CLASSES or isinstance(cause, (AgentError, InfraError)))
        else None
    )


_UNINFORMATIVE_CLASSES = (Exception, RuntimeError)
"""Classes that only say that something failed."""


def _is_retry_error(error: object) -> bool:
    """Return whether this is tenacity's `RetryError`, whose message is only the address of the last attempt."""
    return type(error).__name__ == "RetryError" and get_attribute(error, "last_attempt") is not None


def _safe_str(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - __str__ of a foreign class
        return ""


def _exception_notes(error: object) -> list[object]:
    notes = get_attribute(error, "__notes__")
    return notes[:MAX_CHAINED_ERRORS] if isinstance(notes, list) else []


def to_bounded_text(text: object) -> str:
    """Return text or bytes as bounded text. Bytes are cut before decoding, so that 10 MB cost no more than 10 KB."""
    if isinstance(text, str):
        return bound_text(text).strip()
    if isinstance(text, (bytes, bytearray, memoryview)):
        head_bytes = bytes(text[:HEAD_CHARS]) if len(text) > HEAD_CHARS + TAIL_CHARS else bytes(text)
        decoded_text = head_bytes.decode("utf-8", "replace")
        if len(text) > HEAD_CHARS + TAIL_CHARS:
            decoded_text += "\n...\n" + bytes(text[-TAIL_CHARS:]).decode("utf-8", "replace")
        return decoded_text.strip()
    return ""


def to_integer(value: object) -> int | None:
    """Return an integer, also from an integer enum such as `HTTPStatus`, else None. A boolean is not an integer."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("-").isdigit() and len(value) < 10:
        return int(value)
    return None


def get_attribute(thing: object, name: str) -> Any:
    """Return an attribute, or None if it is missing or reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - classification must not raise
        return None


def _iter_chain(error: BaseException) -> Iterator[BaseException]:
    visited_ids: set[int] = set()
    queue = [error]
    while queue and len(visited_ids) < MAX_CHAINED_ERRORS:
        chained_error = queue.pop(0)
        if id(chained_error) in visited_ids:
            continue
        visited_ids.add(id(chained_error))
        yield chained_error
        if isinstance(chained_error, BaseExceptionGroup):
            # A cancelled sibling carries no information, so it comes last.
            queue.extend(
                sorted(
                    chained_error.exceptions[:MAX_CHAINED_ERRORS],
                    key=lambda member: type(member).__name__ == "CancelledError",
                )
            )
        if chained_error.__cause__ is not None:
            queue.append(chained_error.__cause__)
        elif chained_error.__context__ is not None and not chained_error.__suppress_context__:
            queue.append(chained_error.__context__)


def _add_exception(error: BaseException, into: Evidence, is_cause: bool) -> None:
    for cls in type(error).__mro__:
        if cls not in (object, BaseException, Exception) and cls.__name__ not in into.names:
            into.names.append(cls.__name__)
            into.modules.add(cls.__module__)
    message = _safe_str(error)
    into.add_text(message if message else "" if is_cause else type(error).__name__)
    _add_attributes(error, into)
    for note in _exception_notes(error):
        into.add_detail(note)


def _add_attributes(error: object, into: Evidence) -> None:
    """Add the attributes with which client libraries report a failure."""
    for name in ("status_code", "http_status", "status", "code"):
        into.add_status(get_attribute(error, name))
    for name in ("code", "type", "status", "reason_code", "error_code", "sqlstate", "pgcode", "sqlite_errorname"):
        into.add_code(get_attribute(error, name))
    number = to_integer(get_attribute(error, "code"))
    if number is not None and -33_000 <= number <= -32_000:
        into.rpc = number
    _add_grpc_code(error, into)
    inner = get_attribute(error, "error")  # MCP's own exception holds {code, message, data}
    if inner is not None and not isinstance(inner, (str, bytes, BaseException)):
        number = to_integer(inner.get("code") if isinstance(inner, Mapping) else get_attribute(inner, "code"))
        if number is not None and -33_000 <= number <= -32_000:
            into.rpc = number
    _add_headers(get_attribute(error, "headers"), into)
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


def _add_grpc_code(error: object, into: Evidence) -> None:
    code = get_attribute(error, "code")
    if not callable(code) or isinstance(code, type) or get_attribute(error, "details") is None:
        return
    try:
        into.add_code(get_attribute(code(), "name"))
    except Exception:  # noqa: BLE001 - method of a foreign class
        return


def _add_response(response: object, into: Evidence) -> None:
    into.add_status(get_attribute(response, "status_code"))
    into.add_status(get_attribute(response, "status"))
    _add_headers(get_attribute(response, "headers"), into)
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


def _add_headers(headers: object, into: Evidence) -> None:
    if headers is None or into.headers:
        return
    try:
        pairs = list(headers.items())[:100]  # type: ignore[attr-defined]
        into.headers = {str(name).lower(): str(value)[:200] for name, value in pairs}
    except Exception:  # noqa: BLE001 - mapping of a foreign class
        return


def _add_process_result(error: object, into: Evidence) -> None:
    code = get_attribute(error, "returncode")
    if code is None:
        code = get_attribute(error, "exit_code")
    number = to_integer(code)
    if number is None:
        return
    into.exit_code = number
    output = [to_bounded_text(get_attribute(error, name)) for name in ("stderr", "stdout", "output")]
    output_text = "\n".join(part for part in output if part)
    if output_text:
        into.add_detail(into.text)
        into.text = bound_text(output_text)


def _add_mapping(mapping: Mapping[Any, Any], into: Evidence) -> None:
    flag = mapping.get("isError", mapping.get("is_error"))
    if isinstance(flag, bool) and into.is_error is None:
        into.is_error = flag
    number = to_integer(mapping.get("code"))
    if number is not None and -33_000 <= number <= -32_000:
        into.rpc = number
    for name in ("status", "statusCode", "status_code", "code", "HTTPStatusCode"):
        into.add_status(mapping.get(name))
    for name in ("code", "type", "Code", "__type", "status", "reason", "error_code", "errorCode"):
        into.add_code(mapping.get(name))
    number = to_integer(mapping.get("returncode", mapping.get("exit_code", mapping.get("exitCode"))))
    if number is not None:
        into.exit_code = number
    _add_headers(mapping.get("headers") or mapping.get("HTTPHeaders"), into)
    for name in ("error", "Error", "ResponseMetadata", "response"):
        inner = mapping.get(name)
        if isinstance(inner, Mapping) and inner is not mapping:
            _add_mapping(inner, into)
    for name in (
        "message",
        "Message",
        "msg",
        "error",
        "detail",
        "error_message",
        "errorMessage",
        "text",
        "stderr",
        "stdout",
    ):
        if isinstance(mapping.get(name), (str, bytes)):
            into.add_text(mapping[name])
    content = mapping.get("content")
    if isinstance(content, str):
        into.add_text(content)
    elif isinstance(content, (list, tuple)):
        for block in content[:20]:
            into.add_text(block.get("text") if isinstance(block, Mapping) else get_attribute(block, "text"))
    if not into.text:
        into.add_text(repr(dict(list(mapping.items())[:20]))[:HEAD_CHARS])


def _add_object(thing: object, into: Evidence) -> None:
    content = get_attribute(thing, "content")
    flag = get_attribute(thing, "isError")
    if not isinstance(flag, bool):
        flag = get_attribute(thing, "is_error")
    if isinstance(flag, bool) and isinstance(content, (list, tuple)):
        _add_mapping({"isError": flag, "content": content}, into)
        return
    if to_integer(get_attribute(thing, "returncode")) is not None:
        _add_process_result(thing, into)
        into.add_text(f"exit code {into.exit_code}")
        return
    if (
        to_integer(get_attribute(thing, "status_code")) is not None
        or to_integer(get_attribute(thing, "status")) is not None
    ):
        _add_response(thing, into)
        return
    _add_attributes(thing, into)
    message = get_attribute(thing, "message")
    if isinstance(message, str):
        into.add_text(message)
    if not into.text:
        try:
            into.add_text(repr(thing)[:HEAD_CHARS])
        except Exception:  # noqa: BLE001 - __repr__ of a foreign class
            into.add_text(type(thing).__name__)
