"""The table of failure kinds: remedy, whether the call may have taken effect, and a hint for the model.

`took_effect` is what the kind alone tells. It is `NO` only if the call cannot have executed. A rule with
proof, such as a refused connection or a JSON-RPC rejection, sets it on the failure.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Mapping
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


_OWN_EVIDENCE = ("statuses", "possible_statuses", "numbers", "possible_numbers", "permanent_numbers")
"""Properties that a type of kinds does not share with another: a status of a model call means a kind of model calls."""

# fmt: off
# Tool calls
TOOL_TIMEOUT = declare("tool", "timeout", RETRY, UNKNOWN,
    "The call did not answer in time. If it only reads, a smaller request may succeed.",
    statuses=(408, 522, 524, 504), can_occur_in_output=True, loses_answer=True, is_timeout=True, is_about_state=True,
    is_outage=True, fallback="default", model_codes=("timeout",),
    numbers="clickhouse 159 209; "
    "exit 124; ETIMEDOUT ESOCKETTIMEDOUT ETIME ERR_TIMED_OUT ERR_CONNECTION_TIMED_OUT "
    "UND_ERR_CONNECT_TIMEOUT UND_ERR_HEADERS_TIMEOUT UND_ERR_BODY_TIMEOUT IO_TIMEOUT; errno 110 60; windows 121 258 "
    "1053 1460 10060 12002; hresult 80131505; sqlstate 57014 HYT00 HYT01 57P05 25P03; grpc 4; oracle 12170 12535 "
    "12609; mysql 1159 1161 1969 3024; sqlserver -2; mongodb 50 89 262; curl 28; rpc -32001",
    possible_numbers="ECONNABORTED; errno 103 53; grpc 14 13; sqlstate 08 57")
TOOL_CONNECTION_ERROR = declare("tool", "connection_error", RETRY, UNKNOWN,
    "The service could not be reached. Other arguments will not help, unless the host or port came from you.",
    can_occur_in_output=True, loses_answer=True, is_about_state=True, is_cured_by_time=True, is_about_connection=True,
    model_codes=("unavailable", "timeout"),
    numbers="ECONNREFUSED ECONNRESET ECONNABORTED EHOSTUNREACH ENETUNREACH ENETDOWN EHOSTDOWN EPIPE ENOTCONN "
    "ENOTFOUND EAI_AGAIN EAI_NONAME EAI_FAIL ESHUTDOWN ENETRESET EADDRNOTAVAIL EPROTO ERR_NAME_NOT_RESOLVED "
    "ERR_CONNECTION_REFUSED ERR_CONNECTION_RESET ERR_CONNECTION_CLOSED ERR_CONNECTION_ABORTED ERR_CONNECTION_FAILED "
    "ERR_INTERNET_DISCONNECTED ERR_EMPTY_RESPONSE ERR_ADDRESS_UNREACHABLE ERR_NETWORK_CHANGED "
    "ERR_PROXY_CONNECTION_FAILED ERR_TUNNEL_CONNECTION_FAILED ERR_SSL_PROTOCOL_ERROR ERR_CERT_AUTHORITY_INVALID "
    "ERR_CERT_DATE_INVALID ERR_CERT_COMMON_NAME_INVALID ERR_SOCKET_NOT_CONNECTED ERR_HTTP2_PROTOCOL_ERROR "
    "ERR_QUIC_PROTOCOL_ERROR ERR_TLS_CERT_ALTNAME_INVALID ERR_STREAM_PREMATURE_CLOSE UND_ERR_SOCKET "
    "DEPTH_ZERO_SELF_SIGNED_CERT SELF_SIGNED_CERT_IN_CHAIN UNABLE_TO_VERIFY_LEAF_SIGNATURE "
    "UNABLE_TO_GET_ISSUER_CERT_LOCALLY CERT_HAS_EXPIRED; errno 111 61 104 54 103 53 113 65 101 51 100 50 112 64 32 "
    "107 57 108 58 102 52 99 49 -2 -3 -5 -3008 -3001; windows 10061 10054 10053 10065 10051 10050 10064 10057 11001 "
    "11002 11004 53 51 54 55 59 64 67 1225 1231 1232 1236 1722 2250 12007 12029 12030 12152 12175 BAD_NETWORK_PATH; "
    "sqlstate 08 IM002; oracle 12154 12541 12514 12505 12545 12560 3113 3114 3135 12537 12543 12547; mysql 2002 2003 "
    "2005 2006 2013 2055 1042 1047; sqlserver 53 233 10054 10060 10061 11001 64; db2 -30081; mongodb 6 7 9001; curl "
    "5 6 7 18 35 51 52 55 56 58 60 92",
    possible_numbers="grpc 14 13; sqlstate 57; rpc -32002 -32001; hresult 80004005")
TOOL_UNAVAILABLE = declare("tool", "unavailable", RETRY, UNKNOWN,
    "The service is down or overloaded. Retry later, or continue without it.",
    statuses=(421, 425, 520, 521, 523, 529, 502, 503), possible_statuses=(500, 504), can_occur_in_output=True,
    loses_answer=True, is_about_state=True, is_cured_by_time=True, is_outage=True, fallback="default",
    model_codes=("unavailable", "timeout", "rate_limit"),
    numbers="oracle 4061 4065 4068; clickhouse 202 242 252 279 999; "
    "EAGAIN EWOULDBLOCK EMFILE ENFILE EUSERS CLUSTERDOWN MASTERDOWN; errno 11 35 24 23; windows 21 1450 "
    "10055; hresult 8001010A; sqlstate 40 53 57 55P03; grpc 14; oracle 54 60 8177 18 20 1033 1034 1089 1109 1555 "
    "12516 12519 12520 12528 4031; mysql 1040 1053 1205 1213 1203 3572; sqlserver 1205 1222 40613 40501 40197 49918 "
    "49919 49920 10928 10929 17142 3960; sqlite BUSY LOCKED; db2 -904 -911 -913 -1224; mongodb 24 46 91 112 189 "
    "10107 11600 11602 13435 13436; ldap 51 52; smtp 421 450 451 452 4.2.1 4.2.2 4.3.2 4.4.1 4.4.2 4.7.0",
    possible_numbers="grpc 13; sqlstate 25006 08; rpc -32001 -32002; smtp 550")
TOOL_RATE_LIMIT = declare("tool", "rate_limit", RETRY, UNKNOWN,
    "Too many calls in a short time. Wait, then make fewer or larger calls.",
    statuses=(429,), possible_statuses=(403, 503), can_occur_in_output=True, rejects_if_declared=True,
    is_about_state=True, is_cured_by_time=True, is_outage=True, fallback="default", is_limit=True,
    model_codes=("rate_limit", "quota_exceeded", "context_length_exceeded"),
    numbers="grpc 8; mysql 1226; mongodb 16500",
    possible_numbers="smtp 421 450 451 452 550 4.7.0; rpc -32001; grpc 14")
TOOL_QUOTA_EXCEEDED = declare("tool", "quota_exceeded", STOP, UNKNOWN,
    "The plan or quota of this service is used up. A retry cannot help: tell the user, or continue without it.",
    statuses=(402, 432, 433, 507), possible_statuses=(400, 403, 426, 429, 503), can_occur_in_output=True,
    is_refusal=True, rejects_if_declared=True, is_about_state=True, is_used_up=True, code_if_short="rate_limit",
    is_outage=True, has_no_repair=True, is_unrelated_to_values=True, fallback="default",
    model_codes=("quota_exceeded",),
    advice="failed with {kind}: a person must act, retries do not help.",
    numbers="oracle 1536 1652 1653 1654 1658 1688; clickhouse 201; "
    "smtp 552 5.2.2", possible_numbers="grpc 8; smtp 452")
TOOL_CAPTCHA_REQUIRED = declare("tool", "captcha_required", STOP, UNKNOWN,
    "The site asks for proof that a person is using it. Do not try to pass it: tell the user, or use another source.",
    possible_statuses=(400, 401, 403, 429, 503), can_occur_in_output=True, is_refusal=True, rejects_if_declared=True,
    is_about_state=True, has_no_repair=True, is_unrelated_to_values=True, accepted_arguments=True)
TOOL_API_ERROR = declare("tool", "api_error", RETRY, UNKNOWN,
    "The service had an internal error. The arguments may be fine.",
    statuses=(405, 406, 424, 426, 501, 500), possible_statuses=(502,), loses_answer=True, is_about_state=True,
    model_codes=("unavailable",),
    numbers="hresult 80072F8F; sqlstate XX 58; grpc 12 13 15; oracle 600 7445; sqlserver 823 824; mongodb 1 8; ldap "
    "1 80",
    possible_numbers="grpc 14", permanent_numbers="http 405 406 426 501; grpc 12; rpc -32601")
TOOL_INVALID_RESPONSE = declare("tool", "invalid_response", RETRY, UNKNOWN,
    "The response could not be parsed. The arguments may be fine.",
    model_codes=("invalid_output", "unavailable"))
TOOL_AUTH_ERROR = declare("tool", "auth_error", STOP, UNKNOWN,
    "The credentials are missing or were rejected. Tell the user; do not guess or search for others.",
    statuses=(401, 407), possible_statuses=(400, 403), can_occur_in_output=True, is_refusal=True,
    rejects_if_declared=True, is_about_state=True, has_no_repair=True, model_codes=("auth_error",),
    numbers="clickhouse 192 193 516; "
    "LOGON_FAILURE WRONG_PASSWORD WRONGPASS NOAUTH; windows 86 1326 1327 1328 1330 1331 1907 1909 2202 12044 "
    "LOGON_FAILURE WRONG_PASSWORD ACCOUNT_LOCKED_OUT ACCOUNT_DISABLED PASSWORD_EXPIRED; hresult 8009030C 8009030E "
    "C000006D C000006A C0000234 C0000072; sqlstate 28; grpc 16; oracle 1017 1005 28000 28001; mysql 1045 1698 1820 "
    "1862 3118 1251; sqlserver 18456 18470 18452 18486 18487 18488 4060; db2 -30082; mongodb 18 8000; curl 67; ldap "
    "8 49; smtp 530 534 535 5.7.8 5.7.9",
    possible_numbers="EACCES; errno 13; sqlstate 08 42000; rpc -32001 -32002 -32600; smtp 5.7.1 550; mongodb "
    "13; grpc 7")
TOOL_PERMISSION_DENIED = declare("tool", "permission_denied", REPLAN, UNKNOWN,
    "This is not allowed here. Do not work around it: use a permitted alternative, or ask the user.",
    statuses=(451, 403), possible_statuses=(402,), can_occur_in_output=True, is_refusal=True,
    rejects_if_declared=True, is_about_object=True, has_no_repair=True, is_unrelated_to_values=True,
    accepted_arguments=True, model_codes=("auth_error", "content_policy", "quota_exceeded"),
    numbers="clickhouse 164 497; "
    "exit 126; EACCES EPERM EROFS E_ACCESSDENIED ERR_ACCESS_DENIED ERR_BLOCKED_BY_CLIENT "
    "ERR_BLOCKED_BY_RESPONSE ERR_BLOCKED_BY_ADMINISTRATOR ERR_UNSAFE_PORT ACCESS_REFUSED NOPERM; errno 13 1 30; "
    "windows 5 19 65 740 1260 1300 1314 1920 10013 225 ACCESS_DENIED PRIVILEGE_NOT_HELD ELEVATION_REQUIRED "
    "WRITE_PROTECT; hresult C0000022 C0000061; sqlstate 42501 25006; grpc 7; oracle 1031 1950 16000; mysql 1044 1142 "
    "1143 1227 1130 1290 1370 1836; sqlserver 229 230 262 297 300 916 3906; sqlite READONLY PERM AUTH; db2 -551 "
    "-552; mongodb 13; curl 9; ldap 50; smtp 5.7.1",
    possible_numbers="sqlstate 42000 28000; rpc -32600 -32001 -32602; smtp 550; grpc 16; hresult 80004005; windows "
    "32")
TOOL_INVALID_ARGUMENTS = declare("tool", "invalid_arguments", REPAIR, UNKNOWN,
    "Compare the arguments with the tool's schema: names, types, allowed values, required arguments.",
    statuses=(400, 411, 413, 414, 415, 431, 422), possible_statuses=(405, 406), is_refusal=True,
    rejects_if_declared=True, rejects_arguments=True, rejects_values=True, retrieval_code="invalid_query",
    numbers="WRONGTYPE EINVAL E2BIG ENAMETOOLONG EILSEQ EDOM ERANGE EMSGSIZE E_INVALIDARG ERR_INVALID_URL "
    "INVALID_PARAMETER; "
    "errno 22 7 36 63 84 33 34 90; windows 87 123 160 206 10022 INVALID_PARAMETER INVALID_NAME FILENAME_EXCED_RANGE; "
    "hresult C000000D; sqlstate 22; grpc 3 11; oracle 1438 1722 12899 1840 1841 1843 1847 1858 1861 1830; mysql "
    "1210 1153 "
    "1264 1265 1292 1364 1366 1406; sqlserver 220 241 242 245 2628 8114 8115 8152; sqlite MISMATCH RANGE TOOBIG; db2 "
    "-180 -181 -302 -420 -433; mongodb 2 9 14 121 10334; curl 1 3; ldap 21 34 65; smtp 501 5.1.3; rpc -32602 -32600 "
    "-32700",
    possible_numbers="sqlstate 42000; mongodb 40324")
TOOL_UNKNOWN_TOOL = declare("tool", "unknown_tool", REPAIR, NO,
    "No tool has this name. Use one of the listed tool names exactly.",
    possible_statuses=(404,), is_refusal=True, rejects_if_declared=True, is_about_tool_name=True,
    numbers="rpc -32601",
    possible_numbers="rpc -32602 -32600; grpc 5 12")
TOOL_NOT_FOUND = declare("tool", "not_found", REPAIR, UNKNOWN,
    "Nothing has this name or id. Take it from an earlier result, or list what exists first.",
    statuses=(404, 410), possible_statuses=(400,), is_refusal=True, rejects_if_declared=True, is_about_object=True,
    is_empty_lookup=True, fallback="default", accepted_arguments=True, retrieval_code="no_results",
    numbers="ESRCH ENXIO ENODEV; errno 3 6 19; windows 1168 1060 1801; grpc 5; oracle 1918; sqlserver 15151; ldap "
    "32; smtp 550 551 5.1.1 5.1.2 5.1.10; rpc -32002",
    possible_numbers="rpc -32001 -32600 -32602; windows 2")
TOOL_CONFLICT = declare("tool", "conflict", REPLAN, UNKNOWN,
    "The call conflicts with the current state. Read that state, then decide what remains to be done.",
    statuses=(409, 412, 423, 428), possible_statuses=(400, 405, 406, 422), rejects_if_declared=True,
    is_about_state=True, is_unrelated_to_values=True, accepted_arguments=True,
    numbers="clickhouse 57 82; "
    "EBUSY EEXIST ENOTEMPTY EADDRINUSE ETXTBSY EALREADY EISCONN EDEADLK RESOURCE_LOCKED PRECONDITION_FAILED; "
    "errno 16 17 39 66 98 48 26 114 106 56; windows 32 33 80 145 170 183 1056 1061 1618 10048 SHARING_VIOLATION "
    "LOCK_VIOLATION ALREADY_EXISTS FILE_EXISTS DIR_NOT_EMPTY OBJECT_NAME_COLLISION; hresult C0000043 C0000035; "
    "sqlstate 23 42P03 42P04 42P06 42P07 42710 42723 42S01 55006 2BP01 44; grpc 6 10; oracle 1 955 1400 1407 1430 "
    "1442 1920 2266 2290 2291 2292 2449; mysql 1007 1020 1048 1050 1060 1061 1062 1169 1216 1217 1451 1452 1557 1586 "
    "3819 4025; sqlserver 515 547 1801 2601 2627 2714; sqlite CONSTRAINT; db2 -407 -530 -532 -601 -803; mongodb 48 "
    "68 85 86 11000 11001; ldap 66 68",
    possible_numbers="sqlstate 42701 25006; grpc 9")
TOOL_EDIT_MISMATCH = declare("tool", "edit_mismatch", REPLAN, NO,
    "Read the file again and copy the text to replace exactly, with enough lines around it to be unique.",
    is_refusal=True, rejects_if_declared=True, is_about_state=True, is_about_quotation=True, needs_reread=True,
    is_unrelated_to_values=True,
    possible_numbers="rpc -32602")
TOOL_STALE_FILE = declare("tool", "stale_file", REPLAN, NO,
    "Read the file first: it was not read yet, or has changed since you read it.",
    is_refusal=True, rejects_if_declared=True, is_about_state=True, needs_reread=True, is_unrelated_to_values=True,
    prepared_by="read")
TOOL_FILE_NOT_FOUND = declare("tool", "file_not_found", REPAIR, UNKNOWN,
    "There is no such file or folder. List the folder, or check the working directory, to find the right path.",
    possible_statuses=(404,), can_occur_in_output=True, is_refusal=True, rejects_if_declared=True, is_about_state=True,
    is_about_object=True, is_empty_lookup=True, accepted_arguments=True,
    numbers="ENOENT ERR_FILE_NOT_FOUND; errno 2; windows 2 3 15 161 FILE_NOT_FOUND PATH_NOT_FOUND "
    "OBJECT_NAME_NOT_FOUND OBJECT_PATH_NOT_FOUND NO_SUCH_FILE; hresult C0000034 C000003A; curl 37 78",
    possible_numbers="grpc 5; rpc -32602 -32002; windows 126 67; errno 20")
TOOL_COMMAND_NOT_FOUND = declare("tool", "command_not_found", REPLAN, UNKNOWN,
    "This program is not installed here, or is not on the path. Check its name and how it is started here.",
    can_occur_in_output=True, is_refusal=True, rejects_if_declared=True, is_about_state=True,
    has_no_repair=True, is_unrelated_to_values=True,
    numbers="exit 127 9009",
    possible_numbers="ENOENT; errno 2; windows 2 3 193")
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
    advice="failed with {kind}: request less output or raise the limit.",
    numbers="clickhouse 158 241 307 396", possible_numbers="grpc 8")
TOOL_EXECUTION_FAILED = declare("tool", "execution_failed", REPLAN, UNKNOWN,
    "The call failed. Read its output before you repeat it.",
    can_occur_in_output=True, is_vague=True, has_no_cause=True,
    numbers="EISDIR ENOTDIR ENOSPC ENOMEM EIO EDQUOT EFBIG ENOEXEC EXDEV ENOSYS ENOTSUP EOPNOTSUPP ELOOP EFAULT "
    "ENOTTY EINTR ECHILD EBADF ESTALE SIGKILL SIGSEGV SIGABRT SIGBUS SIGILL SIGFPE SIGTRAP E_FAIL E_UNEXPECTED "
    "E_NOTIMPL E_OUTOFMEMORY; errno 21 20 28 12 5 122 69 27 18 38 78 95 40 62 14 25 4 10 9 116 70; windows 1 8 14 39 "
    "50 112 120 126 127 193 267 995 1392 1455 1603 DISK_FULL NOT_ENOUGH_MEMORY HANDLE_DISK_FULL; hresult 80004005 "
    "8000FFFF 80004001 80040154 C0000005 C0000135 C0000139 C0000142 C00000FD C0000409 C0000017; sqlstate 53100 "
    "53200; sqlite FULL IOERR NOMEM; exit 134 136 137 139")
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
    statuses=(404, 410), possible_statuses=(400, 422), model_moves=("fallback",))
MODEL_UNKNOWN = declare("model", "unknown", REPLAN, UNKNOWN,
    "The provider failed for an unknown reason: retry once, then report it.",
    stop_reason="the cause of the failure is unknown")

# Retrieval
RETRIEVAL_NO_RESULTS = declare("retrieval", "no_results", REPLAN, YES,
    "Nothing matched. Use fewer or more general terms, or say that nothing was found.",
    is_about_state=True, is_empty_lookup=True, accepted_arguments=True,
    numbers="sqlstate 02000 P0002; oracle 1403; db2 100")
RETRIEVAL_CONNECTION_ERROR = declare("retrieval", "connection_error", RETRY, UNKNOWN,
    "The index could not be reached. Continue without it, or retry later.")
RETRIEVAL_TIMEOUT = declare("retrieval", "timeout", RETRY, UNKNOWN,
    "The search took too long. Narrow it, or request fewer results.")
RETRIEVAL_INVALID_QUERY = declare("retrieval", "invalid_query", REPAIR, UNKNOWN,
    "The query is invalid. Check its syntax and the names of fields, tables and columns.",
    possible_statuses=(400,), is_refusal=True, rejects_if_declared=True, rejects_values=True,
    numbers="clickhouse 46 47 60 62 81 386; "
    "sqlstate 42 21 0A 26 34 3D 3F; oracle 900-954 956-999 1422 1427 1476 1747 1756 1789 2289 4043 6550 "
    "6553; mysql 1049 1051 1052 1054 1055 1064 1091 1109 1111 1136 1140 1146 1222 1241 1242 1248 1250 1305; sqlserver "
    "102 105 156 170 205 207 208 209 213 911 1038 2812 4104 8120 8156; sqlite ERROR MISUSE; db2 -104 -199 -204 -206 "
    "-440; mongodb 26 27 40324",
    possible_numbers="sqlstate 22; grpc 3; mongodb 2 9 14; rpc -32602")
RETRIEVAL_UNKNOWN = declare("retrieval", "unknown", REPLAN, UNKNOWN,
    "The search failed for an unknown reason. The same search may fail again.")

# Orchestration
ORCHESTRATION_MAX_RETRIES_EXCEEDED = declare("orchestration", "max_retries_exceeded", REPLAN, UNKNOWN,
    "All allowed attempts failed. Do not repeat the call: choose another approach, or say what is missing.",
    are_retries_exhausted=True)
ORCHESTRATION_INVALID_STATE = declare("orchestration", "invalid_state", REPLAN, UNKNOWN,
    "This is not possible in the current state. Read that state, then take a step that is possible.",
    possible_statuses=(400, 409, 412, 422), is_refusal=True, rejects_if_declared=True, accepted_arguments=True,
    numbers="sqlstate 24 25",
    possible_numbers="grpc 9; sqlstate 55; rpc -32600")
ORCHESTRATION_CONSTRAINT_VIOLATION = declare("orchestration", "constraint_violation", REPLAN, UNKNOWN,
    "A rule forbids this. Choose what the rule allows; the same call will be rejected again.",
    possible_statuses=(400, 402, 409, 412, 422), is_refusal=True, rejects_if_declared=True, accepted_arguments=True,
    numbers="mysql 1175",
    possible_numbers="grpc 3 9; rpc -32602")
ORCHESTRATION_PRECONDITION = declare("orchestration", "precondition", REPLAN, UNKNOWN,
    "Something that the call needs is missing. Provide it first if you may, else tell the user; then repeat the call.",
    possible_statuses=(400, 402, 409, 412, 422), is_refusal=True, rejects_if_declared=True, accepted_arguments=True,
    numbers="windows 1058 1062; sqlstate 55; grpc 9; sqlserver 3902",
    possible_numbers="sqlstate 25; rpc -32602 -32600; grpc 3")
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
    is_cancelled=True,
    numbers="ECANCELED ERR_CANCELED; errno 125 89; windows 1223; hresult C000013A; grpc 1; oracle 1013; exit 130; "
    "rpc -32800")
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


def read_numbers(numbers: str) -> Iterator[tuple[str, str]]:
    """Yield the family and the value of each number in a row. `family 1 2; family 5-9`; names have no family."""
    for part in numbers.split(";"):
        family, *values = part.split() or [""]
        if family.isupper():
            family, values = "", [family, *values]
        for value in values:
            first, dash, last = value.partition("-")
            if first and dash:
                yield from ((family, str(number)) for number in range(int(first), int(last) + 1))
            else:
                yield family, value


@functools.cache
def _group_by_number(field: str) -> dict[tuple[str, str], tuple[Kind, ...]]:
    kinds: dict[tuple[str, str], tuple[Kind, ...]] = {}
    for kind in KINDS.values():
        for number in read_numbers(KIND_PROPERTIES[kind].get(field, "")):
            kinds[number] = (*kinds.get(number, ()), kind)
    return kinds


def find_kinds_of_number(family: str, value: str) -> tuple[Kind, ...]:
    """Return the kinds that a number or a name allows, likeliest first: of an SQLSTATE also those of its class."""
    keys = [(family, value), (family, value[:2])] if family == "sqlstate" else [(family, value)]
    main, possible = _group_by_number("numbers"), _group_by_number("possible_numbers")
    first = next((main[key] for key in keys if key in main), ())
    if not first:
        return ()  # it tells nothing by itself
    return (*first, *(kind for key in keys for kind in possible.get(key, ()) if kind not in first))


def is_permanent_number(family: str, value: str) -> bool:
    """Return whether another attempt gets the same number, although most failures of its kind can be retried."""
    return (family, value) in _group_by_number("permanent_numbers")


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

Generated from `src/mulligan/core/kinds.py` by `python -m mulligan.core.kinds`. Do not edit.

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
