"""The table of failure kinds: remedy, whether the call may have taken effect, and a hint for the model.

`took_effect` is what the kind alone tells. It is `NO` only if the call cannot have executed. A rule with
proof, such as a refused connection or a JSON-RPC rejection, sets it on the failure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from mulligan.core.failure import Kind, Remedy, SettingsError, TookEffect, to_code

RETRY, REPAIR, COMPRESS, REPLAN, STOP = Remedy.RETRY, Remedy.REPAIR, Remedy.COMPRESS, Remedy.REPLAN, Remedy.STOP
NO, YES, UNKNOWN = TookEffect.NO, TookEffect.YES, TookEffect.UNKNOWN

# fmt: off
# Tool calls
TOOL_TIMEOUT = Kind("tool", "timeout", RETRY, UNKNOWN,
    "The call did not answer in time. If it only reads, a smaller request may succeed.")
TOOL_CONNECTION_ERROR = Kind("tool", "connection_error", RETRY, UNKNOWN,
    "The service could not be reached. Other arguments will not help, unless the host or port came from you.")
TOOL_UNAVAILABLE = Kind("tool", "unavailable", RETRY, UNKNOWN,
    "The service is down or overloaded. Retry later, or continue without it.")
TOOL_RATE_LIMIT = Kind("tool", "rate_limit", RETRY, UNKNOWN,
    "Too many calls in a short time. Wait, then make fewer or larger calls.")
TOOL_API_ERROR = Kind("tool", "api_error", RETRY, UNKNOWN,
    "The service had an internal error. The arguments may be fine.")
TOOL_INVALID_RESPONSE = Kind("tool", "invalid_response", RETRY, UNKNOWN,
    "The response could not be parsed. The arguments may be fine.")
TOOL_AUTH_ERROR = Kind("tool", "auth_error", STOP, UNKNOWN,
    "The credentials are missing or were rejected. Tell the user; do not guess or search for others.")
TOOL_PERMISSION_DENIED = Kind("tool", "permission_denied", REPLAN, UNKNOWN,
    "This is not allowed here. Do not work around it: use a permitted alternative, or ask the user.")
TOOL_INVALID_ARGUMENTS = Kind("tool", "invalid_arguments", REPAIR, UNKNOWN,
    "Compare the arguments with the tool's schema: names, types, allowed values, required arguments.")
TOOL_UNKNOWN_TOOL = Kind("tool", "unknown_tool", REPAIR, NO,
    "No tool has this name. Use one of the listed tool names exactly.")
TOOL_NOT_FOUND = Kind("tool", "not_found", REPAIR, UNKNOWN,
    "Nothing has this name or id. Take it from an earlier result, or list what exists first.")
TOOL_CONFLICT = Kind("tool", "conflict", REPLAN, UNKNOWN,
    "The call conflicts with the current state. Read that state, then decide what remains to be done.")
TOOL_EDIT_MISMATCH = Kind("tool", "edit_mismatch", REPLAN, NO,
    "Read the file again and copy the text to replace exactly, with enough lines around it to be unique.")
TOOL_STALE_FILE = Kind("tool", "stale_file", REPLAN, NO,
    "Read the file first: it was not read yet, or has changed since you read it.")
TOOL_FILE_NOT_FOUND = Kind("tool", "file_not_found", REPAIR, UNKNOWN,
    "There is no such file or folder. List the folder, or check the working directory, to find the right path.")
TOOL_COMMAND_NOT_FOUND = Kind("tool", "command_not_found", REPLAN, UNKNOWN,
    "This program is not installed here, or is not on the path. Check its name and how it is started here.")
TOOL_BUILD_FAILURE = Kind("tool", "build_failure", REPLAN, YES,
    "The code does not compile. Fix the first error; building again changes nothing.")
TOOL_TEST_FAILURE = Kind("tool", "test_failure", REPLAN, YES,
    "The tests ran and some failed. Read the first assertion, and change the code before you run them again.")
TOOL_WRONG_APPROACH = Kind("tool", "wrong_approach", REPLAN, UNKNOWN,
    "This approach failed several times. Choose a different one.")
TOOL_OUTPUT_TOO_LARGE = Kind("tool", "output_too_large", REPLAN, UNKNOWN,
    "The result is too large. Request a part of it: a range, a filter, a smaller page.")
TOOL_EXECUTION_FAILED = Kind("tool", "execution_failed", REPLAN, UNKNOWN,
    "The call failed. Read its output before you repeat it.")
TOOL_UNKNOWN = Kind("tool", "unknown", REPLAN, UNKNOWN,
    "The cause is unknown. The same call may fail again.")

# Model calls
MODEL_RATE_LIMIT = Kind("model", "rate_limit", RETRY, UNKNOWN, "Too many requests or tokens per minute: wait.")
MODEL_CONTEXT_LENGTH_EXCEEDED = Kind("model", "context_length_exceeded", COMPRESS, UNKNOWN,
    "The conversation exceeds the context window. Shorten or summarize old results, then retry.")
MODEL_INVALID_OUTPUT = Kind("model", "invalid_output", REPLAN, YES,
    "The answer could not be parsed. Answer again in exactly the requested format, and nothing else.")
MODEL_OUTPUT_LIMIT = Kind("model", "output_limit", REPLAN, YES,
    "The answer was cut off. Answer in fewer words, or in several parts.")
MODEL_TIMEOUT = Kind("model", "timeout", RETRY, UNKNOWN, "The model timed out: retry, or request less.")
MODEL_QUOTA_EXCEEDED = Kind("model", "quota_exceeded", STOP, UNKNOWN,
    "The account is out of credit or quota. A retry cannot help: tell the user.")
MODEL_UNAVAILABLE = Kind("model", "unavailable", RETRY, UNKNOWN,
    "The provider is down or overloaded: wait, or use another one.")
MODEL_BAD_REQUEST = Kind("model", "bad_request", REPLAN, UNKNOWN,
    "The provider rejected the request. Change what the message names; a retry would fail again.")
MODEL_AUTH_ERROR = Kind("model", "auth_error", STOP, UNKNOWN,
    "The provider rejected the key or the account. A person must act.")
MODEL_CONTENT_POLICY = Kind("model", "content_policy", REPLAN, UNKNOWN,
    "The provider's content filter blocked this. Rephrase it, or omit that part and say so.")
MODEL_NOT_FOUND = Kind("model", "not_found", STOP, UNKNOWN,
    "This model does not exist, is retired, or is not available to this account.")
MODEL_UNKNOWN = Kind("model", "unknown", REPLAN, UNKNOWN,
    "The provider failed for an unknown reason: retry once, then report it.")

# Retrieval
RETRIEVAL_NO_RESULTS = Kind("retrieval", "no_results", REPLAN, YES,
    "Nothing matched. Use fewer or more general terms, or say that nothing was found.")
RETRIEVAL_CONNECTION_ERROR = Kind("retrieval", "connection_error", RETRY, UNKNOWN,
    "The index could not be reached. Continue without it, or retry later.")
RETRIEVAL_TIMEOUT = Kind("retrieval", "timeout", RETRY, UNKNOWN,
    "The search took too long. Narrow it, or request fewer results.")
RETRIEVAL_INVALID_QUERY = Kind("retrieval", "invalid_query", REPAIR, UNKNOWN,
    "The query is invalid. Check its syntax and the names of fields, tables and columns.")
RETRIEVAL_UNKNOWN = Kind("retrieval", "unknown", REPLAN, UNKNOWN,
    "The search failed for an unknown reason. The same search may fail again.")

# Orchestration
ORCHESTRATION_MAX_RETRIES_EXCEEDED = Kind("orchestration", "max_retries_exceeded", REPLAN, UNKNOWN,
    "All allowed attempts failed. Do not repeat the call: choose another approach, or say what is missing.")
ORCHESTRATION_INVALID_STATE = Kind("orchestration", "invalid_state", REPLAN, UNKNOWN,
    "This is not possible in the current state. Read that state, then take a step that is possible.")
ORCHESTRATION_CONSTRAINT_VIOLATION = Kind("orchestration", "constraint_violation", REPLAN, UNKNOWN,
    "A rule forbids this. Choose what the rule allows; the same call will be rejected again.")
ORCHESTRATION_PRECONDITION = Kind("orchestration", "precondition", REPLAN, UNKNOWN,
    "Something that the call needs is missing. Provide it first if you may, else tell the user; then repeat the call.")
ORCHESTRATION_UNCAUGHT_EXCEPTION = Kind("orchestration", "uncaught_exception", STOP, UNKNOWN,
    "The program that runs the tools failed. Other arguments will not help: a person must fix it.")
ORCHESTRATION_LOOP_DETECTED = Kind("orchestration", "loop_detected", REPLAN, NO,
    "The same call failed the same way before, so it was blocked. Change the approach.")
ORCHESTRATION_UNKNOWN = Kind("orchestration", "unknown", REPLAN, UNKNOWN,
    "The agent framework failed for an unknown reason. Say what remains to be done.")

# Not a failure
NONE_USER_REJECTED = Kind("none", "user_rejected", REPLAN, NO,
    "The user rejected this call. Do not repeat it: follow the user's instructions, or ask.")
NONE_CANCELLED = Kind("none", "cancelled", REPLAN, UNKNOWN,
    "The call was cancelled. That says nothing about the call itself.")
NONE_COLLATERAL = Kind("none", "collateral", REPLAN, UNKNOWN,
    "The call was dropped because a parallel call failed. Handle that failure, then repeat this call.")
# fmt: on

KINDS: dict[str, Kind] = {str(kind): kind for kind in list(globals().values()) if isinstance(kind, Kind)}
"""All kinds by name, in the order above."""


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
