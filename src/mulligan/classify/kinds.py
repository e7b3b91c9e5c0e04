"""The table of failure kinds: remedy, whether the call may have taken effect, and a hint for the model.

`took_effect` is what the kind alone tells. It is `NO` only if the call cannot have executed. A rule with
proof, such as a refused connection or a JSON-RPC rejection, sets it on the failure.
"""

from __future__ import annotations

from mulligan.core.failure import Kind, Remedy, TookEffect

RETRY, REPAIR, COMPRESS, REPLAN, STOP = Remedy.RETRY, Remedy.REPAIR, Remedy.COMPRESS, Remedy.REPLAN, Remedy.STOP
NO, YES, UNKNOWN = TookEffect.NO, TookEffect.YES, TookEffect.UNKNOWN

# Tool calls

TOOL_TIMEOUT = Kind(
    "tool",
    "timeout",
    RETRY,
    UNKNOWN,
    "It may have happened all the same: check before calling again, or ask for less at a time.",
)
TOOL_CONNECTION_ERROR = Kind(
    "tool",
    "connection_error",
    RETRY,
    UNKNOWN,
    "The service could not be reached. Other arguments will not help, unless the host or port came from you.",
)
TOOL_UNAVAILABLE = Kind(
    "tool", "unavailable", RETRY, UNKNOWN, "The service is down or overloaded. Try again later, or go on without it."
)
TOOL_RATE_LIMIT = Kind(
    "tool", "rate_limit", RETRY, UNKNOWN, "Too many calls in a short time. Wait, then make fewer or larger calls."
)
TOOL_API_ERROR = Kind(
    "tool",
    "api_error",
    RETRY,
    UNKNOWN,
    "The service failed on its own side. Check whether anything happened before calling again.",
)
TOOL_INVALID_RESPONSE = Kind(
    "tool",
    "invalid_response",
    RETRY,
    UNKNOWN,
    "The answer could not be read, which says nothing about your arguments. It may have worked: check first.",
)
TOOL_AUTH_ERROR = Kind(
    "tool",
    "auth_error",
    STOP,
    UNKNOWN,
    "The credentials are missing or were refused. Tell the user; do not guess or search for others.",
)
TOOL_PERMISSION_DENIED = Kind(
    "tool",
    "permission_denied",
    REPLAN,
    UNKNOWN,
    "This is not allowed here. Do not work around it: use what you may use, or ask the user.",
)
TOOL_INVALID_ARGUMENTS = Kind(
    "tool",
    "invalid_arguments",
    REPAIR,
    UNKNOWN,
    "Compare the arguments with the tool's schema: names, types, allowed values, what is required.",
)
TOOL_UNKNOWN_TOOL = Kind(
    "tool", "unknown_tool", REPAIR, NO, "There is no tool of this name. Use one of the names you were given, exactly."
)
TOOL_NOT_FOUND = Kind(
    "tool",
    "not_found",
    REPAIR,
    UNKNOWN,
    "Nothing has this name or id. Take it from an earlier result, or list what exists first.",
)
TOOL_CONFLICT = Kind(
    "tool",
    "conflict",
    REPLAN,
    UNKNOWN,
    "It clashes with what is there already. Read the current state, then decide what is still to do.",
)
TOOL_EDIT_MISMATCH = Kind(
    "tool",
    "edit_mismatch",
    REPLAN,
    NO,
    "Read the file again and copy the text to replace exactly, with enough lines around it to be unique.",
)
TOOL_STALE_FILE = Kind(
    "tool", "stale_file", REPLAN, NO, "Read the file first: it was not read yet, or has changed since you read it."
)
TOOL_FILE_NOT_FOUND = Kind(
    "tool",
    "file_not_found",
    REPAIR,
    UNKNOWN,
    "There is no such file or folder. List the folder, check where you are, and use the full path.",
)
TOOL_COMMAND_NOT_FOUND = Kind(
    "tool",
    "command_not_found",
    REPLAN,
    UNKNOWN,
    "This program is not installed or not on the path. Use another one, or install it if you may.",
)
TOOL_BUILD_FAILURE = Kind(
    "tool",
    "build_failure",
    REPLAN,
    YES,
    "The code does not compile. Fix the first error; building again changes nothing.",
)
TOOL_TEST_FAILURE = Kind(
    "tool",
    "test_failure",
    REPLAN,
    YES,
    "The tests ran and some failed. Read the first assertion, and change the code before you run them again.",
)
TOOL_WRONG_APPROACH = Kind(
    "tool",
    "wrong_approach",
    REPLAN,
    UNKNOWN,
    "This way has failed several times. Step back and choose a different one.",
)
TOOL_OUTPUT_TOO_LARGE = Kind(
    "tool",
    "output_too_large",
    REPLAN,
    UNKNOWN,
    "The answer is too large. Ask for a part of it: a range, a filter, a smaller page.",
)
TOOL_EXECUTION_FAILED = Kind(
    "tool",
    "execution_failed",
    REPLAN,
    UNKNOWN,
    "It ran and failed. Read what it said; check what was changed before you run it again.",
)
TOOL_UNKNOWN = Kind(
    "tool",
    "unknown",
    REPLAN,
    UNKNOWN,
    "The reason is not known. Check whether anything happened, and try another way rather than the same again.",
)

# Model calls

MODEL_RATE_LIMIT = Kind("model", "rate_limit", RETRY, UNKNOWN, "Too many requests or tokens a minute: wait.")
MODEL_CONTEXT_LENGTH_EXCEEDED = Kind(
    "model",
    "context_length_exceeded",
    COMPRESS,
    UNKNOWN,
    "The conversation does not fit. Shorten or summarise old results, then ask again.",
)
MODEL_INVALID_OUTPUT = Kind(
    "model",
    "invalid_output",
    REPLAN,
    YES,
    "The answer could not be read. Answer again in exactly the format that was asked for, and nothing else.",
)
MODEL_OUTPUT_LIMIT = Kind(
    "model", "output_limit", REPLAN, YES, "The answer was cut off. Answer in fewer words, or in several parts."
)
MODEL_TIMEOUT = Kind("model", "timeout", RETRY, UNKNOWN, "The model did not answer in time: ask again, or for less.")
MODEL_QUOTA_EXCEEDED = Kind(
    "model",
    "quota_exceeded",
    STOP,
    UNKNOWN,
    "The account is out of credit or quota. Waiting does not help: tell the user.",
)
MODEL_UNAVAILABLE = Kind(
    "model", "unavailable", RETRY, UNKNOWN, "The provider is down or overloaded: wait, or use another."
)
MODEL_BAD_REQUEST = Kind(
    "model",
    "bad_request",
    REPLAN,
    UNKNOWN,
    "The provider refused the request as it stands. Change what the message names; the same again fails again.",
)
MODEL_AUTH_ERROR = Kind(
    "model", "auth_error", STOP, UNKNOWN, "The key or the account was refused by the provider. A person must act."
)
MODEL_CONTENT_POLICY = Kind(
    "model",
    "content_policy",
    REPLAN,
    UNKNOWN,
    "The provider's content filter stopped this. Say it differently, or leave that part out and say so.",
)
MODEL_NOT_FOUND = Kind(
    "model", "not_found", STOP, UNKNOWN, "This model does not exist, is retired, or is not open to this account."
)
MODEL_UNKNOWN = Kind(
    "model", "unknown", REPLAN, UNKNOWN, "The provider failed for a reason we do not know: ask once more, then say so."
)

# Retrieval

RETRIEVAL_NO_RESULTS = Kind(
    "retrieval",
    "no_results",
    REPLAN,
    YES,
    "Nothing matched. Use fewer or more general terms, or say that nothing was found.",
)
RETRIEVAL_CONNECTION_ERROR = Kind(
    "retrieval", "connection_error", RETRY, UNKNOWN, "The index could not be reached. Go on without it, or try later."
)
RETRIEVAL_TIMEOUT = Kind(
    "retrieval", "timeout", RETRY, UNKNOWN, "The search took too long. Narrow it, or ask for fewer results."
)
RETRIEVAL_INVALID_QUERY = Kind(
    "retrieval",
    "invalid_query",
    REPAIR,
    UNKNOWN,
    "The query itself is wrong. Check its syntax and the names of fields, tables and columns.",
)
RETRIEVAL_UNKNOWN = Kind(
    "retrieval",
    "unknown",
    REPLAN,
    UNKNOWN,
    "The search failed for a reason we do not know. Try another way to find it.",
)

# Orchestration

ORCHESTRATION_MAX_RETRIES_EXCEEDED = Kind(
    "orchestration",
    "max_retries_exceeded",
    REPLAN,
    UNKNOWN,
    "It was tried as often as is allowed. Do not repeat it: take another way, or say what is missing.",
)
ORCHESTRATION_INVALID_STATE = Kind(
    "orchestration",
    "invalid_state",
    REPLAN,
    UNKNOWN,
    "This cannot be done in the present state. Find out what the state is, then take the step that leads on.",
)
ORCHESTRATION_CONSTRAINT_VIOLATION = Kind(
    "orchestration",
    "constraint_violation",
    REPLAN,
    UNKNOWN,
    "A rule forbids this. Choose what the rule allows; the same call will be refused again.",
)
ORCHESTRATION_PRECONDITION = Kind(
    "orchestration",
    "precondition",
    REPLAN,
    UNKNOWN,
    "Something else must be done first. Do that, then make the same call again.",
)
ORCHESTRATION_UNCAUGHT_EXCEPTION = Kind(
    "orchestration",
    "uncaught_exception",
    STOP,
    UNKNOWN,
    "The program around the tools failed. Other arguments will not help: a person must look at it.",
)
ORCHESTRATION_LOOP_DETECTED = Kind(
    "orchestration",
    "loop_detected",
    REPLAN,
    NO,
    "The same call has failed the same way before, so it was not made. Change the approach.",
)
ORCHESTRATION_UNKNOWN = Kind(
    "orchestration",
    "unknown",
    REPLAN,
    UNKNOWN,
    "The agent's own machinery failed for a reason we do not know. Say what is left undone.",
)

# Not a failure

NONE_USER_REJECTED = Kind(
    "none", "user_rejected", REPLAN, NO, "The user said no. Do not make this call again: do what the user says, or ask."
)
NONE_CANCELLED = Kind(
    "none", "cancelled", REPLAN, UNKNOWN, "The call was stopped from outside. It says nothing about the call itself."
)
NONE_COLLATERAL = Kind(
    "none",
    "collateral",
    REPLAN,
    UNKNOWN,
    "It was dropped because a call beside it failed. Deal with that one, then make this call again.",
)

KINDS: dict[str, Kind] = {str(kind): kind for kind in list(globals().values()) if isinstance(kind, Kind)}
"""All kinds by name, in the order above."""

TYPES = ("tool", "model", "retrieval", "orchestration", "none")
