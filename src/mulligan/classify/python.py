"""Rules for exceptions and HTTP statuses: each gives the set of kinds it allows, the likeliest first."""

from __future__ import annotations

from mulligan.classify import taxonomy as kinds
from mulligan.failure import Kind

STATUSES: dict[int, tuple[Kind, ...]] = {
    400: (kinds.TOOL_INVALID_ARGUMENTS, kinds.TOOL_AUTH_ERROR, kinds.RETRIEVAL_INVALID_QUERY),
    401: (kinds.TOOL_AUTH_ERROR,),
    402: (kinds.TOOL_PERMISSION_DENIED,),
    403: (kinds.TOOL_PERMISSION_DENIED, kinds.TOOL_AUTH_ERROR, kinds.TOOL_RATE_LIMIT),
    404: (kinds.TOOL_NOT_FOUND, kinds.TOOL_UNKNOWN_TOOL, kinds.TOOL_FILE_NOT_FOUND),
    405: (kinds.TOOL_INVALID_ARGUMENTS,),
    406: (kinds.TOOL_INVALID_ARGUMENTS,),
    407: (kinds.TOOL_AUTH_ERROR,),
    408: (kinds.TOOL_TIMEOUT,),
    409: (kinds.TOOL_CONFLICT,),
    410: (kinds.TOOL_NOT_FOUND,),
    411: (kinds.TOOL_INVALID_ARGUMENTS,),
    412: (kinds.TOOL_CONFLICT,),
    413: (kinds.TOOL_INVALID_ARGUMENTS,),
    414: (kinds.TOOL_INVALID_ARGUMENTS,),
    415: (kinds.TOOL_INVALID_ARGUMENTS,),
    422: (kinds.TOOL_INVALID_ARGUMENTS,),
    423: (kinds.TOOL_CONFLICT,),
    424: (kinds.TOOL_API_ERROR,),
    425: (kinds.TOOL_UNAVAILABLE,),
    428: (kinds.TOOL_CONFLICT,),
    429: (kinds.TOOL_RATE_LIMIT,),
    431: (kinds.TOOL_INVALID_ARGUMENTS,),
    451: (kinds.TOOL_PERMISSION_DENIED,),
    500: (kinds.TOOL_API_ERROR, kinds.TOOL_UNAVAILABLE),
    501: (kinds.TOOL_API_ERROR,),
    502: (kinds.TOOL_UNAVAILABLE, kinds.TOOL_API_ERROR),
    503: (kinds.TOOL_UNAVAILABLE, kinds.TOOL_RATE_LIMIT),
    504: (kinds.TOOL_TIMEOUT, kinds.TOOL_UNAVAILABLE),
    507: (kinds.TOOL_UNAVAILABLE,),
    520: (kinds.TOOL_UNAVAILABLE,),
    521: (kinds.TOOL_UNAVAILABLE,),
    522: (kinds.TOOL_TIMEOUT,),
    523: (kinds.TOOL_UNAVAILABLE,),
    524: (kinds.TOOL_TIMEOUT,),
    529: (kinds.TOOL_UNAVAILABLE,),
}

CLASSES: dict[str, tuple[Kind, ...]] = {
    "TimeoutError": (kinds.TOOL_TIMEOUT,),
    "Timeout": (kinds.TOOL_TIMEOUT,),
    "TimeoutExpired": (kinds.TOOL_TIMEOUT,),
    "TimeoutException": (kinds.TOOL_TIMEOUT,),
    "ReadTimeout": (kinds.TOOL_TIMEOUT,),
    "ConnectTimeout": (kinds.TOOL_TIMEOUT,),
    "ServerTimeoutError": (kinds.TOOL_TIMEOUT,),
    "ConnectionError": (kinds.TOOL_CONNECTION_ERROR, kinds.TOOL_TIMEOUT),
    "ConnectError": (kinds.TOOL_CONNECTION_ERROR,),
    "FileNotFoundError": (kinds.TOOL_FILE_NOT_FOUND, kinds.TOOL_COMMAND_NOT_FOUND),
    "PermissionError": (kinds.TOOL_PERMISSION_DENIED,),
    "JSONDecodeError": (kinds.TOOL_INVALID_RESPONSE, kinds.TOOL_INVALID_ARGUMENTS),
    "ValidationError": (kinds.TOOL_INVALID_ARGUMENTS, kinds.TOOL_INVALID_RESPONSE),
    "TypeError": (kinds.TOOL_INVALID_ARGUMENTS, kinds.TOOL_EXECUTION_FAILED),
}
