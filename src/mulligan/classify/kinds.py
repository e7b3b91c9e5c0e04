"""The table of failure kinds: remedy, whether the call may have taken effect, and a hint for the model.

`took_effect` is what the kind alone tells. It is `NO` only if the call cannot have executed. A rule with
proof, such as a refused connection or a JSON-RPC rejection, sets it on the failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from mulligan.core.failure import KIND_PROPERTIES, Kind, Remedy, SettingsError, TookEffect, to_code

RETRY, REPAIR, COMPRESS, REPLAN, STOP = Remedy.RETRY, Remedy.REPAIR, Remedy.COMPRESS, Remedy.REPLAN, Remedy.STOP
NO, YES, UNKNOWN = TookEffect.NO, TookEffect.YES, TookEffect.UNKNOWN


def declare(
    type: str, code: str, remedy: Remedy, took_effect: TookEffect, hint: str, **properties: bool | str | tuple[Any, ...]
) -> Kind:
    """Return a kind with its properties, which are fields of `Kind`. Properties are those of the code, statuses not.

    Kinds of another type with the same code, such as `retrieval/timeout`, have the same properties unless they state
    their own.
    """
    if unknown := properties.keys() - Kind.__annotations__:
        raise TypeError(f"Unknown properties of {type}/{code}: {', '.join(sorted(unknown))}. Use fields of Kind.")
    common = {name: value for name, value in KIND_PROPERTIES.get(code, {}).items() if name not in _OWN_EVIDENCE}
    KIND_PROPERTIES[f"{type}/{code}"] = common | properties
    KIND_PROPERTIES.setdefault(code, properties)
    return Kind(type, code, remedy, took_effect, hint)


_OWN_EVIDENCE = ("statuses", "possible_statuses", "exit_codes")
"""Properties that a type of kinds does not share with another: a status of a model call means a kind of model calls."""

# fmt: off
# Tool calls
TOOL_TIMEOUT = declare("tool", "timeout", RETRY, UNKNOWN,
    "The call did not answer in time. If it only reads, a smaller request may succeed.",
    statuses=(408, 522, 524, 504), exit_codes=(124,), can_occur_in_output=True, loses_answer=True, is_timeout=True,
    is_about_state=True, is_outage=True, fallback="default", model_codes=("timeout",))
TOOL_CONNECTION_ERROR = declare("tool", "connection_error", RETRY, UNKNOWN,
    "The service could not be reached. Other arguments will not help, unless the host or port came from you.",
    can_occur_in_output=True, loses_answer=True, is_about_state=True, is_cured_by_time=True, is_about_connection=True,
    model_codes=("unavailable", "timeout"))
TOOL_UNAVAILABLE = declare("tool", "unavailable", RETRY, UNKNOWN,
    "The service is down or overloaded. Retry later, or continue without it.",
    statuses=(421, 425, 507, 520, 521, 523, 529, 502, 503), possible_statuses=(500, 504), can_occur_in_output=True,
    loses_answer=True, is_about_state=True, is_cured_by_time=True, is_outage=True, fallback="default",
    model_codes=("unavailable", "timeout", "rate_limit"))
TOOL_RATE_LIMIT = declare("tool", "rate_limit", RETRY, UNKNOWN,
    "Too many calls in a short time. Wait, then make fewer or larger calls.",
    statuses=(429,), possible_statuses=(403, 503), can_occur_in_output=True, rejects_if_declared=True,
    is_about_state=True, is_cured_by_time=True, is_outage=True, fallback="default", is_limit=True,
    model_codes=("rate_limit", "quota_exceeded", "context_length_exceeded"))
TOOL_QUOTA_EXCEEDED = declare("tool", "quota_exceeded", STOP, UNKNOWN,
    "The plan or quota of this service is used up. A retry cannot help: tell the user, or continue without it.",
    statuses=(402, 432, 433), possible_statuses=(400, 403, 429, 503), can_occur_in_output=True, is_refusal=True,
    rejects_if_declared=True, is_about_state=True, is_used_up=True, is_outage=True, has_no_repair=True,
    is_unrelated_to_values=True, fallback="default", model_codes=("quota_exceeded",),
    advice="failed with {kind}: a person must act, retries do not help.")
TOOL_CAPTCHA_REQUIRED = declare("tool", "captcha_required", STOP, UNKNOWN,
    "The site asks for proof that a person is using it. Do not try to pass it: tell the user, or use another source.",
    possible_statuses=(400, 401, 403, 429, 503), can_occur_in_output=True, is_refusal=True, rejects_if_declared=True,
    is_about_state=True, has_no_repair=True, is_unrelated_to_values=True, accepted_arguments=True)
TOOL_API_ERROR = declare("tool", "api_error", RETRY, UNKNOWN,
    "The service had an internal error. The arguments may be fine.",
    statuses=(405, 406, 424, 501, 500), possible_statuses=(502,), loses_answer=True, is_about_state=True,
    model_codes=("unavailable",))
TOOL_INVALID_RESPONSE = declare("tool", "invalid_response", RETRY, UNKNOWN,
    "The response could not be parsed. The arguments may be fine.",
    model_codes=("invalid_output", "unavailable"))
TOOL_AUTH_ERROR = declare("tool", "auth_error", STOP, UNKNOWN,
    "The credentials are missing or were rejected. Tell the user; do not guess or search for others.",
    statuses=(401, 407), possible_statuses=(400, 403), can_occur_in_output=True, is_refusal=True,
    rejects_if_declared=True, is_about_state=True, has_no_repair=True, model_codes=("auth_error",))
TOOL_PERMISSION_DENIED = declare("tool", "permission_denied", REPLAN, UNKNOWN,
    "This is not allowed here. Do not work around it: use a permitted alternative, or ask the user.",
    statuses=(451, 403), possible_statuses=(402,), exit_codes=(126,), can_occur_in_output=True, is_refusal=True,
    rejects_if_declared=True, is_about_object=True, has_no_repair=True, is_unrelated_to_values=True,
    accepted_arguments=True, model_codes=("auth_error", "content_policy", "quota_exceeded"))
TOOL_INVALID_ARGUMENTS = declare("tool", "invalid_arguments", REPAIR, UNKNOWN,
    "Compare the arguments with the tool's schema: names, types, allowed values, required arguments.",
    statuses=(400, 411, 413, 414, 415, 431, 422), possible_statuses=(405, 406), is_refusal=True,
    rejects_if_declared=True, rejects_arguments=True, rejects_values=True, retrieval_code="invalid_query")
TOOL_UNKNOWN_TOOL = declare("tool", "unknown_tool", REPAIR, NO,
    "No tool has this name. Use one of the listed tool names exactly.",
    possible_statuses=(404,), is_refusal=True, rejects_if_declared=True, is_about_tool_name=True)
TOOL_NOT_FOUND = declare("tool", "not_found", REPAIR, UNKNOWN,
    "Nothing has this name or id. Take it from an earlier result, or list what exists first.",
    statuses=(404, 410), possible_statuses=(400,), is_refusal=True, rejects_if_declared=True, is_about_object=True,
    is_empty_lookup=True, fallback="default", accepted_arguments=True, retrieval_code="no_results")
TOOL_CONFLICT = declare("tool", "conflict", REPLAN, UNKNOWN,
    "The call conflicts with the current state. Read that state, then decide what remains to be done.",
    statuses=(409, 412, 423, 428), possible_statuses=(400, 405, 406, 422), rejects_if_declared=True,
    is_about_state=True, is_unrelated_to_values=True, accepted_arguments=True)
TOOL_EDIT_MISMATCH = declare("tool", "edit_mismatch", REPLAN, NO,
    "Read the file again and copy the text to replace exactly, with enough lines around it to be unique.",
    is_refusal=True, rejects_if_declared=True, is_about_state=True, is_about_quotation=True, needs_reread=True,
    is_unrelated_to_values=True)
TOOL_STALE_FILE = declare("tool", "stale_file", REPLAN, NO,
    "Read the file first: it was not read yet, or has changed since you read it.",
    is_refusal=True, rejects_if_declared=True, is_about_state=True, needs_reread=True, is_unrelated_to_values=True,
    prepared_by="read")
TOOL_FILE_NOT_FOUND = declare("tool", "file_not_found", REPAIR, UNKNOWN,
    "There is no such file or folder. List the folder, or check the working directory, to find the right path.",
    possible_statuses=(404,), can_occur_in_output=True, is_refusal=True, rejects_if_declared=True, is_about_state=True,
    is_about_object=True, is_empty_lookup=True, accepted_arguments=True)
TOOL_COMMAND_NOT_FOUND = declare("tool", "command_not_found", REPLAN, UNKNOWN,
    "This program is not installed here, or is not on the path. Check its name and how it is started here.",
    exit_codes=(127,), can_occur_in_output=True, is_refusal=True, rejects_if_declared=True, is_about_state=True,
    has_no_repair=True, is_unrelated_to_values=True)
TOOL_BUILD_FAILURE = declare("tool", "build_failure", REPLAN, YES,
    "The code does not compile. Fix the first error; building again changes nothing.",
    is_about_state=True, is_vague=True, is_about_code=True, has_no_repair=True, is_unrelated_to_values=True,
    accepted_arguments=True, prepared_by="edit")
TOOL_TEST_FAILURE = declare("tool", "test_failure", REPLAN, YES,
    "The tests ran and some failed. Read the first assertion, and change the code before you run them again.",
    is_about_state=True, is_vague=True, is_about_code=True, is_about_tests=True, has_no_repair=True,
    is_unrelated_to_values=True, accepted_arguments=True, prepared_by="edit")
TOOL_WRONG_APPROACH = declare("tool", "wrong_approach", REPLAN, UNKNOWN,
    "This approach failed several times. Choose a different one.",
    is_loop=True)
TOOL_OUTPUT_TOO_LARGE = declare("tool", "output_too_large", REPLAN, UNKNOWN,
    "The result is too large. Request a part of it: a range, a filter, a smaller page.",
    possible_statuses=(400, 403), has_no_repair=True, is_unrelated_to_values=True,
    advice="failed with {kind}: request less output or raise the limit.")
TOOL_EXECUTION_FAILED = declare("tool", "execution_failed", REPLAN, UNKNOWN,
    "The call failed. Read its output before you repeat it.",
    can_occur_in_output=True, is_vague=True, has_no_cause=True)
TOOL_UNKNOWN = declare("tool", "unknown", REPLAN, UNKNOWN,
    "The cause is unknown. The same call may fail again.",
    is_vague=True, is_unknown=True)

# Model calls
MODEL_RATE_LIMIT = declare("model", "rate_limit", RETRY, UNKNOWN,
    "Too many requests or tokens per minute: wait.",
    statuses=(429, 498), possible_statuses=(400, 403, 500, 503))
MODEL_CONTEXT_LENGTH_EXCEEDED = declare("model", "context_length_exceeded", COMPRESS, UNKNOWN,
    "The conversation exceeds the context window. Shorten or summarize old results, then retry.",
    statuses=(413,), possible_statuses=(400, 422, 424, 429, 500), fallback="default", model_moves=("shorten",),
    advice="exceeded the context window: compact the conversation earlier.")
MODEL_INVALID_OUTPUT = declare("model", "invalid_output", REPLAN, YES,
    "The answer could not be parsed. Answer again in exactly the requested format, and nothing else.",
    possible_statuses=(400, 422, 424, 500), is_refusal=True, fallback="requested", is_about_answer=True,
    model_moves=("note", "fallback"), stop_reason="the answer could not be used, also after a retry")
MODEL_OUTPUT_LIMIT = declare("model", "output_limit", REPLAN, YES,
    "The answer was cut off. Answer in fewer words, or in several parts.",
    possible_statuses=(400,), fallback="requested", is_about_answer=True, model_moves=("fallback", "note"),
    stop_reason="the answer could not be used, also after a retry",
    advice="failed with {kind}: request less output or raise the limit.")
MODEL_TIMEOUT = declare("model", "timeout", RETRY, UNKNOWN,
    "The model timed out: retry, or request less.",
    statuses=(408, 522, 524, 504), possible_statuses=(500, 502, 503))
MODEL_QUOTA_EXCEEDED = declare("model", "quota_exceeded", STOP, UNKNOWN,
    "The account is out of credit or quota. A retry cannot help: tell the user.",
    statuses=(402,), possible_statuses=(400, 401, 403, 412, 429), is_refusal=False, model_moves=("fallback",),
    stop_reason="a retry cannot help: the account is out of credit or quota")
MODEL_UNAVAILABLE = declare("model", "unavailable", RETRY, UNKNOWN,
    "The provider is down or overloaded: wait, or use another one.",
    statuses=(424, 500, 502, 503, 425, 520, 521, 523, 525, 529, 530), possible_statuses=(409, 504))
MODEL_BAD_REQUEST = declare("model", "bad_request", REPLAN, UNKNOWN,
    "The provider rejected the request. Change what the message names; a retry would fail again.",
    statuses=(400, 405, 415, 409, 422), possible_statuses=(412, 404, 413, 424), model_moves=("clamp", "note"),
    stop_reason="the provider rejected the request")
MODEL_AUTH_ERROR = declare("model", "auth_error", STOP, UNKNOWN,
    "The provider rejected the key or the account. A person must act.",
    statuses=(401, 403, 412), possible_statuses=(400, 404), model_moves=("refresh",))
MODEL_CONTENT_POLICY = declare("model", "content_policy", REPLAN, UNKNOWN,
    "The provider's content filter blocked this. Rephrase it, or omit that part and say so.",
    statuses=(451,), possible_statuses=(400, 403, 422), fallback="requested", model_moves=("fallback",),
    stop_reason="the provider's content filter blocked the request and would block a retry")
MODEL_NOT_FOUND = declare("model", "not_found", STOP, UNKNOWN,
    "This model does not exist, is retired, or is not available to this account.",
    statuses=(404,), possible_statuses=(400, 422), model_moves=("fallback",))
MODEL_UNKNOWN = declare("model", "unknown", REPLAN, UNKNOWN,
    "The provider failed for an unknown reason: retry once, then report it.",
    stop_reason="the cause of the failure is unknown")

# Retrieval
RETRIEVAL_NO_RESULTS = declare("retrieval", "no_results", REPLAN, YES,
    "Nothing matched. Use fewer or more general terms, or say that nothing was found.",
    is_about_state=True, is_empty_lookup=True, accepted_arguments=True)
RETRIEVAL_CONNECTION_ERROR = declare("retrieval", "connection_error", RETRY, UNKNOWN,
    "The index could not be reached. Continue without it, or retry later.")
RETRIEVAL_TIMEOUT = declare("retrieval", "timeout", RETRY, UNKNOWN,
    "The search took too long. Narrow it, or request fewer results.")
RETRIEVAL_INVALID_QUERY = declare("retrieval", "invalid_query", REPAIR, UNKNOWN,
    "The query is invalid. Check its syntax and the names of fields, tables and columns.",
    possible_statuses=(400,), is_refusal=True, rejects_if_declared=True, rejects_values=True)
RETRIEVAL_UNKNOWN = declare("retrieval", "unknown", REPLAN, UNKNOWN,
    "The search failed for an unknown reason. The same search may fail again.")

# Orchestration
ORCHESTRATION_MAX_RETRIES_EXCEEDED = declare("orchestration", "max_retries_exceeded", REPLAN, UNKNOWN,
    "All allowed attempts failed. Do not repeat the call: choose another approach, or say what is missing.",
    are_retries_exhausted=True)
ORCHESTRATION_INVALID_STATE = declare("orchestration", "invalid_state", REPLAN, UNKNOWN,
    "This is not possible in the current state. Read that state, then take a step that is possible.",
    is_refusal=True, rejects_if_declared=True, accepted_arguments=True)
ORCHESTRATION_CONSTRAINT_VIOLATION = declare("orchestration", "constraint_violation", REPLAN, UNKNOWN,
    "A rule forbids this. Choose what the rule allows; the same call will be rejected again.",
    possible_statuses=(402,), is_refusal=True, rejects_if_declared=True, accepted_arguments=True)
ORCHESTRATION_PRECONDITION = declare("orchestration", "precondition", REPLAN, UNKNOWN,
    "Something that the call needs is missing. Provide it first if you may, else tell the user; then repeat the call.",
    possible_statuses=(402,), is_refusal=True, rejects_if_declared=True, accepted_arguments=True)
ORCHESTRATION_UNCAUGHT_EXCEPTION = declare("orchestration", "uncaught_exception", STOP, UNKNOWN,
    "The program that runs the tools failed. Other arguments will not help: a person must fix it.")
ORCHESTRATION_LOOP_DETECTED = declare("orchestration", "loop_detected", REPLAN, NO,
    "The same call failed the same way before, so it was blocked. Change the approach.",
    rejects_if_declared=True, has_no_repair=True, is_unrelated_to_values=True, is_loop=True)
ORCHESTRATION_UNKNOWN = declare("orchestration", "unknown", REPLAN, UNKNOWN,
    "The agent framework failed for an unknown reason. Say what remains to be done.")

# Not a failure
NONE_USER_REJECTED = declare("none", "user_rejected", REPLAN, NO,
    "The user rejected this call. Do not repeat it: follow the user's instructions, or ask.",
    is_user_rejection=True)
NONE_CANCELLED = declare("none", "cancelled", REPLAN, UNKNOWN,
    "The call was cancelled. That says nothing about the call itself.",
    is_cancelled=True)
NONE_COLLATERAL = declare("none", "collateral", REPLAN, UNKNOWN,
    "The call was dropped because a parallel call failed. Handle that failure, then repeat this call.")
# fmt: on

KINDS: dict[str, Kind] = {str(kind): kind for kind in list(globals().values()) if isinstance(kind, Kind)}
"""All kinds by name, in the order above."""


def _group_by_status(is_model: bool) -> dict[int, tuple[Kind, ...]]:
    rows = [kind for kind in KINDS.values() if (kind.type == "model") is is_model]
    statuses = dict.fromkeys(status for kind in rows for status in kind.statuses)
    return {
        status: (
            *(kind for kind in rows if status in kind.statuses),
            *(kind for kind in rows if status in kind.possible_statuses),
        )
        for status in statuses
    }


_KINDS_BY_STATUS = {is_model: _group_by_status(is_model) for is_model in (False, True)}


def find_kinds_of_status(status: int | None, type: str = "tool") -> tuple[Kind, ...]:
    """Return the kinds that an HTTP status allows, likeliest first. None for what is no status, such as a mail code."""
    if status is None or status < 400 or (type != "model" and 530 < status < 598):
        return ()
    kinds_by_status = _KINDS_BY_STATUS[type == "model"]
    default = (400, 500) if type == "model" else (405, 501)
    return kinds_by_status.get(status) or kinds_by_status[default[status >= 500]]


KINDS_BY_EXIT_CODE = {code: kind for kind in KINDS.values() for code in kind.exit_codes}


def find_kind(type: object, code: object, kinds: Mapping[str, Kind] = KINDS) -> Kind:
    """Return the kind with this type and code. Raise `SettingsError`, with the nearest name, if there is none."""
    type_name, code_name = to_code(type).lower(), to_code(code).lower()
    name = f"{type_name}/{code_name}"
    if kind := kinds.get(name):
        return kind
    check_type(type_name, kinds)
    names = {kind.code: str(kind) for kind in kinds.values() if kind.type == type_name or kind.code == code_name}
    if not code_name:
        raise SettingsError(f"Missing failure code. Use one of {', '.join(names)}.")
    near_code = _nearest(code_name, names)
    suggestion = f" Did you mean {names[near_code]!r}?" if near_code else ""
    declaration = f'Declare a kind of your own in mulligan.toml: [kinds."{name}"].'
    raise SettingsError(f"Unknown kind {name!r}.{suggestion} {declaration}")


def check_type(type: str, kinds: Mapping[str, Kind] = KINDS) -> None:
    """Raise `SettingsError`, with the nearest name, unless there are kinds of this type."""
    types = list(dict.fromkeys(kind.type for kind in kinds.values()))
    if type not in types:
        near_type = _nearest(type, types)
        suggestion = f" Did you mean {near_type!r}?" if near_type else ""
        problem = f"Unknown failure type {type!r}." if type else "Missing failure type."
        raise SettingsError(f"{problem}{suggestion} Use one of {', '.join(types)}.")


def is_misspelled_type(type: str) -> bool:
    """Return whether a declared type is similar to a built-in one but not equal. Any other type is the user's own."""
    return type not in TYPES and bool(_nearest(type, TYPES))


def _nearest(name: str, names: Iterable[str]) -> str:
    from difflib import get_close_matches  # lazy: rarely needed

    return next(iter(get_close_matches(name, list(names), 1, 0.6)), "")


def find_declared_kind(code: str, source: str | None, kinds: Mapping[str, Kind] = KINDS) -> Kind | None:
    """Return the kind that the code of an `AgentError` names: of the step's type, of a tool, or of one other type."""
    name = code.lower()
    for full_name in (name, f"{source or 'tool'}/{name}", f"tool/{name}"):
        if kind := kinds.get(full_name):
            return kind
    same_code = [kind for kind in kinds.values() if kind.code == name]
    return same_code[0] if len(same_code) == 1 else None


_TYPE_DESCRIPTIONS = {
    "tool": "Failures of tool calls.",
    "model": "Failures of model calls.",
    "retrieval": "Failures of searches and lookups.",
    "orchestration": "Failures of the agent that makes the calls.",
    "none": "Not a failure: recorded, never counted.",
}
TYPES = tuple(_TYPE_DESCRIPTIONS)
_PAGE_HEADER = """# Kinds of failure

Generated from `src/mulligan/classify/kinds.py` by `python -m mulligan.classify.kinds`. Do not edit.

*Remedy* is the next action: retry (after a backoff), repair (the arguments), compress (the conversation),
replan (the model must act differently), stop (a person must act). *Took effect* says whether the failed call
executed, as far as the kind alone shows; a failure with proof overrides it.
"""


def render_page() -> str:
    """Render every kind with its remedy, whether the call may have taken effect, and its hint for the model."""
    page = _PAGE_HEADER
    for type_, description in _TYPE_DESCRIPTIONS.items():
        page += f"\n## {type_}\n\n{description}\n\n| kind | remedy | took effect | hint for the model |\n"
        page += "| --- | --- | --- | --- |\n"
        page += "".join(
            f"| `{kind}` | {kind.remedy.value} | {kind.took_effect.value} | {kind.hint} |\n"
            for kind in KINDS.values()
            if kind.type == type_
        )
    return page


if __name__ == "__main__":
    print(render_page(), end="")
