"""Rules for calls that were stopped, and for edit, read, build and test tools of coding agents."""

from __future__ import annotations

from mulligan.classify.rules import read_rules

STOPPED_CALLS = read_rules(r"""
none/collateral: cancelled with a parallel call [strong]
    sibling tool call|not (?:run|executed|started)[:;,] (?:another|an? (?:parallel|earlier|previous|sibling)|one)\b|
    parallel tool call[^\n]{0,120}(?:errored|failed)|(?:skipped|cancell?ed|aborted|not (?:run|
    executed)) (?:\w{1,12} ){0,3}(?:because|since|due to) (?:\w{1,12} ){0,2}(?:an(?:other)? |other |previous |earlier |
    preceding )+(?:tool|failure)|(?:another|other|previous|earlier|parallel|
    preceding) tool calls?\b[^\n]{0,60}(?:failed|errored|was (?:rejected|denied|cancell?ed))[^\n]{0,60}(?:not (?:run|
    executed|started|attempted)|skipped|cancell?ed|dropped)
none/user_rejected: rejected by the user [strong]
    the user (?:doesn't|does not|didn't|did not) want to (?:proceed|take|continue|run|do)|
    request interrupted by (?:the )?user|(?:rejected|declined|denied|refused|disallowed|dismissed|not approved|
    cancell?ed|aborted|interrupted|stopped|skipped) by (?:the |a )?(?:human |end )?(?:user|
    human)\b(?! (?:approval )?(?:settings|polic|rule|config))|(?:call|command|action|edit|patch|plan|tool use)\b[^\n]{0,
    40}(?:rejected|declined|denied|refused|not approved) by (?:the |an? )?(?:human )?(?:operator|reviewer|approver)\b|
    \b(?:user|human) (?:has )?(?:rejected|declined|refused|denied|cancell?ed|aborted|interrupted|dismissed|skipped|
    chose not|has chosen not|decided not|did not (?:approve|allow|accept|confirm|grant)|opted not|said no)|
    \b(?:operator|reviewer|approver) (?:has )?(?:rejected|declined|refused|denied|did not (?:approve|allow)) (?:the |
    this |your )?(?:\w{1,12} )?(?:call|command|action|edit|patch|plan|tool)\b|tool use was rejected|
    permission (?:was )?denied by (?:the )?user|\buser'?s? (?:rejection|refusal)|rejected the (?:tool|command|edit|plan|
    change)|\b(?:user|operator|human) (?:chose|selected|answered|clicked|pressed) ["']?(?:no|deny|reject|cancel|
    esc(?:ape)?)\b|\b(?:user|human|operator) (?:has )?(?:chose|chosen|opted|decided) to (?:skip|
    cancel|reject|deny|stop|decline)|(?:human|user|operator|manual) (?:review|approval|feedback|decision|
    confirmation): (?:rejected|denied|declined|refused|no\b)
none/cancelled: cancelled
    \A(?:tool |the |this )?(?:call|execution|command|operation)\b[^\n]{0,30}[:,]? (?:because )?the (?:session|request|
    run|turn|task|conversation|stream) was (?:cancell?ed|aborted|interrupted)\b|
    \A\s{0,20}(?:exit code:? \d{1,3}\s{1,20})?(?:error: )?(?:(?:the |this )?(?:operation|request|task|call|tool call|
    (?:tool )?execution|command|run|turn|session|agent|job)(?: was| has been)? (?:cancell?ed|aborted|interrupted|
    stopped(?= [^\n]{0,20}before))(?:\.|(?: \w{1,12}){0,3} before[^\n]{1,80})?|cancell?ed\.?|context canceled|
    aborterror\b.{0,60}|keyboardinterrupt|asyncio\.(?:exceptions\.)?cancellederror.{0,40})\s{0,40}\Z
orchestration/constraint_violation: rule of a hook
    \A(?:error: )?\S{0,40} ?hook (?:error|blocked|denied)\b[^\n]{0,200}(?:\brule|polic|forbid|not allowed)
orchestration/loop_detected: the same call repeated
    same (?:tool|call|arguments)\b[^\n]{0,60}(?:as before|(?:third|fourth|fifth) time)|\bloop (?:was |
    has been )?detected\b|(?:stuck|caught) in an? (?:\w{1,10} )?loop|(?:doom|repetition|tool[- ]call) loop|
    repetitive (?:tool )?calls?|(?:circular|cyclic) handoff|already called \S{1,60} with (?:these|the same|identical|
    exact)|times with (?:the same|identical|exactly) |repeat(?:ed|ing|edly) (?:\w{1,10} ){0,2}(?:same|
    identical) (?:tool )?(?:call|action|command|step|arguments)|(?:same|identical) (?:\w{1,10} ){0,2}(?:calls?|action|
    command|arguments|step)\b[^\n]{0,60}(?:\d|two|three|four|five|several|multiple|many)(?: consecutive)? times|(?:same|
    identical) (?:tool )?(?:calls?|actions?)\b[^\n]{0,40} in a row|call repetition limit|^repetition detected\b|
    reus(?:ed|ing) the same (?:input|arguments|call)
    unless: event loop|redirect|sym(?:bolic )?link|too many levels|exit (?:code|status)
orchestration/max_retries_exceeded: limit of attempts reached
    max(?:imum)?(?: number of)? (?:iterations?|turns|steps|retries|attempts|tool calls|rounds)\b[^\n]{0,40}?(?:exceeded|
    reached|exhausted)|(?:exceeded|reached|due to|hit)(?: the| its)? max(?:imum)?(?: number of)? (?:iterations?|turns|
    steps|retries|attempts|tool calls|rounds)|exceed the (?:request|tool_calls?|turns?)_limit|
    recursion limit of \d{1,9} reached|\b(?:iteration|step|turn|retry|attempt|round|tool[- ]call)s? (?:limit|budget|
    cap)\b|(?:limit|budget|maximum|cap) of \d{1,4} (?:\w{1,10} ){0,2}(?:steps|turns|iterations|retries|tool calls|
    rounds)|(?:max(?:imum)?|too many)(?: number of)? consecutive (?:mistakes|failures|errors|tool)|\d (?:steps|turns|
    iterations) used\b|used all (?:\w{1,10} ){0,5}(?:steps|turns|iterations|attempts|retries|tool calls)|(?:stopped|
    gave up|giving up) after \d{1,4} (?:\w{1,10} ){0,2}(?:attempts|tries|retries|iterations|steps|turns)|(?:all|
    the) (?:\w{1,10} ){0,2}(?:retries|attempts) (?:were |are |have been |have )?(?:exhausted|used up|failed)|
    no (?:more |further )?(?:retries|attempts|tries) (?:are )?(?:left|remain)|out of (?:retries|attempts)
    unless: \bconnect|with url|for (?:output|result) validation|connection ?pool|when calling the \w{1,60} operation|
    last (?:status|error|exception)\b
orchestration/uncaught_exception: bug of the framework
    \b(?:dispatcher|tool executor|orchestrator|agent (?:loop|runtime|framework|executor|runner|host)|
    callback(?: handler)?|middleware|(?:graph )?node ['"`]\w{1,40}['"`]|event handler|
    tool runner)\b[^\n]{0,60}(?:\b(?:KeyError|AttributeError|TypeError|NameError|IndexError|UnboundLocalError|
    AssertionError|NoneType)\b|index out of range|crashed\b)
""")
"""Calls that the user, the host or a limit stopped. Most of them are not failures."""

COMMAND_TIMEOUTS = read_rules(r"""
tool/timeout: command timed out [strong]
    \A\s{0,20}(?:exit code:? \d{1,3}\s{1,20})?(?:error: )?(?:[\w.-]{1,20}: )?(?:the |this |your )?(?:bash |shell |
    tool )?(?:command|process|tool|execution|script|call)\b[^\n]{0,60}?(?:timed[ -]?out|timeout|exceeded (?:its|
    the) (?:time|timeout)|did not (?:finish|complete|exit)[^\n]{0,20} (?:with)?in \d|(?:killed|
    terminated)[^\n]{0,40}(?:timeout|longer than|\d ?(?:s|ms|seconds|minutes)\b))|\A[^\n]{0,40}\b(?:command|process|
    script)\b[^\n]{0,20}\b(?:ran|running|run|took) (?:for )?(?:more|longer) than \d|
    ^[^\n]{0,20}command timed out after \d[^\n]{0,40}\Z|\A\s{0,20}(?:error: )?time-?out\b[^\n]{0,60}\s{0,20}\Z|
    \bexited (?:with|due to) (?:a )?timeout|\bno (?:new )?output (?:for|in|within|after) \d|
    \bprocess (?:was )?(?:killed|terminated|stopped) after \d|\A[^\n]{0,120}\b(?:stopped|killed|terminated|aborted|
    cancell?ed) (?:because|since) it (?:took|ran|was running) (?:for )?(?:more|longer|over)|\b(?:terminated|killed|
    stopped|aborted) (?:the )?(?:command|process) after \w{0,12} ?(?:the )?(?:timeout|time limit|\d)|
    \A(?:the )?(?:command|process) exceeded [^\n]{0,20}\d{1,6} ?(?:s|ms|seconds|minutes)?\b[^\n]{0,12}(?:limit|timeout)|
    \[killed: exceeded \d|still running after \d{1,9} ?(?:s|ms|sec\w{0,4})\b
    unless: invalid|must|unexpected|unrecogni|missing|option
""")
"""Commands that the host of a coding agent stopped. The output before that, such as that of tests, is incomplete."""

EDITING = read_rules(r"""
tool/invalid_arguments: arguments rejected by the agent [strong]
    \Aparams(?:/\S{1,60})? must (?:have required property|be\b)|\Athe \S{1,60} tool was called with invalid arguments
tool/invalid_arguments: malformed patch
    the (?:first|last) line of the patch (?:must|should)|not a valid hunk header
tool/edit_mismatch: text to replace not found [strong]
    string to replace (?:was )?not found|no match(?:es)?(?: was| were)?(?: found)? (?:for|
    of) [`'"]?(?:the )?(?:old_?(?:str|text)|original|search (?:text|block|string))|(?:could not|cannot|unable to|
    failed to) (?:find|locate|match) (?:the )?(?:[`'"]?old_?(?:string|str|text)|original (?:text|lines|content|code)|
    search (?:text|block|string)|text to replace)|matches of the string to replace|old_?(?:string|str|text|
    content)\b[^\n]{0,200}(?:not found|is missing from|did not (?:appear|match)|does not (?:appear|match|exist)|
    could not be found|found multiple|not unique|multiple times)|(?:multiple|several|\d{1,9}) (?:exact |
    identical )?(?:occurrences|matches) (?:of|found|for)[^\n]{0,60}(?:old_?str|old_?text|search|to replace|
    in (?:the )?file)|no replacement was (?:performed|made)|old_?string and new_?string are (?:exactly )?(?:the same|
    identical)|search(?:/replace)? block[^\n]{0,60}(?:failed|not|did|no)|hunk #?\d{1,9} (?:of \d{1,9} )?(?:failed|
    succeeded at .* with fuzz)|patch (?:does not apply|failed)|patch failed|corrupt patch|malformed patch|
    only garbage was found in the patch|failed to find (?:expected lines|context)|invalid context|
    apply_patch verification failed|(?:failed|unable) to apply (?:the )?(?:patch|diff|edit|hunk)|could not (?:find|
    apply) (?:the |an )?(?:exact match|string to replace|text to replace|edit|diff|hunk)|(?:0|zero|no) (?:occurrences|
    matches) (?:were )?found (?:for|of)[^\n]{0,40}(?:old|string|text|search)|failed to edit|
    expected \d{1,9} occurrences? but found|do(?:es)?(?: not|n't) match (?:anything|any text|the content|the file)|
    no (?:sufficiently )?(?:similar|exact) match|diff edit mismatch|no match found for (?:replacement|edit|search)|
    text (?:to replace )?not found in (?:the )?file|appears (?:multiple|\d{1,9}) times in (?:the )?file|
    not unique in the file|^invalid patch|no valid patches in input|does not match the expected content|
    requires more (?:code )?context to uniquely|no changes (?:to (?:apply|make)|made)\b|oldstring (?:was )?not found|
    new_?(?:string|str|text) and old_?\w{1,6} are|nothing to (?:replace|change|edit)\b|ambiguous (?:edit|match|
    replacement)|(?:0|no) replacements? (?:were )?made|expected \d{1,9} match(?:es)?,? (?:but )?(?:found|got) \d|
    (?:could not|couldn't|cannot|can't|unable to|failed to) (?:find|locate) (?:an? |any |the )?(?:matching|exact|
    identical|verbatim) (?:search |original |old )?(?:text|string|block|lines?|code|content|section|chunk|hunk)|
    search patterns?\b[^\n]{0,40}(?:not|n't) match|hunk failed to apply|does not contain (?:lines that match|
    the \*?exact|these \d{1,9} exact)|contains multiple sets of lines|invalidedit ?block|malformed edit\b|
    target content (?:was )?(?:not|cannot be|could not be) found|(?:replacement|new) (?:text|string|content|
    code) is identical to the|unable to find (?:\w{1,16} )?substring|unable to apply (?:all|some|
    your) (?:\w{1,10} )?(?:diff|edit|hunk|patch|change)|nothing in the file matches|edit was not applied
    unless: failed to read (?:the )?file|no such file|can't open patch
tool/edit_mismatch: context of an edit not found [strong]
    \b(?:search|string|text|context|block|old_?(?:str\w{0,4}|text)|snippet|content|lines?|anchor|hunk|original|target|
    diff|patch|range|section|region|expression|patterns?|edit \d{1,3}|chunk)\b[^\n]{0,80}?(?:(?:was |were |is |
    are )?not found|(?:does|did|do) not match|no match|not unique|ambiguous|must (?:be unique|match exactly|
    exactly match)|(?:found|matched) (?:\d{1,9}|multiple|several) (?:occurrences|matches|times|locations)|
    more than one (?:place|match|location|occurrence)|(?:is |was )?not (?:part of|in) (?:the|this) file|(?:occurs|
    appears|found|present) (?:\w{1,10} ){0,2}(?:\d{1,9}|two|three|many) (?:times|places)|no longer (?:contains?|match|
    present)|not (?:present|there) in|(?:does|did|do|could) not (?:appear|occur|be (?:located|placed|found))|
    (?<!disk )differ|(?:multiple|several) (?:times|places|matches|locations|positions)|match(?:es|ed)? (?:[2-9]|\d{2,9}|
    multiple|several)\b|\b\d{1,9} (?:matches|occurrences|locations))|expected [^\n]{1,80} but found|(?:none|
    no) [^\n]{0,40}(?:edits?|them|changes|hunks?|blocks?) (?:could|can|were) (?:not )?be(?:en)? applied|(?:could not|
    cannot|can't|couldn't|unable to|failed to) (?:find|locate|match) (?:the |your |this |
    an? )?(?:[\w*]{1,16} ){0,2}(?:text|string|substring|block|lines?|code|snippet|content|context|chunk|hunk|anchor|
    pattern|section)\b|^no (?:matches|occurrences) of\b|invalid diff\b|marker '[=<>+-]{5,9}|unique match\b|(?:occurs|
    appears) twice\b|(?:surrounding|matching) (?:code|text|lines?|content) (?:was |were )?not found|
    edits?\b[^\n]{0,60} (?:could not|none)[^\n]{0,20} be applied|drifted\b|(?:text|block|content|
    snippet) is not present|(?:context|content|hunk|text) mismatch|copied verbatim|^no edit applied|^edit rejected\b
    unless: no such file|file (?:was )?not found|directory|syntax
    tools: edit|patch|replace|diff|update_file|insert|modify
tool/stale_file: file not read since it changed [strong]
    file has not been (?:read|viewed|opened)|must be read before|\bread (?:the |
    this )?(?:file )?(?:\S{1,120} )?before (?:editing|changing|writing|overwriting|modifying|updating|making|
    you (?:edit|write|change|make|modify))|have not (?:yet )?read (?:this|the|that) file|on disk is newer|
    changed (?:after|since) your last|has been (?:modified|changed|unexpectedly modified|updated)[^\n]{0,20} since|
    (?:must|need to|should) (?:first )?(?:use (?:your|the) read tool|read (?:the|this|it|
    a) ?(?:file)?)[^\n]{0,60}(?:first|before|at least once)|read it (?:first|again) before|modified (?:externally|
    since (?:it was )?(?:last )?read|on disk)|(?:contents?|file) (?:on disk )?(?:has|have) changed since|
    on disk (?:differs|no longer matches)|differs? from (?:the version|what) (?:you|it was)|changed by (?:another|
    an external|some other)|file is stale|stale (?:file|read)|changed on disk|since (?:you|it was|
    the \w{1,12} was) (?:last )?(?:read|opened|viewed|loaded|saw)|(?:buffer|copy|snapshot|view)\b[^\n]{0,40} (?:is |
    was )?(?:out of date|outdated|stale)|(?:changed|modified|edited) (?:externally|outside)|
    changed by someone else after|after your last (?:view|read)\b|need to (?:view|open) the file before
tool/output_too_large: output too large
    (?:file|content|output|response|result|text|page|document|data)s?\b[^\n]{0,60}exceeds? (?:the )?(?:max(?:imum)?|
    limit|allowed|\d{1,9} ?[KMG]i?B)[^\n]{0,30}(?:token|size|length|limit|character|byte|output|line|KB|MB|\d)|
    (?:output|response|result|file|content|document|page) (?:is |was |are )?too (?:large|long|big)(?: to (?:display|
    read|return|show|process|open|load|be))?|(?:output|result|response)[^\n]{0,30}(?:larger|longer|
    bigger) than (?:the )?(?:max|limit|\d)|(?:output|response|result) exceed(?:s|ed) \d|maximum (?:output|response|
    result) (?:size|length) exceeded|(?:returned|produced|found|has|contains|
    matched) [\d,.]{3,12} (?:\w{1,12} ){0,2}(?:lines|match(?:es)?|results|rows|characters|bytes|tokens|entries|files|
    items)\b[^\n]{0,40}(?:over|above|more than|exceed\w{0,3}|beyond) (?:the )?(?:\w{1,10} )?(?:limit|maximum|max\b|
    allowed)|too many (?:results|matches|matching lines|search results)|too much (?:output|data|text)|
    more than can be (?:returned|shown|displayed)|(?:produced|returned|found|matched) more than [\d,]{3,9} (?:lines|
    matches|results|rows)|(?:output|result|response|page|content|file)s?\b[^\n]{0,20} (?:has|have|is|
    was) [\d,.]{1,12} ?(?:[KMG]i?B|bytes|characters|chars|lines|tokens|rows)\b[^\n]{0,40}(?:at most|limit|max|only)|
    received message larger than max|maxcontentlength size|maxbuffer (?:length )?exceeded|message too big\b|
    too many to (?:read|return|show|display|list)\b
    unless: request (?:entity|body|payload)|upload|payload too|argument list too long|file ?name too long|413
""")

_NO_SOURCE = (
    r"^cc1\w{0,8}: fatal error: .{1,200}: No such file|no input files|couldn't read `[^`\n]{1,200}`: No such file|"
    r"^\S{1,200}\.py: error: Cannot read file|^E902 No such file|^\S{0,40}clang\S{0,20}: error: no such file|"
    r"^g?make: \S{1,200}: No such file or directory\ng?make: \*\*\* No rule|^error: file not found: |"
    r"unrecogni[sz]ed command.line option|^g?make: \*\*\* \S{1,200}: No such file|^CMake Error: (?:Unknown argument|"
    r"The source directory)|^g?make: \S{1,80}: No such file or directory\n[^\n]{0,120}Error 127"
)
"""Errors about a missing source file: the command was wrong, not the code."""

TESTS_AND_BUILDS = read_rules(
    r"""
tool/test_failure: go test failed
    ^\s{0,40}(?:\[[\w:-]{1,30}\] )?--- FAIL: |^FAIL\t\S{1,300}\t[\d.]{1,20}s|panic: test timed out|^=== RUN   Test|
    "Action":"fail","Package"
tool/test_failure: pytest failed
    ^={1,200} (?:FAILURES|ERRORS) ={1,200}|^(?:FAILED|ERROR) \S{1,300}(?:::| - )|^={1,200} .{0,80}\b\d{1,9} (?:failed|
    errors?)\b.{0,80} in [\d.]{1,20}|short test summary info|
    ^(?:\d{1,9} \w{1,10}, ){0,4}[1-9]\d{0,8} failed\b[^\n]{0,40} in [\d.]{1,20}|
    ^\d{1,9} failed(?:, \d{1,9} \w{1,80}){0,5} in [\d.]{1,20}s|^E   +(?:assert|AssertionError)|errors? during collection
tool/test_failure: unittest failed
    ^FAILED \((?:failures|errors)=|^(?:FAIL|ERROR): (?:test|setUp)\w{0,80} \([\w.]{1,80}\)
tool/test_failure: jest or vitest failed
    ^[ \t]{0,40}(?:Tests?|Test Suites|Test Files):?\s{1,40}(?:\d{1,9} \w{1,80}[,|] ?){0,3}\d{1,9} failed|
    ^[ \t]{0,40}FAIL\s{1,40}\S{1,300}\.(?:test|spec)\.\w{1,80}|^[ \t]{0,40}FAIL\s{1,40}\S{0,300}__tests__|
    ^[ \t]{0,40}(?:\d{1,9}|[1-9]\d{0,9}) failing\b|^not ok \d{1,9}|^# fail [1-9]|^\u2139 fail [1-9]|
    ^[ \t]{1,40}\u25cf .+ \u203a |^\s{1,10}at Context\.<anonymous>|^\(fail\) | pass\n {0,4}[1-9]\d{0,5} fail$|
    ^Executed \d{1,6} of \d{1,6} \([1-9]\d{0,5} FAILED|\d{1,6} passed \| [1-9]\d{0,5} failed|
    ^[ \t]{0,40}[1-9]\d{0,9} (?:tests? )?failed$
tool/test_failure: cargo test failed
    test result: FAILED|test failed, to rerun|^[ \t]{0,40}\d{1,9} tests? failed:|^test .{1,200} \.\.\. FAILED|
    Summary \[[^\]]{1,20}\] .{0,60}\d{1,9} failed
tool/test_failure: java tests failed
    Tests run: \d{1,9}, Failures: (?:[1-9]\d{0,9}|0, Errors: [1-9])|There (?:were|are) (?:failing tests|test failures)|
    \d{1,9} tests? completed, [1-9]\d{0,9} failed|Failed tests:|Test .{1,100} FAILED$
tool/test_failure: tests failed
    \[  FAILED  \]|\d{1,9}% tests passed, [1-9]\d{0,9} tests? failed|The following tests FAILED|
    \d{1,9} examples?, [1-9]\d{0,9} failures?|\d{1,9} runs?, \d{1,9} assertions?, (?:[1-9]\d{0,9} failures|
    0 failures, [1-9])|^FAILURES!$|Tests: \d{1,9}, Assertions: \d{1,9}, (?:Failures|Errors): [1-9]|
    Failed!\s{1,40}- Failed:\s{1,40}[1-9]|Executed \d{1,9} tests?, with [1-9]\d{0,9} failure|\d{1,9} (?:tests?|
    doctests?), [1-9]\d{0,9} failures?|Test Case .{1,120} failed|Total tests: \d{1,9}[\s\S]{0,60}Failed: [1-9]|
    [1-9]\d{0,9} (?:of|out of) \d{1,9} tests? failed|^[ \t]{0,40}[1-9]\d{0,9} tests? failed\b|Test run failed|
    ^[ \t]{0,40}(?:AssertionError: )expected .{1,80} to (?:equal|be|deep equal|match|include|contain) |
    \*\*\*Test Failed\*\*\*|items? had failures|^# Looks like you failed \d|^Failed \d{1,6}/\d{1,6} subtests|
    ^Result: FAIL$|: Some tests failed\.|Some tests did not pass|^FAIL in \(|\[ FAIL [1-9]|test cases: +\d{1,6} \||
    \*\*\* \d{1,6} failures? (?:is|are) detected|\d{1,6} scenarios? \([^)\n]{0,30}\d failed|\*\*\* FAILED \*\*\*|
    \d{1,6} passed, [1-9]\d{0,5} failed\b|\d{1,6} successes / [1-9]\d{0,5} failure|^//\S{1,200} +FAILED in |
    [1-9]\d{0,5} failures?, \d{1,6} errors?\.|\*\*\* \[(?:[^\]\n]{0,80}: )?(?:\w{1,12}[-_])?(?:tests?|check)\] Error|
    (?:^|\s)Failed: Total \d{1,6}, Failed [1-9]|^[ \t]{0,10}0/[1-9]\d{0,5} (?:tests? )?pass(?:ed|ing)\b|<testfailure\b|
    \[FAIL[.:] |a total of [1-9]\d{0,5} failing tests?|coverage failure: total|required test coverage of|\b(?:unit|
    integration|e2e)(?: test)? suite failed|<summary passed=\d{1,6} failed=[1-9]|<failure (?:message|type)=|
    ^#? {0,3}\(in test file \S{1,200}, line \d
tool/test_failure: go test run
    ^\[test[\w:]{0,12}\] \$ go test[^\n]{0,200}\n(?:[^\n]{0,300}\n){0,3}\?? {0,3}(?:ok|\?) ?[\t ]
    unless: \[build failed\]|\[setup failed\]
tool/build_failure: go does not build
    ^[^\s:]{1,200}\.go:\d{1,9}:\d{1,9}: |\[(?:build|setup) failed\]|updates to go\.mod needed|go\.mod file not found|
    cannot find module providing|import cycle not allowed|no required module provides package|^go: (?:cannot|no|module|
    finding|updates|build|errors|inconsistent|\S{1,300}@|\S{1,300}: )|missing go\.sum entry|golangci-lint run|^(?:vet|
    gofmt): |^# \S{1,300}\n\S{1,300}\.go:|is not in (?:GOROOT|std)|build constraints exclude all Go files|
    ^(?:\[[\w:-]{1,30}\] )?\S{1,300}\.go:\d{1,9}:\d{1,9}:[ ]
    unless: cannot find main module|\.go: no such file|dial tcp|name resolution|tls handshake|i/o timeout
tool/build_failure: rust does not compile
    ^error\[E\d{4}\]|could not find `Cargo\.toml`|could not compile `|aborting due to (?:\d{1,9} |
    \w{1,80} )?previous error|failed to run custom build command|error: failed to (?:select a version|parse manifest|
    load manifest|resolve|get `)|error: no matching package (?:named|found)|
    error: the package '.{1,80}' does not contain|error: no \w{1,12} target named|error: (?:package|dependency|
    feature) `|^error: .{1,200}\n\s{1,40}--> \S{1,300}\.rs:\d{1,9}
    unless: NO_SOURCE
tool/build_failure: typescript does not compile
    error TS\d{3,5}:|\bTS\d{3,5} \[ERROR\]|\bTS\d{4}:|\bts\(\d{4}\)|^\u2716 \d{1,9} problems?|
    \d{1,9} problems? \([1-9]\d{0,9} errors?|failed to compile|module not found: (?:error: )?can't resolve|
    rollup failed|build failed with [1-9]|\[vite[^\]]{0,30}\].{0,40}(?:error|failed)|^ERROR in (?:\.{0,2}/|\[|
    \w{1,80}\.\w)|\[ERROR\] .{1,200}\n|^\u2718 \[ERROR\] |transform failed with|
    ^[ \t]{1,40}\d{1,9}:\d{1,9}\s{1,40}error\s{1,40}\S|webpack .{0,60}compiled with [1-9]\d{0,9} errors?|
    code style issues found|parsing error:[ ]
tool/build_failure: java does not compile
    \.java:\d{1,9}: error:|\.java:\[\d{1,9},\d{1,9}\]|COMPILATION ERROR|compilation (?:failed|error)|BUILD FAIL(?:URE|
    ED)|Execution failed for task '?:?\S{0,300}compile|^e: \S{1,300}\.kts?|\.kt:\d{1,9}:\d{1,9}:? error|
    \.scala:\d{1,9}:(?:\d{1,9}:)? ?error|could not resolve all (?:files|dependencies)|could not compile build file|
    \.java:\d{1,9}: .{1,80}\n\s{1,40}symbol:
tool/build_failure: c does not compile
    ^[^\s:]{1,200}:\d{1,9}(?::\d{1,9})?: (?:fatal )?error: |undefined reference to|ld returned \d{1,9} exit|
    linker command failed|fatal error LNK\d{1,9}|error LNK\d{4}|\berror C\d{4}:|cmake error|ninja: (?:build stopped|
    error)|undefined symbols for architecture|ld: (?:symbol|library|cannot find|undefined)|collect2: error|^(?:g?make|
    make)(?:\[\d{1,9}\])?: \*\*\* (?:\[(?!(?:[^\]\n]{0,80}: )?(?:deploy|run|start|serve|up|down|clean|publish|release|
    migrate|seed|push|dev|install)\])|No rule)|\*\*\* [^\n]{1,120}\.  Stop\.|\((?:fatal )?error\): |
    ^ld(?:\.\w{1,80})?: cannot find
    unless: NO_SOURCE
tool/build_failure: c sharp does not compile
    error (?:CS|FS|BC|MSB|NU|NETSDK)\d{3,5}|^[ \t]{0,40}Build FAILED\.?$
tool/build_failure: python does not compile
    ^[ \t]{0,40}(?:SyntaxError|IndentationError|TabError): |\*\*\* (?:Error compiling|Sorry: )|
    \.py:\d{1,9}(?::\d{1,9})?:? (?:- )?error[: ]|\.py:\d{1,9}:\d{1,9}: [A-Z]{1,4}\d{2,4}[ :]|
    ^Found \d{1,9} errors?(?: in \d{1,9} files?| \(|\.$|,)|^\d{1,9} errors?, \d{1,9} warnings?(?:, \d{1,9} \w{1,80})?$|
    would (?:be )?reformat(?:ted)?
    unless: <stdin>|<unknown>|because of exception being raised|in JSON at position|JSON\.parse|not valid JSON|NO_SOURCE
tool/build_failure: a package does not build
    failed (?:to build|building) (?:installable )?wheels?|could not build wheels|subprocess-exited-with-error|
    metadata-generation-failed|node-gyp.{0,40}(?:failed|not ok)|gyp err!|failed to build gem native|failed to solve: |
    ^\s{1,6}--> \S{1,300}:\d{1,9}:\d{1,9}$|error: failed to build|failed to build (?:image|.{1,60}:)|
    executor failed running
tool/build_failure: source does not compile
    :\d{1,9}: (?:unexpected symbol|.{1,30} expected) near '|introduced (?:new )?syntax error|^-e:\d{1,9}: syntax error|
    \bSC\d{4} \(error\)|\bSC\d{4} \(warning\)|\bSC\d{4} \(info\)|\bSC\d{4} \(style\)|(?:compile|
    compilation|compiler) errors?\b|== compilation error|compilation (?:failed|aborted|terminated)|
    error: \[GHC-\d{1,9}\]|\.hs:\d{1,9}:\d{1,9}: error|\.swift:\d{1,9}:\d{1,9}: error|\.zig:\d{1,9}:\d{1,9}: error|
    php parse error|\.ex:\d{1,9}|\berror: compilation\b|\.(?:rb|php|pl|pm|lua|js|mjs|cjs|tex|css|scss|
    proto):\d{1,9}(?::\d{1,9})?:? .{0,40}(?:syntax error|parse error|unexpected)|syntax error at \S{1,300} line \d{1,9}|
    had compilation errors|\[lint[\w:]{0,12}\] ERROR|^[ \t]{0,40}build failed\b|
    ^[^\s:]{1,200}\.\w{1,8}[:(]\d{1,9}(?:[:,] ?\d{1,9})?\)?:? (?:- )?(?:fatal |syntax |type )?error\b|
    ^(?:\d{1,6} warnings? and )?[1-9]\d{0,6} errors? generated\.|\bfound [1-9]\d{0,6} errors? and \d{1,6} warnings?|
    [1-9]\d{0,6} offenses? detected|^configure: error: |^! (?:LaTeX Error|Undefined control|Emergency stop|Missing )|
    Build did NOT complete|^File "[^"\n]{1,200}", line \d{1,9}, characters \d|^In \S{1,200}\.cr:\d|
    : Compiling \S{1,200} failed: \(|\*\* \((?:CompileError|TokenMissingError|SyntaxError|MismatchedDelimiterError)\)|
    ^\s{0,8}on \S{1,200}\.tf line \d|--> \S{1,200}\.sol:\d
    unless: NO_SOURCE|near line \d{1,9} of|sqlite|mysql|postgres|sql syntax|at or near|\(eval\)|regular expression|
    regexp|\bgrep\b|can't locate \S{1,120}\.pm|regex parse error
""".replace("NO_SOURCE", _NO_SOURCE)
)

FIRST_ERROR_PATTERN = (
    r"^\s{0,40}--- FAIL: .{1,200}|^(?:FAILED|ERROR) \S{1,300}::.{1,200}|^E   +\S.{1,200}|^test .{1,200} \.\.\. FAILED|"
    r"^error\[E\d{4}\].{1,200}|^\S{1,200}:\d{1,9}:\d{1,9}: .{1,200}|^\S{1,200}\(\d{1,9},\d{1,9}\): error .{1,200}|"
    r"^\S{1,200}:\d{1,9}: error: .{1,200}|^\S{1,200}\.\w{1,8}:\d{1,9}: \S.{1,200}|^[ \t]{0,40}\u25cf .{1,200}|"
    r"^(?:FAIL|ERROR): \w.{1,200}|^[ \t]{0,40}(?:[\w.]{0,80}Error|SyntaxError): .{1,200}|^FAIL\t\S{1,300}.{0,100}|"
    r"^\[ERROR\] .{1,200}|^.{0,100}undefined reference to .{1,200}|^error: .{1,200}"
)
"""First error line of a build or a test run."""
