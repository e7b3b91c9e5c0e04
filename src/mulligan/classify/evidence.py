"""Evidence of an error as plain data: class names, status, codes, headers and bounded text.

All values are read by duck typing and with exceptions caught. The objects belong to other libraries: a property may
raise, a body may be unread, a cause may form a cycle.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from mulligan.classify.rules import HEAD, TAIL, bounded
from mulligan.failure import AgentError, InfraError

DEEPEST = 5
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
        "headers",
        "is_error",
        "is_exception",
        "is_named",
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
        self.is_named = False
        """Whether the class was passed explicitly and not parsed from the text."""
        self.is_wrapped = False
        """Whether the error was wrapped in another one without a message of its own."""
        self.is_retried = False
        """Whether the wrapper reports several attempts, of which only the last is known."""
        self.arguments: Mapping[str, Any] | None = None

    def add_text(self, text: object) -> None:
        said = plain(text)
        if said and said not in self.text:
            self.text = bounded(f"{self.text}\n{said}" if self.text else said)

    def add_detail(self, text: object) -> None:
        said = plain(text)
        if said and said not in self.detail and said not in self.text:
            self.detail = bounded(f"{self.detail}\n{said}" if self.detail else said)

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
        number = whole(status)
        if self.status is None and number is not None and 100 <= number <= 599:
            self.status = number


def gather(error: object, into: Evidence) -> Evidence:
    """Add everything that this object reports to the evidence."""
    if error is None:
        return into
    if isinstance(error, (str, bytes, bytearray, memoryview)):
        into.add_text(error)
    elif isinstance(error, BaseException):
        into.is_exception = True
        for depth, each in enumerate(_chain(error)):
            _exception(each, into, is_cause=depth > 0)
    elif isinstance(error, Mapping):
        _mapping(error, into)
    elif isinstance(error, (list, tuple)):
        for each in error[:DEEPEST]:
            gather(each, into)
    else:
        _object(error, into)
    return into


def opened(error: object, into: Evidence) -> object:
    """Return the error inside wrappers without information: groups of one, or retry errors. Record the wrapping."""
    for _ in range(DEEPEST):
        inside = _inside(error) if isinstance(error, BaseException) else None
        if inside is None:
            break
        into.is_wrapped = True
        if _is_of_retries(error):
            into.is_retried = True
        else:
            into.add_detail(_words(error))
        for note in _notes(error):
            into.add_detail(note)
        error = inside
    return error


def _inside(error: BaseException) -> BaseException | None:
    if isinstance(error, (AgentError, InfraError)):
        return None
    cause = error.__cause__
    if isinstance(error, BaseExceptionGroup):
        one = error.exceptions[0]
        is_mute = type(one) in _MUTE and not _words(one)
        return one if len(error.exceptions) == 1 and not is_mute else None
    if cause is None or _is_of_retries(error):
        return cause
    is_mute = _words(error) in ("", _words(cause))
    return cause if is_mute and (type(error) in _MUTE or isinstance(cause, (AgentError, InfraError))) else None


_MUTE = (Exception, RuntimeError)
"""Classes that only say that something failed."""


def _is_of_retries(error: object) -> bool:
    """Return whether this is tenacity's `RetryError`, whose message is only the address of the last attempt."""
    return type(error).__name__ == "RetryError" and attribute(error, "last_attempt") is not None


def _words(error: object) -> str:
    try:
        return str(error)
    except Exception:  # noqa: BLE001 - __str__ of a foreign class
        return ""


def _notes(error: object) -> list[object]:
    notes = attribute(error, "__notes__")
    return notes[:DEEPEST] if isinstance(notes, list) else []


def plain(text: object) -> str:
    """Return text or bytes as bounded text. Bytes are cut before decoding, so that 10 MB cost no more than 10 KB."""
    if isinstance(text, str):
        return bounded(text).strip()
    if isinstance(text, (bytes, bytearray, memoryview)):
        whole_text = bytes(text[:HEAD]) if len(text) > HEAD + TAIL else bytes(text)
        said = whole_text.decode("utf-8", "replace")
        if len(text) > HEAD + TAIL:
            said += "\n...\n" + bytes(text[-TAIL:]).decode("utf-8", "replace")
        return said.strip()
    return ""


def whole(value: object) -> int | None:
    """Return an integer, also from an integer enum such as `HTTPStatus`, else None. A boolean is not an integer."""
    if isinstance(value, bool):
        return None
    if isinstance(value, int):
        return int(value)
    if isinstance(value, str) and value.strip().lstrip("-").isdigit() and len(value) < 10:
        return int(value)
    return None


def attribute(thing: object, name: str) -> Any:
    """Return an attribute, or None if it is missing or reading it raises."""
    try:
        return getattr(thing, name, None)
    except Exception:  # noqa: BLE001 - classification must not raise
        return None


def _chain(error: BaseException) -> Iterator[BaseException]:
    seen: set[int] = set()
    queue = [error]
    while queue and len(seen) < DEEPEST:
        each = queue.pop(0)
        if id(each) in seen:
            continue
        seen.add(id(each))
        yield each
        if isinstance(each, BaseExceptionGroup):
            # A cancelled sibling carries no information, so it comes last.
            queue.extend(sorted(each.exceptions[:DEEPEST], key=lambda one: type(one).__name__ == "CancelledError"))
        if each.__cause__ is not None:
            queue.append(each.__cause__)
        elif each.__context__ is not None and not each.__suppress_context__:
            queue.append(each.__context__)


def _exception(error: BaseException, into: Evidence, is_cause: bool) -> None:
    for cls in type(error).__mro__:
        if cls not in (object, BaseException, Exception) and cls.__name__ not in into.names:
            into.names.append(cls.__name__)
            into.modules.add(cls.__module__)
    said = _words(error)
    into.add_text(said if said else "" if is_cause else type(error).__name__)
    _attributes(error, into)
    for note in _notes(error):
        into.add_detail(note)


def _attributes(error: object, into: Evidence) -> None:
    """Add the attributes with which client libraries report a failure."""
    for name in ("status_code", "http_status", "status", "code"):
        into.add_status(attribute(error, name))
    for name in ("code", "type", "status", "reason_code", "error_code", "sqlstate", "pgcode", "sqlite_errorname"):
        into.add_code(attribute(error, name))
    number = whole(attribute(error, "code"))
    if number is not None and -33_000 <= number <= -32_000:
        into.rpc = number
    _grpc(error, into)
    inner = attribute(error, "error")  # MCP's own exception holds {code, message, data}
    if inner is not None and not isinstance(inner, (str, bytes, BaseException)):
        number = whole(inner.get("code") if isinstance(inner, Mapping) else attribute(inner, "code"))
        if number is not None and -33_000 <= number <= -32_000:
            into.rpc = number
    _headers(attribute(error, "headers"), into)
    for name in ("body", "error", "details"):
        body = attribute(error, name)
        if isinstance(body, Mapping):
            _mapping(body, into)
        elif isinstance(body, (str, bytes)):
            into.add_detail(body)
    response = attribute(error, "response")
    if isinstance(response, Mapping):
        _mapping(response, into)
    elif response is not None:
        _response(response, into)
    _process(error, into)


def _grpc(error: object, into: Evidence) -> None:
    code = attribute(error, "code")
    if not callable(code) or isinstance(code, type) or attribute(error, "details") is None:
        return
    try:
        into.add_code(attribute(code(), "name"))
    except Exception:  # noqa: BLE001 - method of a foreign class
        return


def _response(response: object, into: Evidence) -> None:
    into.add_status(attribute(response, "status_code"))
    into.add_status(attribute(response, "status"))
    _headers(attribute(response, "headers"), into)
    # Use only a body that is in memory already: reading a stream could block, or consume it before the caller.
    body = attribute(response, "_content") or attribute(response, "_body")
    if body is None and "_content" not in (attribute(response, "__dict__") or {}):
        body = attribute(response, "text")
        if not isinstance(body, str):
            body = attribute(response, "content")
    if isinstance(body, (str, bytes, bytearray)):
        into.add_detail(body)
    if not into.text:
        reason = attribute(response, "reason") or attribute(response, "reason_phrase")
        into.add_text(into.detail or (reason if isinstance(reason, str) else ""))


def _headers(headers: object, into: Evidence) -> None:
    if headers is None or into.headers:
        return
    try:
        pairs = list(headers.items())[:100]  # type: ignore[attr-defined]
        into.headers = {str(name).lower(): str(value)[:200] for name, value in pairs}
    except Exception:  # noqa: BLE001 - mapping of a foreign class
        return


def _process(error: object, into: Evidence) -> None:
    code = attribute(error, "returncode")
    if code is None:
        code = attribute(error, "exit_code")
    number = whole(code)
    if number is None:
        return
    into.exit_code = number
    output = [plain(attribute(error, name)) for name in ("stderr", "stdout", "output")]
    said = "\n".join(part for part in output if part)
    if said:
        into.add_detail(into.text)
        into.text = bounded(said)


def _mapping(said: Mapping[Any, Any], into: Evidence) -> None:
    flag = said.get("isError", said.get("is_error"))
    if isinstance(flag, bool) and into.is_error is None:
        into.is_error = flag
    number = whole(said.get("code"))
    if number is not None and -33_000 <= number <= -32_000:
        into.rpc = number
    for name in ("status", "statusCode", "status_code", "code", "HTTPStatusCode"):
        into.add_status(said.get(name))
    for name in ("code", "type", "Code", "__type", "status", "reason", "error_code", "errorCode"):
        into.add_code(said.get(name))
    number = whole(said.get("returncode", said.get("exit_code", said.get("exitCode"))))
    if number is not None:
        into.exit_code = number
    _headers(said.get("headers") or said.get("HTTPHeaders"), into)
    for name in ("error", "Error", "ResponseMetadata", "response"):
        inner = said.get(name)
        if isinstance(inner, Mapping) and inner is not said:
            _mapping(inner, into)
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
        if isinstance(said.get(name), (str, bytes)):
            into.add_text(said[name])
    content = said.get("content")
    if isinstance(content, str):
        into.add_text(content)
    elif isinstance(content, (list, tuple)):
        for block in content[:20]:
            into.add_text(block.get("text") if isinstance(block, Mapping) else attribute(block, "text"))
    if not into.text:
        into.add_text(repr(dict(list(said.items())[:20]))[:HEAD])


def _object(thing: object, into: Evidence) -> None:
    content = attribute(thing, "content")
    flag = attribute(thing, "isError")
    if not isinstance(flag, bool):
        flag = attribute(thing, "is_error")
    if isinstance(flag, bool) and isinstance(content, (list, tuple)):
        _mapping({"isError": flag, "content": content}, into)
        return
    if whole(attribute(thing, "returncode")) is not None:
        _process(thing, into)
        into.add_text(f"exit code {into.exit_code}")
        return
    if whole(attribute(thing, "status_code")) is not None or whole(attribute(thing, "status")) is not None:
        _response(thing, into)
        return
    _attributes(thing, into)
    message = attribute(thing, "message")
    if isinstance(message, str):
        into.add_text(message)
    if not into.text:
        try:
            into.add_text(repr(thing)[:HEAD])
        except Exception:  # noqa: BLE001 - __repr__ of a foreign class
            into.add_text(type(thing).__name__)
