"""Rules for common programs: shells, files, networks, services, git, packages, databases, search indexes.

Specific rules come before general ones. The classifier checks each result against the class and the status, if any.
"""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.classify.rules.matching import Rule
from mulligan.core.failure import TookEffect

COMMANDS = (
    Rule(
        "no such command",
        kinds.TOOL_COMMAND_NOT_FOUND,
        (
            "command not found",
            "not found",
            "not recognized",
            "executable",
            "spawn",
            "exec",
            "not installed",
            "failed to run command",
            "no such file",
        ),
        r"command not found|: \d{1,9}: \S{1,80}: (?:Permission denied|not found)$|^(?:/bin/)?(?:ba|da|z|k|"
        r"a)?sh: (?:line )?\d{0,9}:? ?\S{1,80}: not found|is not recognized as (?:an internal|the name of|"
        r"a cmdlet)|executable file not found|(?:posix_)?spawn\w{0,6}:? \S{0,120} ?ENOENT|"
        r"ENOENT.{0,60}posix_spawn|spawn \S{1,300} ENOENT|^env: .{1,80}: No such file|exec(?:v|vp|"
        r"ve)?\(?\)?: .{0,60}(?:not found|no such file)|Could not find executable|unable to find (?:executable|"
        r"command)|not (?:installed|available) (?:on|in) (?:your |the )?(?:system|path|PATH)|"
        r"is not installed\b(?! (?:on|in|for) )|^xargs: \S{1,80}: No such file|"
        r"failed to (?:run|execute) command .{1,80}: No such file",
    ),
    Rule(
        "shell cannot run it",
        kinds.TOOL_PERMISSION_DENIED,
        (
            "permission denied",
            "permission to use",
            "not permitted",
            "eacces",
            "eperm",
            "read-only",
            "readonly",
            "access is denied",
            "superuser",
            "root",
        ),
        r"permission denied|permission to use .{1,200} (?:has been )?denied|operation not permitted|\bEACCES\b|"
        r"\bEPERM\b|read-only file ?system|access is denied|access to the path .{1,200} is denied|write a readonly|"
        r"must be (?:the )?(?:superuser|root)\b|(?:only|are you|run (?:this |it )?as|requires?) root\b(?! (?:cause|"
        r"element|node))",
        unless=r"publickey|password",
    ),
)

FILES = (
    Rule(
        "no such file",
        kinds.TOOL_FILE_NOT_FOUND,
        (),
        r"no such (?:file|directory)|cannot find or open|cannot find module '(?:/|\.{1,2}/|[a-z]:)|"
        r"^ERROR: not found: \S{1,300}\.py::|\bENOENT\b|cannot find the (?:file|path) specified|(?:file|path|"
        r"directory|folder|dir)\b[^\n]{0,160}?(?:does not exist|doesn't exist|not found|could not be found|"
        r"cannot be found|did not match|not exist)|(?:could not|cannot|can't|couldn't|unable to) (?:find|open|"
        r"read|access|stat|locate) (?:the )?(?:input |source |config\w{0,80} )?(?:file|path|directory|folder)|"
        r"pathspec .{1,200} did not match any files?\b(?!\(s\))|nosuchfileexception|filenotfound|cannot stat|"
        r"did not match any files?\b(?!\(s\))|no matches found: (?:\.{0,2}/|[\w.-]{1,80}/)\S{0,300}\*|"
        r"file not found|the system cannot find|(?:can't|cannot|could not|"
        r"couldn't) open ['\u2018`\"][^'\n]{1,200}['\u2019`\"]|"
        r"(?:could not open|unable to access|cannot find) (?:input |jar|script |source )?file\b|"
        r"failed to (?:load external entity|open/read local data from file)|(?:no such|bad) (?:path|source)\b[ ,'=]|"
        r"no files? (?:found that )?match\b",
        unless=r"(?:socket|mysql\.sock|postgres\w{0,80}\.s)|in (?:file|the file)[^\n]{0,20}$|profile|"
        r"no such file or directory.{0,30}exec",
    ),
    Rule("a folder, not a file", kinds.TOOL_FILE_NOT_FOUND, ("eisdir",), r"\bEISDIR\b"),
    Rule(
        "wrong sort of file",
        kinds.TOOL_EXECUTION_FAILED,
        ("is a directory", "not a directory", "eisdir", "enotdir"),
        r"\b(?:is|not) a directory\b|\bEISDIR\b|\bENOTDIR\b",
    ),
    Rule(
        "disk full",
        kinds.TOOL_UNAVAILABLE,
        (
            "no space left",
            "enospc",
            "disk quota",
            "disk full",
            "disk is full",
            "too many open files",
            "cannot allocate memory",
            "out of memory",
            "oom",
            "resource temporarily unavailable",
            "memoryerror",
        ),
        r"no space left|\bENOSPC\b|disk quota exceeded|dis[kc] (?:is )?full|too many open files|\bEMFILE\b|"
        r"cannot allocate memory|\bENOMEM\b|out of memory|oomkilled|resource temporarily unavailable",
    ),
)

NETWORK = (
    # Only these prove that nothing was sent. After a connection is established the outcome is unknown.
    Rule(
        "refused connection",
        kinds.TOOL_CONNECTION_ERROR,
        ("refused", "econnrefused", "actively refused"),
        r"connection (?:was )?refused|connection to .{1,80} refused|\bECONNREFUSED\b|actively refused|"
        r"couldn't connect to server|"
        r"refused (?:the |to )?connect|connect call failed",
        took_effect=TookEffect.NO,
    ),
    Rule(
        "unknown host",
        kinds.TOOL_CONNECTION_ERROR,
        (
            "name or service",
            "resolve",
            "nodename",
            "getaddrinfo",
            "enotfound",
            "eai_again",
            "name resolution",
            "no such host",
            "unknown host",
            "host not found",
            "dns",
        ),
        r"name or service not known|could(?: not|n't) resolve (?:host|proxy|the (?:host|server|domain)|address|name|"
        r"\S{1,80}\.\S)|"
        r"failed to resolve|cannot resolve (?:host|\S{1,80}\.\S)|"
        r"unable to resolve (?:host|address)|nodename nor servname|getaddrinfo|\bENOTFOUND\b|\bEAI_AGAIN\b|"
        r"name resolution|no such host|unknown host|host not found|no address associated|name does not resolve|"
        r"err_name_not_resolved|bad address '|dns (?:lookup|resolution|error)|cannot connect to host",
        took_effect=TookEffect.NO,
    ),
    Rule(
        "no answer in time",
        kinds.TOOL_TIMEOUT,
        (),
        r"timed[ -]?out|timeout(?: of)? \d{1,9} ?\w{0,12} exceeded|(?:connection|read|request|connect|gateway|"
        r"socket|operation|command|query|execution|"
        r"response|server|lock|statement|pool|client|handshake|task|tool|call|navigation|page|"
        r"process)[ _-]?time(?:d)?[ -]?out|time ?out (?:expired|exceeded|error|after|of|while|waiting|reached|"
        r"period)|deadline[ _]?exceeded|deadline expired|\bE(?:SOCKET)?TIMEDOUT\b|took (?:too long|longer than)|"
        r"^timeout(?:error)?\b(?!: (?:invalid|failed|unrecogni|missing|option))|did not (?:respond|answer|complete|"
        r"finish) (?:with)?in|"
        r"exceeded (?:the )?(?:time ?limit|timeout|maximum (?:execution )?time)|time limit exceeded|"
        r"canceling statement due to .{0,20}timeout|TimeoutError|maximum execution time",
        unless=r"invalid (?:value|argument|timeout)|timeout must be|unexpected (?:keyword )?argument|lock wait|"
        r"invalid time interval",
    ),
    Rule(
        "connection lost",
        kinds.TOOL_CONNECTION_ERROR,
        (),
        r"connection (?:was |has been |is )?(?:reset|aborted|closed|lost|error|failed|dropped|broken|terminated|"
        r"forcibly closed|to .{1,80} (?:failed|was lost))|\bECONNRESET\b|\bEPIPE\b|\bECONNABORTED\b|"
        r"\bEHOSTUNREACH\b|\bENETUNREACH\b|broken pipe|(?:network|host) (?:is )?(?:unreachable|down)|"
        r"no route to host|remote end closed|(?:ssl|tls)[ _:][^\n]{0,80}(?:error|failed|fail|handshake|verify|"
        r"wrong version|alert|eof|problem)|certificate (?:verify failed|has expired|is not (?:valid|trusted)|"
        r"problem)|self[- ]signed certificate|unable to get local issuer|server disconnected|(?:could not|"
        r"couldn't|cannot|failed to|unable to|can't) (?:establish|connect|open a connection|reach|communicate)|"
        r"all connection attempts failed|connecterror|network error|fetch failed|socket hang up|"
        r"unexpected eof (?:while reading|from|in violation)|eof occurred|unable to open database|incompleteread|"
        r"empty reply from server|err_connection|proxyerror|tunnel connection failed|server closed the connection|"
        r"peer closed|lost connection to|the remote (?:name could not|server (?:returned|closed|refused))|"
        r"gone away|connection ?pool|closed (?:network )?connection|ssh: connect to host|"
        r"no connection could be made|unable to access 'https?:|could not read from remote",
        unless=r"is not connected to the internet\?$|connection string|docker daemon|connect to bus",
    ),
)

SERVICES = (
    Rule(
        "throttled",
        kinds.TOOL_RATE_LIMIT,
        (
            "rate",
            "too many requests",
            "throttl",
            "quota",
            "slow down",
            "429",
            "limit exceeded",
            "requests per",
            "slowdown",
            "used up",
            "query_limit",
        ),
        r"rate[ _-]?limit(?!er)|too many (?:\w{1,12} )?requests|throttl|(?:api |request |daily |monthly |"
        r"usage )quota|quota (?:has been |is |was )?(?:exceeded|exhausted|reached)|exceeded (?:your |"
        r"the )?(?:\w{1,12} )?quota|slow ?down|\b429\b.{0,20}too many|requests per (?:second|minute|hour|day)|"
        r"request limit (?:exceeded|reached)|call limit|hit (?:the|your) (?:\w{1,10} )?limit|secondary limit|"
        r"calls? per (?:second|minute|day)|rate ?exceeded|over_query_limit|reduce your request rate|"
        r"(?:requests|calls|quota)[^\n]{0,30} used up",
    ),
    Rule(
        "not signed in",
        kinds.TOOL_AUTH_ERROR,
        (
            "auth",
            "login",
            "log in",
            "logged in",
            "logged out",
            "sign in",
            "signed in",
            "token",
            "credential",
            "api key",
            "api_key",
            "apikey",
            "password",
            "publickey",
            "401",
            "session",
            "x509",
            "jwt",
            "signature",
            "oauth",
            "access key",
            "saml",
            "pin ",
            "passcode",
            "sso",
            "could not read username",
        ),
        r"(?:provide|supply|set|pass|need) (?:a |an |your )?(?:valid )?(?:api[ _-]?key|access token|"
        r"auth token|credentials)\b|"
        r"unauthori[sz]ed|unauthenticated|not (?:authenticated|logged[ -]in|signed[ -]in|"
        r"authori[sz]ed to access the api)|(?:please |must |need to |have to |"
        r"required to )(?:\w{1,10} ){0,2}?(?:log[ -]?in|sign[ -]?in|authenticate|re-?authenticate)\b|"
        r"no user is (?:currently )?logged|authentication (?:failed|required|error|is required|failure|"
        r"credentials|token|unsuccessful)|requires? (?:authentication|login|an api key|a valid (?:api key|token))|"
        r"(?:access|auth|bearer|session|api|refresh|id|security|csrf|oauth|github|personal access|"
        r"login)?[ _-]?(?:token|credentials?|api[ _-]?key|session|password|jwt|secret|"
        r"cookie)s?\b[^\n]{0,40}?(?:is |are |was |has |have |been )*\b(?:invalid|expired|missing|revoked|"
        r"not valid|incorrect|wrong|rejected|not provided|malformed|required|not found|could not be verified)|"
        r"(?:invalid|expired|missing|incorrect|bad|wrong|no|unknown) (?:\w{1,12} ){0,2}(?:token|credentials?|"
        r"api[ _-]?key|password|session|authorization header|signature|authentication|login)|publickey|"
        r"password authentication failed|could not read (?:username|password)|access denied for user|"
        r"login (?:failed|required)|invalid_grant|invalid_client|expired_token|signaturedoesnotmatch|accesskeyid|"
        r"authorization (?:header|required|failed)|bad credentials|logon failed|\b(?:pin|passcode|"
        r"otp)\b[^\n]{0,20}(?:incorrect|wrong|invalid|expired)|www-authenticate|ora-01017|noauth",
        unless=r"unexpected token|invalid (?:syntax|token '|token:|token <)|syntax error|token \S{1,12} (?:at|in json)|"
        r"parse|tokens? \(?\d|csrf.{0,5}ok|max(?:imum)? (?:allowed )?tokens|unrecognized token|tokenize|"
        r"keyword argument|positional argument",
    ),
    Rule(
        "not allowed",
        kinds.TOOL_PERMISSION_DENIED,
        (
            "forbidden",
            "permission",
            "not allowed",
            "access denied",
            "not authorized",
            "denied",
            "privilege",
            "accessdenied",
            "not permitted",
            "insufficient",
            "unauthorized",
            "not have access",
            "blocked by",
            "disallowed",
            "sandbox",
            "allowlist",
            "outside",
        ),
        r"\bforbidden\b|(?:insufficient|missing|lacks?|no|not have|without|requires?|"
        r"need) (?:\w{1,14} ){0,4}(?:permissions?|privileges?|scopes?|access rights|access to)\b|"
        r"permission (?:is )?(?:denied|required)|access (?:is |was )?(?:denied|restricted|not allowed)|"
        r"accessdenied|not (?:authori[sz]ed|permitted|allowed) to (?:perform|access|use|do|view|modify|delete|"
        r"read|write|call|execute|make|run|create|invoke)|does not have (?:\w{1,12} ){0,3}(?:access|permission|"
        r"privilege)|permission_denied|permissiondenied|blocked by (?:\w{1,10} ){0,2}(?:policy|administrator|hook|"
        r"sandbox|firewall|robots|permission)|operation is not permitted|denied by (?:\w{1,10} ){0,2}(?:policy|"
        r"rule|administrator|permission)|outside (?:of )?(?:the )?(?:allowed|workspace|working|project|permitted|"
        r"sandbox)|command denied to user|must be owner of|admin(?:istrator)? (?:access|rights|"
        r"privileges?) (?:is |are )?required|only (?:\w{1,10} ){0,3}(?:owner|admin\w{0,10}) (?:can|may)",
    ),
    Rule(
        "service down",
        kinds.TOOL_UNAVAILABLE,
        (
            "unavailable",
            "overloaded",
            "maintenance",
            "bad gateway",
            "temporarily",
            "try again later",
            "503",
            "502",
            "out of service",
            "shutting down",
            "database is locked",
            "starting up",
            "busy",
            "circuit",
            "offline",
            "not responding",
            "capacity",
            "docker daemon",
            "too many connections",
            "too many clients",
            "upstream",
            "available",
        ),
        r"(?:service|server|system|api|backend|resource|site|endpoint|host)s?\b[^\n]{0,30}\b(?:un|not )available|"
        r"temporarily (?:un|down|out|disabled|overloaded)|overloaded|(?:under|for|undergoing|"
        r"scheduled) maintenance|bad gateway|service unavailable|(?:please )?(?:try|retry) again later|"
        r"out of service|shutting down|database (?:is |table is )?(?:locked|starting)|starting up|"
        r"server (?:is )?(?:too )?busy|circuit (?:breaker )?(?:is )?open|(?:is|currently|are) offline|"
        r"not responding|no healthy|cannot connect to the docker daemon|down for (?:\w{1,12} )?maintenance|"
        r"too many (?:connections|clients)|"
        r"remaining connection slots|no (?:\w{1,16} )?(?:service|server|backend|provider|worker)s? (?:is |"
        r"are )?available|unavailable(?:exception|error)?\b(?! (?:tool|function|option))|"
        r"upstream (?:connect )?error|"
        r"read only replica|primary is (?:down|not)|leader not available",
    ),
    Rule(
        "failed on their side",
        kinds.TOOL_API_ERROR,
        (
            "internal server error",
            "internal error",
            "server error",
            "unexpected error",
            "api error",
            "something went wrong",
            "unexpected condition",
            "method not allowed",
            "not implemented",
            "api returned",
            "upstream",
        ),
        r"internal (?:server )?error|server error|unexpected (?:server )?(?:error|condition) (?:occurred|"
        r"was encountered|has occurred|happened|prevented)|api (?:error|returned (?:an )?error|request failed|"
        r"call failed)|something went wrong|method not allowed|not implemented|an unknown error occurred|"
        r"request failed\b",
    ),
    Rule(
        "unreadable answer",
        kinds.TOOL_INVALID_RESPONSE,
        (
            "json",
            "xml",
            "decode",
            "parse",
            "response",
            "content-type",
            "content type",
            "utf-8",
            "unexpected token",
            "expecting value",
            "html",
        ),
        r"(?:invalid|malformed|unexpected|bad|unparsable|empty|garbled|non-json|truncated|"
        r"corrupt(?:ed)?) (?:\w{1,12} ){0,2}(?:response|reply|answer)\b|response (?:was|is|could|did|does|body|"
        r"contains|not)[^\n]{0,40}(?:not|invalid|empty|malformed|unexpected|cannot|missing|n't)|"
        r"expecting value: line|(?:failed|unable|error|could not|cannot|can't) (?:to )?(?:decod|pars|deserializ|"
        r"unmarshal|read)\w{1,4} (?:\w{1,12} ){0,3}(?:response|json|xml|body|reply|html|payload|answer)|"
        r"jsondecodeerror|unexpected token \S{1,6}.{0,40}(?:json|doctype)|unexpected end of json|"
        r"is not valid json|(?:invalid|malformed|broken|truncated) (?:json|xml)|(?:unexpected|wrong|"
        r"invalid) content[- ]type|codec can't decode|"
        r"invalid character '.{1,4}' looking for beginning of value|not well-formed|can ?not decode content|"
        r"chunkedencoding|"
        r"contentdecoding",
        unless=r"(?:argument|parameter|field|param)s?\b|request body|(?:invalid|bad|malformed) input",
    ),
)

SOURCES = (
    Rule(
        "out of step with git",
        kinds.ORCHESTRATION_PRECONDITION,
        (
            "git",
            "branch",
            "rebase",
            "merge",
            "commit",
            "repository",
            "working tree",
            "stash",
            "fatal:",
            "cherry-pick",
            "checkout",
        ),
        r"not a git repository|your local changes to the following files would be overwritten|"
        r"please commit your changes or stash|you have unstaged changes|working tree (?:is )?(?:dirty|not clean)|"
        r"you are not currently on a branch|(?:rebase|merge|cherry-pick) (?:is )?(?:already )?in progress|"
        r"no upstream branch|has no upstream|need to specify how to reconcile|please tell me who you are|"
        r"nothing to commit|have not concluded your merge|unfinished merge|uncommitted changes|"
        r"not possible because you have unmerged",
    ),
    Rule(
        "git has both",
        kinds.TOOL_CONFLICT,
        (
            "conflict",
            "rejected",
            "non-fast-forward",
            "already exists",
            "index.lock",
            "could not apply",
            "fetch first",
            "could not lock",
        ),
        r"\[rejected\]|non-fast-forward|updates were rejected|index\.lock|could not lock (?:ref|config)|(?:branch|"
        r"tag|remote) .{1,80} already exists|failed to push some refs",
    ),
    Rule(
        "a merge stopped halfway",
        kinds.TOOL_EXECUTION_FAILED,
        ("conflict", "could not apply", "automatic merge failed"),
        r"^CONFLICT \(|merge conflict in|automatic merge failed|could not apply [0-9a-f]{6,}",
        took_effect=TookEffect.YES,
    ),
    Rule(
        "git knows nothing of it",
        kinds.TOOL_NOT_FOUND,
        (
            "unknown revision",
            "bad revision",
            "couldn't find remote",
            "not a valid object",
            "repository not found",
            "no such remote",
            "invalid reference",
            "bad object",
            "not a valid ref",
            "does not have any commits",
            "no such ref",
            "does not appear to be a git",
        ),
        r"unknown revision|bad revision|couldn't find remote ref|not a valid (?:object|ref|branch)|"
        r"repository .{0,120}not found|no such (?:remote|ref)|invalid reference|bad object|"
        r"did not match any file\(s\) known|remote ref does not exist|does not have any commits|"
        r"does not appear to be a git",
    ),
    Rule(
        "no such package",
        kinds.TOOL_NOT_FOUND,
        (
            "package",
            "requirement",
            "distribution",
            "e404",
            "crate",
            "formula",
            "module",
            "artifact",
            "no matching",
            "manifest unknown",
            "image",
            "unable to locate",
            "dependency",
        ),
        r"no matching (?:distribution|version|package|manifest)|could not find a version that satisfies|"
        r"unable to locate package|package .{1,80} (?:was |is )?not (?:found|available|in)|"
        r"npm err! (?:code )?e?404|\bE404\b|no available formula|could not find (?:crate|artifact|package|gem|"
        r"\W?\S{1,60} in)|pull access denied|manifest (?:unknown|for .{1,100} not found)|unable to find image|"
        r"no (?:installation )?candidate|target not found|no package .{1,60} available|no match for argument|"
        r"could not find any matches|not found in (?:the )?(?:registry|channels?|repository)",
    ),
    Rule(
        "packages clash",
        kinds.TOOL_CONFLICT,
        (
            "eresolve",
            "conflict",
            "dependency",
            "resolutionimpossible",
            "unmet",
            "externally-managed",
            "held broken",
            "could not get lock",
        ),
        r"\bERESOLVE\b|conflicting (?:dependenc|peer|requirement)|resolutionimpossible|dependency (?:conflict|"
        r"resolution)|unmet dependenc|externally-managed-environment|held broken packages|could not get lock|"
        r"version (?:conflict|solving failed)",
    ),
)

DATABASES = (
    Rule(
        "the database does not know the user",
        kinds.TOOL_AUTH_ERROR,
        ("role", "pg_hba", "password authentication", "access denied for user", "noauth", "wrongpass"),
        r"FATAL: {1,2}role .{1,80} does not exist|no pg_hba\.conf entry|password authentication failed|"
        r"access denied for user|\bNOAUTH\b|\bWRONGPASS\b",
    ),
    Rule(
        "already there",
        kinds.TOOL_CONFLICT,
        (
            "constraint",
            "duplicate",
            "unique",
            "deadlock",
            "serializ",
            "ora-00001",
            "foreign key",
            "e11000",
            "version conflict",
            "concurrent",
            "lock wait",
            "conditionalcheck",
        ),
        r"unique constraint|(?:foreign key|check|not[ _-]null|primary key|integrity|exclusion) (?:mismatch|"
        r"constraint)|constraint (?:failed|violat)|violat\w{1,5} (?:\w{1,12} ){0,5}constraint|duplicate (?:key|"
        r"entry|record|value|object|table|column|primary)|deadlock|could not serialize|ORA-00001|\bE11000\b|"
        r"version conflict|concurrent (?:update|modification)|lock wait timeout|conditionalcheckfailed|"
        r"integrityerror|optimistic lock|write conflict",
    ),
    Rule(
        "wrong query",
        kinds.RETRIEVAL_INVALID_QUERY,
        (),
        r"(?:sql|query|cypher|graphql|lucene|xpath|jql|promql|kql|search|filter|jsonpath|cql|"
        r"soql) (?:\w{1,10} ){0,2}?(?:syntax|parse|parsing|validation|compilation) (?:error|exception|failed)|"
        r"syntax error (?:at or near|at end of input|in (?:sql|query)|near|at line)|"
        r"errors? in the (?:\w{1,10} )?query|no (?:field|column|table|vector column) (?:named|called|with|in)\b|"
        r"where (?:operator|clause)|expecting embedding|unrecognized name: |\(line \d{1,9}, column \d{1,9} \(offset|"
        r"near \".{0,60}\": syntax error|"
        r"error in your sql|no such (?:table|column|function|index|collation|module):|(?:table|column|relation|"
        r"view|schema|index|collection|field|attribute|type|function|operator|"
        r"database) [\"'`\[]?[\w.$]{1,80}[\"'`\]]?(?:\([^)]{0,60}\))? (?:does not exist|doesn't exist|not found|"
        r"is unknown|cannot be (?:found|resolved)|is not (?:indexed|a known|queryable))|unknown (?:column|table|"
        r"database|field|operator|top level operator|query)|invalid (?:column|object|identifier|query|field) name|"
        r"ORA-(?:009\d\d|00942|01722|0171\d)|invalid (?:search )?query|malformed (?:query|match|sql)|(?:query|"
        r"search) (?:is |was )?(?:malformed|invalid|not valid|not well-formed|could not be parsed)|"
        r"failed to parse (?:query|search|filter|date field)|parse_exception|parsing_exception|"
        r"search_phase_execution|query_shard_exception|ambiguous column|must appear in the group by|"
        r"misuse of aggregate|incomplete input|unrecognized token|invalid (?:regular expression|regex|xpath|"
        r"selector|filter|predicate)|unterminated (?:quoted|string|character)|unmatched [(\[{)]|"
        r"cannot query field|(?:vector|embedding|query)[^\n]{0,40}dimension|dimension(?:s|"
        r"ality)?[^\n]{0,40}(?:mismatch|do(?:es)? not match|expected|got \d)|wrong vector dimension|"
        r"subquery (?:returns|must)|each \(?\"?\w{0,80}\"? ?query must have|"
        r"different number of (?:result )?columns|unclosed quotation|ORA-|"
        r"SQL compilation error|PLS-\d|SQL0\d|errors? in query|SQLSTATE\W{0,3}42|has no column named|"
        r"values for \d{1,9} columns|has \d{1,9} columns but \d{1,9} values|incorrect number of bindings|"
        r"expected \d{1,9} (?:bindings|columns|parameters)",
    ),
    Rule(
        "wrong index",
        kinds.RETRIEVAL_INVALID_QUERY,
        ("index_not_found", "no such index", "namespace not found", "collection"),
        r"index_not_found|no such index|(?:collection|index|namespace) .{1,80}(?:not found|does not exist|"
        r"doesn't exist)",
    ),
)

BUGS = (
    Rule(
        "a mistake in its own code",
        kinds.TOOL_EXECUTION_FAILED,
        (
            "operand type",
            "object is not",
            "has no attribute",
            "is not a function",
            "cannot read propert",
            "is not defined",
            "nil pointer",
            "null pointer",
            "is not iterable",
            "nil value",
            "undefined method",
            "undefined function",
            "before assignment",
        ),
        r"unsupported operand type|object (?:is not (?:iterable|subscriptable|callable)|has no attribute)|"
        r"\) ?is not a function$|\b(?:is not a (?:function|constructor)|is not iterable)\b|cannot read propert|"
        r"referenced before assignment|"
        r"^(?:NameError: |ReferenceError: )?(?:name '\w{1,80}'|\w{1,80}) is not defined|ni?ll? pointer dereference|"
        r"attempt to (?:index|call|perform arithmetic on) a nil|undefined (?:method|local variable) [`']",
        is_strong=True,
    ),
)

PROGRAMS = (
    Rule(
        "crashed",
        kinds.TOOL_EXECUTION_FAILED,
        (
            "segmentation fault",
            "core dumped",
            "panic:",
            "killed",
            "aborted",
            "fatal",
            "stack overflow",
            "panicked",
            "signal",
        ),
        r"segmentation fault|core dumped|^panic: |^killed\b|stack overflow|panicked at|exit(?:ed)? (?:with |by |"
        r"on )?signal|sig(?:kill|segv|abrt|term)",
    ),
    Rule(
        "it failed",
        kinds.TOOL_EXECUTION_FAILED,
        (
            "exit code",
            "exited with",
            "exit status",
            "returned non-zero",
            "execution failed",
            "failed with",
            "error executing",
            "command failed",
            "non-zero",
        ),
        r"exit(?:ed)? (?:code|with|status)|non-?zero|execution failed|command failed|error executing|failed with",
    ),
)


PARTICULAR_RULES: tuple[Rule, ...] = (*COMMANDS, *NETWORK[:2], *FILES, *SOURCES, *DATABASES, *NETWORK[2:])
"""Rules with words of one type of program. A refused connection precedes a missing file, since sockets are files
too."""

PROCESS_KINDS = frozenset(
    (
        kinds.TOOL_COMMAND_NOT_FOUND,
        kinds.TOOL_FILE_NOT_FOUND,
        kinds.TOOL_PERMISSION_DENIED,
        kinds.TOOL_CONNECTION_ERROR,
        kinds.TOOL_TIMEOUT,
        kinds.TOOL_UNAVAILABLE,
        kinds.TOOL_RATE_LIMIT,
        kinds.TOOL_AUTH_ERROR,
        kinds.TOOL_EXECUTION_FAILED,
    )
)
"""Kinds that the output of a program can report about the call. Other kinds in its output are about the program
itself."""
