"""Detection of error results that are not marked as errors, such as text that starts with "Error".

A result counts as an error only if it says so explicitly: a document about errors is a document.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mulligan.classify.evidence import get_attribute, to_bounded_text, to_integer
from mulligan.classify.rules.matching import compile_rule_pattern

ERROR_OPENING_PATTERN = (
    r"\A\s{0,20}(?:<tool_use_error>|traceback \(most recent call last\)|(?:fatal |unexpected |internal |runtime )?"
    r"(?:error|exception|failure)\s?(?:\[[^\]]{1,20}\]|\(\w{1,40}\))?:\s|[\w.]{0,80}(?:error|exception):\s|"
    r"error (?:during|executing|calling|while|running|invoking|occurred|code \d|processing|in tool|fetching|reading)\b|"
    r"an? (?:\w{1,20} )?error (?:occurred|has occurred)|exit(?:ed with)? (?:code|status):? [1-9]|"
    r"unknown (?:tool|action|function)\b|(?:tool|command|request|execution) (?:call )?(?:failed|"
    r"errored)\b|mcp error -32\d{3})"
)
_OBJECT_OPENING_PATTERN = r"\A\s{0,20}\{"


def is_error_result(result: object, is_error: bool | None = None) -> bool:
    """Return whether a result is an error. `is_error` and the result's own flag take precedence over its text."""
    try:
        return bool(is_error) or _is_error_result(result)
    except Exception:  # noqa: BLE001 - foreign object; an unreadable result is not an error
        return False


def _is_error_result(result: object) -> bool:
    if result is None or isinstance(result, (bool, int, float)):
        return False
    if isinstance(result, (str, bytes, bytearray)):
        return _is_error_text(to_bounded_text(result))
    if isinstance(result, Mapping):
        return _is_error_mapping(result)
    flag = get_attribute(result, "isError")
    if not isinstance(flag, bool):
        flag = get_attribute(result, "is_error")
    if flag is True:
        return True
    code = to_integer(get_attribute(result, "returncode"))
    if code is not None:
        return code != 0
    status = to_integer(get_attribute(result, "status_code"))
    if status is not None and get_attribute(result, "headers") is not None:
        return status >= 400
    content = get_attribute(result, "content")
    return _is_error_content(content) if isinstance(content, (list, tuple)) else False


def _is_error_mapping(result: Mapping[Any, Any]) -> bool:
    if result.get("isError") is True or result.get("is_error") is True:
        return True
    if isinstance(result.get("content"), (list, tuple)) and _is_error_content(result["content"]):
        return True
    code = to_integer(result.get("returncode", result.get("exit_code")))
    if code is not None and code != 0:
        return True
    error = result.get("error")
    if error and not isinstance(error, bool):
        return True
    if result.get("errors") and result.get("data", result) is None:
        return True  # GraphQL: errors beside data are warnings, errors instead of data are not
    is_bad = result.get("ok") is False or result.get("success") is False or result.get("status") in ("error", "failed")
    return is_bad and any(name in result for name in ("error", "message", "reason", "detail", "errors", "code"))


def _is_error_content(blocks: Any) -> bool:
    texts = [block.get("text") if isinstance(block, Mapping) else get_attribute(block, "text") for block in blocks[:1]]
    return any(isinstance(text, str) and _is_error_text(to_bounded_text(text)) for text in texts)


def _is_error_text(text: str) -> bool:
    if compile_rule_pattern(ERROR_OPENING_PATTERN).match(text):
        return True
    if not compile_rule_pattern(_OBJECT_OPENING_PATTERN).match(text):
        return False
    import json  # lazy: needed for text that looks like an object only

    try:
        answer = json.loads(text)
    except (ValueError, RecursionError):
        return False
    return isinstance(answer, dict) and _is_error_mapping(answer)
