"""Rules with words of one type of program: shells, files, networks, git, packages, databases, search indexes.

The classifier checks each result against the class and the status, if any.
"""

from __future__ import annotations

from mulligan.classify.rules import read_rules

# A refused connection precedes a missing file, since sockets are files too. Only a refused connection and an unknown
# host prove that nothing was sent: after a connection is established, the outcome is unknown.
PARTICULAR_RULES = read_rules(r"""
tool/captcha_required: proof of a person
    captcha (?:is )?(?:required|challenge|needed)|(?:solve|complete|pass|fill in) (?:the|a|this) (?:re|h)?captcha|
    verify (?:that )?you(?:'re| are) (?:a )?(?:human|not a (?:ro)?bot)|
    confirm (?:that )?you(?:'re| are) not a (?:ro)?bot|
    unusual traffic from your|checking your browser before accessing|enable javascript and cookies to continue
tool/quota_exceeded: plan used up
    (?:dai|week|month|year)ly (?:\w{1,12} ){0,2}?(?:quota|allowance|credits?)\b(?: limit)? (?:\w{1,4} ){0,2}?exceeded|
    (?:dai|week|month|year)ly (?:\w{1,12} ){0,2}?(?:quota|allowance|credits?)\b(?: limit)? (?:\w{1,4} ){0,2}?reached|
    (?:dai|week|month|year)ly (?:\w{1,12} ){0,2}?(?:quota|allowance|credits?)\b (?:\w{1,4} ){0,2}?(?:used up|exhausted)|
    (?:run|ran) out of (?:searches|credits|api calls|requests|tokens|quota)\b|
    (?:insufficient|no more|no remaining|out of) (?:api |search |account )?credits\b|
    exceed\w{0,3} (?:your|the) (?:current )?plan'?s? (?:\w{1,12} ){0,2}?(?:limit|quota)|
    (?:credits?|plan|quota) (?:is |are |has been |have been )?(?:used up|exhausted|depleted)\b
    unless: per[ _-]?(?:minute|second)|\bdisk\b|storage
tool/command_not_found: no such command
    command not found|^fish: Unknown command|: \d{1,9}: \S{1,80}: (?:Permission denied|not found)$|^(?:/bin/)?(?:ba|da|
    z|k|a)?sh: (?:line )?\d{0,9}:? ?\S{1,80}: not found|is not recognized as (?:an internal|the name of|a name of|
    a cmdlet)|not found (?:on|in) (?:the |your |\$)?PATH\b|executable file not found|
    (?:posix_)?spawn\w{0,6}:? \S{0,120} ?ENOENT|ENOENT.{0,60}posix_spawn|spawn \S{1,300} ENOENT|
    ^(?:/usr/bin/)?env: .{1,80}: No such file|exec(?:v|vp|ve)?\(?\)?: .{0,60}(?:not found|no such file)|
    Could not find executable|unable to find (?:executable|command)|not (?:installed|available) (?:on|in) (?:your |
    the )?(?:system|path|PATH)|is not installed\b(?! (?:on|in|for) )|^xargs: \S{1,80}: No such file|failed to (?:run|
    execute) command .{1,80}: No such file|^g?make: \S{1,80}: No such file or directory\n[^\n]{0,120}Error 127
tool/execution_failed: memory or disk used up
    out of memory|heap space|OutOfMemoryError|reached heap limit|^MemoryError\b|no space left|\bENOSPC\b|
    disk quota exceeded|dis[kc] (?:is )?full|cannot allocate memory|\bENOMEM\b|oomkilled|(?:file size|
    cpu time) limit exceeded
tool/execution_failed: daemon not running
    is the docker daemon running
    tools: bash|shell|terminal|command|cmd|exec|docker
tool/permission_denied: operating system denied access
    permission denied|permission to use .{1,200} (?:has been )?denied|operation not permitted|\bEACCES\b|\bEPERM\b|
    read-only file ?system|access is denied|access to the path .{1,200} is denied|write a readonly|
    must be (?:the )?(?:superuser|root)\b|(?:only|are you|run (?:this |it )?as|requires?) root\b(?! (?:cause|element|
    node))|permission to \S{1,120} denied|
    protected branch|denied by (?:the )?sandbox
    unless: publickey|password
tool/connection_error: refused connection [not executed]
    connection (?:was )?refused|connection to .{1,80} refused|\bECONNREFUSED\b|actively refused|
    couldn't connect to server|refused (?:the |to )?connect|connect call failed
tool/connection_error: unknown host [not executed]
    name or service not known|could(?: not|n't) resolve (?:host|proxy|the (?:host|server|domain)|address|name|
    ['"]?[\w-]{1,80}\.\S)|failed to resolve|cannot resolve (?:host|['"]?[\w-]{1,80}\.\S)|unable to resolve (?:host|
    address)|nodename nor servname|getaddrinfo|\bENOTFOUND\b|\bEAI_AGAIN\b|name resolution|no such host|unknown host|
    host not found|no address associated|name does not resolve|err_name_not_resolved|bad address '|dns (?:lookup|
    resolution|error)
tool/file_not_found: no such file
    no such (?:file|directory)|\bcd: can't cd to |cannot find or open|cannot find module '(?:/|\.{1,2}/|[a-z]:)|
    ^ERROR: not found: \S{1,300}\.py::|\bENOENT\b|cannot find the (?:file|path) specified|(?:file|path|directory|folder|
    dir)\b(?!["']\s?:)[^\n]{0,160}?(?:does not exist|doesn't exist|not found|could not be found|cannot be found|
    did not match|not exist)|(?:could not|cannot|can't|couldn't|unable to) (?:find|open|read|access|stat|
    locate) (?:the )?(?:input |source |config\w{0,80} )?(?:file|path|directory|folder)|
    pathspec .{1,200} did not match any files?\b(?!\(s\))|nosuchfileexception|filenotfound|cannot stat|
    did not match any files?\b(?!\(s\))|no matches found: (?:\.{0,2}/|[\w.-]{1,80}/)\S{0,300}\*|file not found|
    the system cannot find|(?:can't|cannot|could not|couldn't) open ['\u2018`\"][^'\n]{1,200}['\u2019`\"]|
    (?:could not open|unable to access|cannot find) (?:input |jar|script |source )?file\b|
    failed to (?:load external entity|open/read local data from file)|(?:no such|bad) (?:path|source)\b[ ,'=]|
    no files? (?:found that )?match\b|there is no (?:such )?(?:file|folder|directory)\b|
    \.[a-z]\w{0,4} because it does not exist|(?:^|
    [\s'"`(])[\w.@-]{0,40}/[\w.@/-]{0,200}\.[a-z]\w{0,4}['"`]? (?:does not exist|doesn't exist|(?:was |is )?not found|
    (?:could|can)(?: not|not) be found|is missing)|(?:cannot|could not|unable to) (?:find|
    locate) ['"`]?[\w.@-]{0,40}/[\w.@/-]{0,200}\.[a-z]\w{0,4}\b|there is nothing at \S{0,80}/|\bno (?:file|folder|
    directory) (?:named|called|at) |(?:directory|folder) \S{1,200} is missing
    unless: connection aborted|https?://|(?:socket|mysql\.sock|postgres\w{0,80}\.s)|in (?:file|the file)[^\n]{0,20}$|
    profile|no such file or directory.{0,30}exec
tool/file_not_found: folder instead of a file
    \bEISDIR\b
tool/execution_failed: wrong type of file
    \b(?:is|not) a directory\b|\bEISDIR\b|\bENOTDIR\b
tool/output_too_large: response too large
    (?:response|result|output)s? (?:is |was |set )?(?:size )?too large to (?:return|be returned|send)|responsetoolarge|
    response (?:payload )?size (?:too large|exceed)
tool/unavailable: resource exhausted
    too many open files|\bEMFILE\b|resource temporarily unavailable|loading the dataset|not ?enough ?replicas|
    too many (?:connections|clients)|remaining connection slots|max(?:imum)? number of (?:clients|connections|processes|
    sessions)|max_user_connections
orchestration/precondition: git working tree not ready
    not a git repository|your local changes to the following files would be overwritten|
    please commit your changes or stash|you have unstaged changes|working tree (?:is )?(?:dirty|not clean)|
    you are not currently on a branch|(?:rebase|merge|cherry-pick) (?:is )?(?:already )?in progress|no upstream branch|
    has no upstream|need to specify how to reconcile|please tell me who you are|nothing to commit|
    have not concluded your merge|unfinished merge|uncommitted changes|not possible because you have unmerged
tool/conflict: git rejected the update
    \[(?:remote )?rejected\]|non-fast-forward|updates were rejected|index\.lock|could not lock (?:ref|config)|(?:branch|
    tag|remote) .{1,80} already exists
tool/conflict: merge conflict [executed]
    ^CONFLICT \(|merge conflict in|automatic merge failed|could not apply [0-9a-f]{6,}
tool/not_found: unknown git object
    unknown revision|bad revision|couldn't find remote ref|not a valid (?:object|ref|branch)\b|
    repository .{0,120}not found|no such (?:remote|ref)|invalid reference|bad object|did not match any file\(s\) known|
    remote ref does not exist|does not have any commits|does not appear to be a git
tool/not_found: no such package
    no matching (?:distribution|version|package|manifest)|could not find a version that satisfies|
    unable to locate package|package .{1,80} (?:was |is )?not (?:found|available|in)|npm err! (?:code )?e?404|\bE404\b|
    no available formula|could not find (?:crate|artifact|package|gem|\W?\S{1,60} in)|pull access denied|
    manifest (?:unknown|for .{1,100} not found)|unable to find image|no (?:installation )?candidate|target not found|
    no package .{1,60} available|no match for argument|could not find any matches|not found in (?:the )?(?:registry|
    channels?|repository)
    unless: \btool\b|connection broken
tool/conflict: package conflict
    \bERESOLVE\b|conflicting (?:dependenc|peer|requirement)|resolutionimpossible|dependency (?:conflict|resolution)|
    unmet dependenc|externally-managed-environment|held broken packages|could not get lock|version (?:conflict|
    solving failed)
tool/auth_error: login rejected
    FATAL: {1,2}role .{1,80} does not exist|no pg_hba\.conf entry|password authentication failed|access denied for user|
    \bNOAUTH\b|\bWRONGPASS\b|\(publickey|authentication failed for 'https?|could not read (?:username|password)|
    terminal prompts disabled|(?:unable to|could not|cannot) (?:locate|find|load|obtain) (?:\w{1,12} ){0,3}credentials|
    \bENEEDAUTH\b|\b(?:gh|gcloud|az|docker|heroku|vercel|npm) (?:auth )?login\b|\baws sso login\b|
    a terminal is required to (?:read|authenticate)|a password is required\b|set the \w{2,30}_TOKEN environment|
    requires you to be logged in|requested access to the resource is denied
tool/unavailable: deadlock or serialization failure
    deadlock(?:ed)?\b|could not (?:serialize|obtain lock on)|lock wait timeout|re(?:start|run|try)\w{0,4} (?:the |
    your )?transaction|\bwrite ?conflict\b|ORA-(?:00060|08177)|(?:operation|
    transaction)\b[^\n]{0,60}\bretry your (?:operation|transaction)|serialization failure|
    snapshot (?:isolation )?conflict
    unless: goroutine|thread|mutex|asleep|asyncio
tool/conflict: database constraint or lock
    unique constraint|(?:foreign key|check|not[ _-]null|primary key|integrity|exclusion) (?:mismatch|constraint)|
    constraint (?:failed|violat)|violat\w{1,5} (?:\w{1,12} ){0,5}constraint|duplicate (?:key|entry|record|value|object|
    table|column|primary)|ORA-00001|\bE11000\b|version conflict|concurrent (?:update|modification)|
    conditionalcheckfailed|integrityerror|optimistic lock|exclusive access to this
    unless: on conflict specification
tool/conflict: already exists
    already[ _]exists?\b|(?:name|email|key|id|username|slug|title) (?:is |has |was )?already (?:been )?(?:taken|in use|
    used|registered)|has already been taken|keys for idempotent|idempoten\w{1,4}[ -]key\b[^\n]{0,80}(?:already|same|
    different|another|reus|mismatch)|not mergeable|(?:head|base) branch was modified|object has been modified|
    has a status of\b|\bcannot (?:be )?\w{3,14}\b[^\n]{0,50} (?:because|since|as) (?:it|its|
    the)\b[^\n]{0,40}\b(?:status|state)\b
retrieval/invalid_query: invalid query
    (?:sql|query|cypher|graphql|lucene|xpath|jql|promql|kql|search|filter|jsonpath|cql|
    soql) (?:\w{1,10} ){0,2}?(?:syntax|parse|parser|parsing|validation|compilation) (?:error|exception|failed)|
    syntax error (?:at or near|at end of input|in (?:sql|query)|near|at line)|errors? in the (?:\w{1,10} )?query|
    no (?:field|column|table|vector column) (?:named|called|with|in)\b|where (?:operator|clause)|expecting embedding|
    unrecognized name: |\(line \d{1,9}, column \d{1,9} \(offset|near \".{0,60}\": syntax error|error in your sql|
    no such (?:table|column|function|index|collation|module):|(?:table|column|relation|view|schema|index(?! \d)|
    collection|field|attribute|type|operator|database) (?!was |
    is )\\?[\"'`\[]?[\w.$]{1,80}\\?[\"'`\]]?(?:\([^)]{0,60}\))? (?:does not exist|doesn't exist|not found|is unknown|
    cannot be (?:found|resolved)|is not (?:indexed|a known|queryable))|no such (?:prop(?:erty)?|field|label|
    class) (?:with|named|called)|unknown (?:column|table|database|field(?!\.)|operator|top level operator|query)|
    invalid (?:column|object|identifier|query|field) name|ORA-(?:009\d\d|00942|01722|0171\d)|
    invalid (?:[\w-]{1,14} ){0,3}query\b|query syntax|(?:unsupported|unknown|invalid|malformed|bad) (?:query|filter|
    search) (?:operator|expression|clause|field|syntax|type)|query (?:is |was )?empty or invalid|malformed (?:query|
    match|sql)|(?:query|search) (?:is |was )?(?:malformed|invalid|not valid|not well-formed|could not be parsed)|
    failed to parse (?:query|search|filter|date field)|parse_exception|parsing_exception|search_phase_execution|
    query_shard_exception|ambiguous column|must appear in the group by|misuse of aggregate|incomplete input|
    unrecognized token|invalid (?:regular expression|regex|xpath|selector|filter|predicate)|unterminated (?:quoted|
    string|character)|unmatched [(\[{)]|cannot query field|value .{1,60} does not exist for the field|
    syntax error: [^\n]{1,80} at \[\d|(?:vector|embedding|query)[^\n]{0,40}dimension|dimension(?:s|
    ality)?[^\n]{0,40}(?:mismatch|do(?:es)? not match|expected|got \d)|wrong vector dimension|subquery (?:returns|must)|
    each \(?\"?\w{0,80}\"? ?query must have|different number of (?:result )?columns|unclosed quotation|ORA-|
    SQL compilation error|PLS-\d|SQL0\d|errors? in query|SQLSTATE\W{0,3}42|has no column named|
    values for \d{1,9} columns|has \d{1,9} columns but \d{1,9} values|incorrect number of bindings|
    expected \d{1,9} (?:bindings|columns|parameters)|function (?:\S{1,60}\.\S{1,60}|
    \S{1,80}\([^)\n]{0,60}\)) (?:does not exist|doesn't exist|not found|cannot be found)|on conflict specification|
    function not found: \w{1,80} at \[|\berror 42\w{3} \(|search (?:query|term|string) (?:must|is too|should|cannot)\b
retrieval/invalid_query: unknown index
    index_not_found|no such index|(?:collection|index(?! \d)|namespace) .{1,80}(?:not found|does not exist|
    doesn't exist)
tool/timeout: timeout
    timed[ -]?out|timeout(?: of)? \d{1,9} ?\w{0,12} exceeded|(?:connection|read|request|connect|gateway|socket|
    operation|command|query|execution|response|server|lock|statement|pool|client|handshake|task|tool|call|navigation|
    page|process)[ _-]?time(?:d)?[ -]?out|time ?out (?:expired|exceeded|error|after|of|while|waiting|reached|period)|
    not (?:ready|done|finished|available) (?:after|within) \d|\w{3,20}[ _-]time-?out(?=$|[.:!,;]| (?:after|exceeded|
    expired|reached|error|while|waiting|of \d))|deadline[ _]?exceeded|deadline expired|\bE(?:SOCKET)?TIMEDOUT\b|
    took (?:too long|longer than)|(?:^|: )timeout(?:error)?\b(?!: (?:invalid|failed|unrecogni|missing|option))|
    did not (?:respond|answer|complete|finish|return|reply|exit|load|start) (?:with)?in|no (?:answer|reply|
    response) within \d|did not (?:reply|answer|respond) in time|gave up [^\n]{0,30}after \d{1,5} ?(?:s|ms|sec\w{0,4}|
    min\w{0,4})\b|exceeded (?:the )?(?:time ?limit|timeout|\d{1,5}[ -]?(?:s|ms|sec\w{0,4}|min\w{0,4}|hours?) limit|
    maximum (?:execution )?time)|time limit exceeded|canceling statement due to .{0,20}timeout|TimeoutError|
    maximum execution time
    unless: session (?:has |is )?(?:timed|time)|invalid (?:value|argument|timeout)|timeout (?:must|should|cannot|
    may not|has to)|unexpected (?:keyword )?argument|lock wait|invalid time interval
tool/connection_error: connection lost
    connection (?:was |has been |is )?(?:reset|aborted|closed|lost|error|failed|dropped|broken|terminated|
    forcibly closed|to .{1,80} (?:failed|was lost))|\bECONNRESET\b|\bEPIPE\b|\bECONNABORTED\b|\bEHOSTUNREACH\b|
    \bENETUNREACH\b|(?:network|host) (?:is )?(?:unreachable|down)|no route to host|remote end closed|(?:ssl|
    tls)[ _:][^\n]{0,80}(?:error|failed|fail|handshake|verify|wrong version|alert|eof|problem)|
    certificate\b[^\n]{0,30} (?:has )?expired|certificate (?:verify failed|has expired|is not (?:valid|trusted)|
    problem)|self[- ]signed certificate|unable to get local issuer|server disconnected|(?:could not|couldn't|cannot|
    failed to|unable to|can't) (?:establish|connect|open a connection|reach|communicate)|all connection attempts failed|
    connecterror|fetch failed|socket hang up|fail(?:ed|ure)? connecting|unexpected eof (?:while reading|from|
    in violation)|eof occurred|unable to open database|incompleteread|empty reply from server|err_connection|proxyerror|
    tunnel connection failed|(?:server|host|peer|side) closed (?:the connection)?|(?:\bis|\w) unreachable|
    lost connection to|the remote (?:name could not|server (?:returned|closed|refused))|gone away|connection ?pool|
    closed (?:network )?connection|ssh: connect to host|no connection could be made|unable to access 'https?:|
    could not read from remote|(?:browser|transport|target) (?:has been |is |was )?closed|^not connected\.?$
    unless: is not connected to the internet\?$|connection string|docker daemon|connect to bus
""")

PROGRAMS = read_rules(r"""
tool/execution_failed: crashed
    segmentation fault|core dumped|^panic: |^killed\b|stack overflow|panicked at|exit(?:ed)? (?:with |by |on )?signal|
    sig(?:kill|segv|abrt|term)
tool/execution_failed: program failed
    exit(?:ed)? (?:code|with|status)|non-?zero|execution failed|command failed|error executing(?! tool)|failed with
""")

COMMANDS = read_rules(r"""
tool/test_failure: a command that runs tests
    \b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|playwright test|ctest|rspec|phpunit|bats)\b|
    \b(?:go|cargo|npm|pnpm|yarn|bun|deno|mvn|mvnw|gradle|gradlew)(?: \S{1,40}){0,3}? (?:run )?:?test\b|
    \b(?:dotnet|swift|zig|mix|make|mise|just|bazel|nx)(?: \S{1,40}){0,3}? (?:run )?:?test\b
tool/build_failure: a command that builds or checks
    \b(?:go (?:build|vet)|cargo (?:build|check|clippy)|tsc|javac|gcc|g\+\+|clang|cmake|ninja|golangci-lint)\b|
    \b(?:eslint|mypy|pyright|ruff)\b|
    \b(?:npm|pnpm|yarn|bun|mvn|gradle|gradlew)(?: \S{1,40}){0,3}? (?:run )?:?(?:build|compile|lint|package)\b|
    \b(?:dotnet|swift|make|mise|just|bazel|nx)(?: \S{1,40}){0,3}? (?:run )?:?(?:build|compile|lint|package)\b
""")
"""Rules about the command of a program that failed without words."""
