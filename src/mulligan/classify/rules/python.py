"""Rules for exception classes, HTTP statuses and error codes. Each maps to the kinds it allows, likeliest first."""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.core.failure import Kind

STATUSES: dict[int, tuple[Kind, ...]] = {
    int(status): allowed
    for allowed, statuses in (
        ((kinds.TOOL_INVALID_ARGUMENTS, kinds.TOOL_AUTH_ERROR, kinds.RETRIEVAL_INVALID_QUERY), "400"),
        ((kinds.TOOL_AUTH_ERROR,), "401 407"),
        ((kinds.TOOL_PERMISSION_DENIED,), "402 451"),
        ((kinds.TOOL_PERMISSION_DENIED, kinds.TOOL_AUTH_ERROR, kinds.TOOL_RATE_LIMIT), "403"),
        ((kinds.TOOL_NOT_FOUND, kinds.TOOL_UNKNOWN_TOOL, kinds.TOOL_FILE_NOT_FOUND), "404"),
        ((kinds.TOOL_API_ERROR, kinds.TOOL_INVALID_ARGUMENTS), "405 406"),
        ((kinds.TOOL_TIMEOUT,), "408 522 524"),
        ((kinds.TOOL_CONFLICT,), "409 412 423 428"),
        ((kinds.TOOL_NOT_FOUND,), "410"),
        ((kinds.TOOL_INVALID_ARGUMENTS,), "411 413 414 415 422 431"),
        ((kinds.TOOL_API_ERROR,), "424 501"),
        ((kinds.TOOL_UNAVAILABLE,), "425 507 520 521 523 529"),
        ((kinds.TOOL_RATE_LIMIT,), "429"),
        ((kinds.TOOL_API_ERROR, kinds.TOOL_UNAVAILABLE), "500"),
        ((kinds.TOOL_UNAVAILABLE, kinds.TOOL_API_ERROR), "502"),
        ((kinds.TOOL_UNAVAILABLE, kinds.TOOL_RATE_LIMIT), "503"),
        ((kinds.TOOL_TIMEOUT, kinds.TOOL_UNAVAILABLE), "504"),
    )
    for status in statuses.split()
}

_ARGUMENT_KINDS = (
    kinds.TOOL_INVALID_ARGUMENTS,
    kinds.TOOL_NOT_FOUND,
    kinds.TOOL_FILE_NOT_FOUND,
    kinds.TOOL_UNKNOWN_TOOL,
    kinds.TOOL_CONFLICT,
    kinds.TOOL_CONNECTION_ERROR,
    kinds.TOOL_TIMEOUT,
    kinds.TOOL_AUTH_ERROR,
    kinds.TOOL_PERMISSION_DENIED,
    kinds.TOOL_RATE_LIMIT,
    kinds.TOOL_UNAVAILABLE,
    kinds.TOOL_INVALID_RESPONSE,
    kinds.TOOL_EXECUTION_FAILED,
    kinds.RETRIEVAL_INVALID_QUERY,
    kinds.ORCHESTRATION_PRECONDITION,
    kinds.ORCHESTRATION_CONSTRAINT_VIOLATION,
    kinds.ORCHESTRATION_INVALID_STATE,
)
"""Kinds of a wrong value. Particular text overrides them: these classes are raised for many problems with values."""

CLASSES: dict[str, tuple[Kind, ...]] = {
    name: allowed
    for allowed, names in (
        (
            (kinds.TOOL_TIMEOUT,),
            "TimeoutError Timeout TimeoutExpired TimeoutException ReadTimeout ConnectTimeout WriteTimeout PoolTimeout "
            "ServerTimeoutError ReadTimeoutError ConnectTimeoutError ConnectionTimeout DeadlineExceeded QueryCanceled "
            "RequestTimeout SocketTimeoutException QueryTimeoutError GatewayTimeout ConnectionTimeoutError "
            "HttpTimeoutException ToolTimeoutError WaitTimeoutError",
        ),
        (
            (kinds.TOOL_CONNECTION_ERROR, kinds.TOOL_TIMEOUT, kinds.TOOL_AUTH_ERROR),
            "ConnectionError ConnectError ConnectionRefusedError ConnectionResetError BrokenPipeError gaierror "
            "SSLError "
            "SSLCertVerificationError ConnectionAbortedError RemoteDisconnected NewConnectionError NameResolutionError "
            "URLError ReadError WriteError RemoteProtocolError LocalProtocolError ProxyError ClientConnectorError "
            "ServerDisconnectedError ClientConnectionError ClientOSError IncompleteRead ChunkedEncodingError "
            "ServerSelectionTimeoutError AutoReconnect ClientConnectorDNSError "
            "EndpointConnectionError "
            "NoHostAvailable ConnectException UnknownHostException SocketException ClosedResourceError "
            "BrokenResourceError "
            "NetworkError ConnectionClosed ConnectionClosedError WebSocketException SSHException "
            "ClientConnectorSSLError",
        ),
        ((kinds.TOOL_CONNECTION_ERROR, kinds.TOOL_INVALID_RESPONSE, kinds.TOOL_TIMEOUT), "ClientPayloadError"),
        ((kinds.TOOL_FILE_NOT_FOUND, kinds.TOOL_COMMAND_NOT_FOUND), "FileNotFoundError NoSuchFileException"),
        (
            (kinds.TOOL_EXECUTION_FAILED, kinds.TOOL_COMMAND_NOT_FOUND, kinds.TOOL_BUILD_FAILURE),
            "ModuleNotFoundError ImportError",
        ),
        ((kinds.TOOL_EXECUTION_FAILED, kinds.TOOL_CONNECTION_ERROR), "EOFError"),
        (_ARGUMENT_KINDS, "ValueError TypeError"),
        ((kinds.TOOL_INVALID_ARGUMENTS, kinds.RETRIEVAL_INVALID_QUERY), "DivisionByZero InvalidTextRepresentation"),
        ((kinds.TOOL_PERMISSION_DENIED,), "PermissionError AccessDeniedException InsufficientPrivilege"),
        (
            (kinds.TOOL_CONFLICT,),
            "FileExistsError IntegrityError UniqueViolation ForeignKeyViolation NotNullViolation "
            "CheckViolation DuplicateKeyError ConflictError ConditionalCheckFailedException DeadlockDetected "
            "SerializationFailure StaleDataError VersionConflict AlreadyExists",
        ),
        (
            (kinds.TOOL_INVALID_RESPONSE, kinds.TOOL_INVALID_ARGUMENTS),
            "JSONDecodeError ContentTypeError DecodingError ContentDecodingError UnicodeDecodeError BadStatusLine "
            "InvalidJSONError ParseError ExpatError XMLSyntaxError",
        ),
        (
            (
                kinds.TOOL_INVALID_ARGUMENTS,
                kinds.TOOL_INVALID_RESPONSE,
                kinds.TOOL_UNKNOWN_TOOL,
                kinds.RETRIEVAL_INVALID_QUERY,
                kinds.TOOL_FILE_NOT_FOUND,
            ),
            "ValidationError ValidationException InputValidationError InvalidURL MissingSchema InvalidSchema "
            "UnsupportedProtocol InvalidHeader ModelRetry MissingParameter NoSuchOption InvalidUrlClientError "
            "NonHttpUrlClientError "
            "InvalidParameterValue BadParameter UsageError "
            "IllegalArgumentException ArgumentError InvalidArgument InvalidArgumentError ParamValidationError "
            "NumericValueOutOfRange DatetimeFieldOverflow StringDataRightTruncation BadRequestError SchemaError",
        ),
        (
            (kinds.TOOL_EXECUTION_FAILED,),
            "IndexError AttributeError ZeroDivisionError NameError UnboundLocalError RecursionError "
            "NotImplementedError "
            "OverflowError ReferenceError RangeError NullPointerException ArithmeticException",
        ),
        ((kinds.TOOL_UNKNOWN_TOOL,), "ToolNotFoundError UnknownToolError NoSuchToolError"),
        (
            (kinds.RETRIEVAL_INVALID_QUERY,),
            "ProgrammingError UndefinedTable UndefinedColumn UndefinedFunction AmbiguousColumn GroupingError "
            "CatalogException BinderException ParserException SQLSyntaxErrorException BadSqlGrammarException "
            "RequestError XPathEvalError XPathError",
        ),
        (
            (kinds.TOOL_AUTH_ERROR, kinds.TOOL_PERMISSION_DENIED),
            "AuthenticationError InvalidPassword "
            "NoCredentialsError Unauthenticated UnauthorizedError AuthError CredentialRetrievalError "
            "InvalidAuthorizationSpecification RefreshError",
        ),
        (
            (kinds.TOOL_PERMISSION_DENIED, kinds.TOOL_AUTH_ERROR),
            "PermissionDenied PermissionDeniedError ForbiddenError Forbidden",
        ),
        (
            (kinds.TOOL_RATE_LIMIT,),
            "RateLimitError TooManyRequests ResourceExhausted ThrottlingException RateLimitExceeded "
            "TooManyRequestsError RateLimitedError ThrottledError",
        ),
        (
            (kinds.TOOL_UNAVAILABLE, kinds.TOOL_TIMEOUT),
            "ServiceUnavailable MemoryError TooManyConnections ServiceUnavailableError BlockingIOError InterfaceError",
        ),
        ((kinds.TOOL_API_ERROR,), "TooManyRedirects InternalServerError InternalServerException"),
        (
            (kinds.TOOL_NOT_FOUND, kinds.TOOL_UNKNOWN_TOOL, kinds.RETRIEVAL_INVALID_QUERY),
            "NotFoundError NotFound NoSuchKey "
            "ResourceNotFoundException DoesNotExist ObjectDoesNotExist NoResultFound NoSuchElementException "
            "LookupError",
        ),
        (
            (kinds.ORCHESTRATION_MAX_RETRIES_EXCEEDED,),
            "GraphRecursionError MaxTurnsExceeded UsageLimitExceeded MaxIterationsExceeded RetryError TooManyRetries "
            "MaxRetriesExceeded AgentMaxStepsError MaxStepsExceeded RetryExhaustedError",
        ),
        (
            (kinds.ORCHESTRATION_INVALID_STATE,),
            "InvalidStateError IllegalStateException InvalidTransition "
            "StateMachineError InvalidUpdateError InvalidStateTransition",
        ),
        (
            (kinds.ORCHESTRATION_CONSTRAINT_VIOLATION,),
            "InputGuardrailTripwireTriggered OutputGuardrailTripwireTriggered PolicyViolation ConstraintViolation",
        ),
        ((kinds.ORCHESTRATION_PRECONDITION,), "FailedPrecondition PreconditionFailed PreconditionError"),
    )
    for name in names.split()
}
"""Keyed by class name without module: one class is exported by several modules, most of which are not imported here."""

CODES: dict[str, Kind] = {
    name: kind
    for kind, names in (
        (kinds.TOOL_CONNECTION_ERROR, "econnrefused econnreset enotfound eai_again epipe ehostunreach enetunreach"),
        (kinds.TOOL_TIMEOUT, "etimedout deadline_exceeded timeout request_timeout requesttimeout esockettimedout"),
        (kinds.TOOL_FILE_NOT_FOUND, "enoent"),
        (
            kinds.TOOL_PERMISSION_DENIED,
            "eacces eperm permission_denied accessdenied accessdeniedexception forbidden "
            "access_denied insufficient_scope missing_scope unauthorizedoperation insufficient_permissions",
        ),
        (
            kinds.TOOL_AUTH_ERROR,
            "unauthenticated unauthorized invalid_token expiredtoken expiredtokenexception invalid_grant "
            "invalid_client signaturedoesnotmatch invalidaccesskeyid unrecognizedclientexception invalid_auth "
            "not_authed "
            "authentication_error invalid_credentials token_expired authfailure",
        ),
        (
            kinds.TOOL_NOT_FOUND,
            "not_found resourcenotfoundexception nosuchkey nosuchbucket nosuchentity notfound "
            "resource_not_found channel_not_found user_not_found",
        ),
        (
            kinds.TOOL_CONFLICT,
            "already_exists conflict conditionalcheckfailedexception bucketalreadyexists eexist aborted "
            "resourceinuseexception resourceconflictexception duplicate_key",
        ),
        (
            kinds.TOOL_INVALID_ARGUMENTS,
            "invalid_argument validationexception validation_error invalid_request invalidparametervalue "
            "invalid_params invalid_arguments missing_argument invalid_parameter out_of_range "
            "invalidparameterexception",
        ),
        (
            kinds.TOOL_RATE_LIMIT,
            "resource_exhausted throttlingexception throttling rate_limited ratelimited slowdown "
            "rate_limit_exceeded requestlimitexceeded too_many_requests toomanyrequestsexception rate_limit "
            "provisionedthroughputexceededexception",
        ),
        (
            kinds.TOOL_UNAVAILABLE,
            "unavailable service_unavailable serviceunavailable sqlite_busy sqlite_locked maintenance",
        ),
        (
            kinds.TOOL_API_ERROR,
            "internal internal_error internalerror internalfailure internalservererror unimplemented data_loss",
        ),
        (kinds.ORCHESTRATION_PRECONDITION, "failed_precondition preconditionfailed"),
        (kinds.TOOL_OUTPUT_TOO_LARGE, "response_too_large output_too_large"),
    )
    for name in names.split()
}
"""Codes of errno, gRPC, AWS and common APIs, in lower case."""

_CODES_WITHOUT_SEPARATORS = {
    name.replace("_", "").removesuffix("exception").removesuffix("error"): kind for name, kind in CODES.items()
}
"""The same codes without separators, for spellings such as `AlreadyExists` and `NotFound`."""

_SQLSTATES = {
    "08": kinds.TOOL_CONNECTION_ERROR,
    "22": kinds.TOOL_INVALID_ARGUMENTS,
    "23": kinds.TOOL_CONFLICT,
    "28": kinds.TOOL_AUTH_ERROR,
    "40": kinds.TOOL_CONFLICT,
    "42": kinds.RETRIEVAL_INVALID_QUERY,
    "53": kinds.TOOL_UNAVAILABLE,
    "57": kinds.TOOL_UNAVAILABLE,
}


def kinds_for_status(status: int | None) -> tuple[Kind, ...]:
    """Return the kinds that a status allows, or an empty tuple."""
    if status is None or status < 400:
        return ()
    if status in STATUSES:
        return STATUSES[status]
    return (kinds.TOOL_API_ERROR,) if status >= 500 else (kinds.TOOL_API_ERROR, kinds.TOOL_INVALID_ARGUMENTS)


def kind_for_code(code: str) -> Kind | None:
    """Return the kind of an errno, gRPC, AWS or SQLSTATE code."""
    lower = code.lower()
    kind = CODES.get(lower) or _CODES_WITHOUT_SEPARATORS.get(lower.removesuffix("exception").removesuffix("error"))
    if kind is not None:
        return kind
    if code == "57014":
        return kinds.TOOL_TIMEOUT
    if code == "42501":
        return kinds.TOOL_PERMISSION_DENIED
    if len(code) == 5 and code.isalnum() and code == code.upper() and any(mark.isdigit() for mark in code):
        return _SQLSTATES.get(code[:2])
    return None


def kinds_for_rpc_code(code: int | None) -> tuple[Kind, ...]:
    """Return the kinds that a JSON-RPC code allows."""
    if code is None:
        return ()
    return {
        -32601: (kinds.TOOL_UNKNOWN_TOOL,),
        -32602: (kinds.TOOL_INVALID_ARGUMENTS, kinds.TOOL_UNKNOWN_TOOL),
        -32600: (kinds.TOOL_INVALID_ARGUMENTS,),
        -32700: (kinds.TOOL_INVALID_ARGUMENTS,),
        -32001: (kinds.TOOL_TIMEOUT, kinds.TOOL_NOT_FOUND, kinds.TOOL_AUTH_ERROR, kinds.TOOL_UNAVAILABLE),
        -32002: (kinds.TOOL_NOT_FOUND, kinds.TOOL_UNAVAILABLE),
        -32800: (kinds.NONE_CANCELLED,),
    }.get(code, ())
