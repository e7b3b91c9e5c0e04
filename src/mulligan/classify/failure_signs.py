"""Keys and words of results that may be failures, apart from the rules: every result is checked for them."""

from __future__ import annotations

MESSAGE_KEYS = frozenset(
    "message Message msg errmsg error_message errorMessage error_description description detail details reason error "
    "errors errorMessages title exception faultstring".split()
)
STATUS_KEYS = ("statusCode", "status_code", "httpStatus", "http_status", "status", "code")
EMPTY_KEYS = ("data", "result", "results", "output", "response", "content")
"""Keys of a result's data, which an error leaves empty."""
ENVELOPE_KEYS = MESSAGE_KEYS.union(
    STATUS_KEYS,
    EMPTY_KEYS,
    "ok success isError is_error type name object kind apiVersion metadata jsonapi jsonrpc meta errorCode error_code "
    "errcode errorType error_type errorMessages Error Code hint hints recoverable retryable retry_after retryAfter "
    "suggestion suggestions timestamp time path instance method documentation_url more_info link links help error_uri "
    "request_id requestId RequestId trace_id traceId correlation_id stack stackTrace stack_trace trace traceback extra "
    "messages response_metadata ResponseMetadata statusText headers body text extensions fields param params".split(),
)
"""Keys that describe an error and its request. A dictionary with another key holds data."""
MAX_STATEMENT_CHARS = 250
FAILURE_PHRASES = (
    "not ", "n't ", "nothing ", "timed out", "quota", "unavailable", "invalid", "unable", "expired", "unknown",
    "missing", "no longer", "you ", "in to ", "down", "offline", "fail", "denied", "ended", "locked", "already",
    "exceed", "limit", "requir", "must ", "refus", "reject", "block", "again", "too ", "full", "no ", "error", "busy",
    "closed", "used ", "wrong", "conflict", "first",
    "at most", "only", "need", "wait", "slow", "many", "allowed", "permi", "auth", "expect", "should",
)  # fmt: skip
"""Phrases of which one is in every short sentence that says in English what failed."""


def may_state_failure(text: str) -> bool:
    """Return whether a text has a word of a failure, or is in another language. Cheap: each short result is checked."""
    if not text.isascii():
        return True
    sentence = text.lower()
    for phrase in FAILURE_PHRASES:  # noqa: SIM110 - any() with a generator takes three times as long
        if phrase in sentence:
            return True
    return False
