"""Rules for calls that were stopped, and for edit, read, build and test tools of coding agents."""

from __future__ import annotations

from mulligan.classify.rules import read_rules

STOPPED_CALLS = read_rules(r"""
none/user_rejected: rejected by the user [strong]
    the user (?:doesn't|does not|didn't|did not) want to (?:proceed|take|continue|run|do)|
    request interrupted by (?:the )?user|(?:rejected|declined|denied|refused|disallowed|dismissed|not approved|
    cancell?ed|aborted|interrupted|stopped|skipped) by (?:the )?(?:human |end )?user\b|\buser (?:has )?(?:rejected|
    declined|refused|denied|cancell?ed|aborted|interrupted|dismissed|skipped|chose not|has chosen not|decided not|
    did not (?:approve|allow|accept|confirm)|opted not|said no)|tool use was rejected|permission (?:was )?denied by (?:
    the )?user|\buser'?s? (?:rejection|refusal)|rejected the (?:tool|command|edit|plan|change)
none/collateral: cancelled with a parallel call [strong]
    sibling tool call|parallel tool call[^\n]{0,120}(?:errored|failed)|(?:skipped|cancell?ed|aborted|not (?:run|
    executed)) (?:\w{1,12} ){0,3}(?:because|since|due to) (?:\w{1,12} ){0,2}(?:an(?:other)? |other |previous |earlier |
    preceding )+tool
none/cancelled: cancelled
    \A\s{0,20}(?:exit code:? \d{1,3}\s{1,20})?(?:error: )?(?:(?:the |this )?(?:operation|request|task|call|tool call|
    (?:tool )?execution|command|run)(?: was| has been)? (?:cancell?ed|aborted|interrupted)\.?|cancell?ed\.?|
    context canceled|aborterror\b.{0,60}|keyboardinterrupt|asyncio\.(?:exceptions\.)?cancellederror.{0,40})\s{0,40}\Z
orchestration/max_retries_exceeded: limit of attempts reached
    max(?:imum)?(?: number of)? (?:iterations|turns|steps|retries|attempts|tool calls|rounds)\b[^\n]{0,40}?(?:exceeded|
    reached|exhausted)|(?:exceeded|reached|due to|hit)(?: the| its)? max(?:imum)?(?: number of)? (?:iterations|turns|
    steps|retries|attempts|tool calls|rounds)|recursion limit of \d{1,9} reached
    unless: with url|for (?:output|result) validation|connection ?pool|when calling the \w{1,60} operation
""")
"""Calls that the user, the host or a limit stopped. Most of them are not failures."""

EDITING = read_rules(r"""
tool/edit_mismatch: text to replace not found [strong]
    string to replace (?:was )?not found|matches of the string to replace|old_?(?:string|str|text|
    content)\b[^\n]{0,200}(?:not found|did not (?:appear|match)|does not (?:appear|match|exist)|could not be found|
    found multiple|not unique|multiple times)|(?:multiple|several|\d{1,9}) (?:occurrences|matches) (?:of|found|
    for)[^\n]{0,60}(?:old_?str|old_?text|search|to replace|in (?:the )?file)|no replacement was (?:performed|made)|
    old_?string and new_?string are (?:exactly )?(?:the same|identical)|search(?:/replace)? block[^\n]{0,60}(?:failed|
    not|did|no)|hunk #?\d{1,9} (?:failed|succeeded at .* with fuzz)|patch (?:does not apply|failed)|patch failed|
    corrupt patch|malformed patch|only garbage was found in the patch|failed to find (?:expected lines|context)|
    invalid context|apply_patch verification failed|failed to apply (?:patch|diff|edit|hunk)|could not (?:find|
    apply) (?:the |an )?(?:exact match|string to replace|text to replace|edit|diff|hunk)|(?:0|zero|no) (?:occurrences|
    matches) (?:were )?found (?:for|of)[^\n]{0,40}(?:old|string|text|search)|failed to edit|
    expected \d{1,9} occurrences? but found|does not match (?:anything|any text|the content|the file)|
    no (?:sufficiently )?(?:similar|exact) match|diff edit mismatch|no match found for (?:replacement|edit|search)|
    no changes to make|text (?:to replace )?not found in (?:the )?file|appears (?:multiple|
    \d{1,9}) times in (?:the )?file|not unique in the file|^invalid patch|no valid patches in input|
    the first line of the patch|does not match the expected content|requires more (?:code )?context to uniquely|
    no changes to (?:apply|make)|oldstring (?:was )?not found
    unless: failed to read (?:the )?file|no such file|can't open patch
tool/edit_mismatch: context of an edit not found [strong]
    \b(?:search|string|text|context|block|old_?(?:str\w{0,4}|text)|snippet|content|lines?|anchor|hunk|original|
    target)\b[^\n]{0,80}?(?:(?:was |were |is |are )?not found|(?:does|did|do) not match|no match|not unique|ambiguous|
    (?:multiple|several) (?:times|places|matches|locations|positions)|match(?:es|ed)? (?:[2-9]|\d{2,9}|multiple|
    several)\b|\b\d{1,9} (?:matches|occurrences|locations))|expected [^\n]{1,80} but found|(?:none|
    no) [^\n]{0,40}(?:edits?|them|changes|hunks?|blocks?) (?:could|can|were) (?:not )?be(?:en)? applied|
    edits?\b[^\n]{0,60} (?:could not|none)[^\n]{0,20} be applied
    unless: no such file|file (?:was )?not found|directory|syntax
    tools: edit|patch|replace|diff|update_file|insert|modify
tool/stale_file: file not read since it changed [strong]
    file has not been read|has been (?:modified|changed|unexpectedly modified|updated)[^\n]{0,20} since|(?:must|need to|
    should) (?:first )?(?:use (?:your|the) read tool|read (?:the|this|it|a) ?(?:file)?)[^\n]{0,60}(?:first|before|
    at least once)|read it (?:first|again) before|modified (?:externally|since (?:it was )?(?:last )?read|on disk)|
    (?:contents?|file) (?:on disk )?(?:has|have) changed since|file is stale|stale (?:file|read)|changed on disk|
    since (?:you|it was|the file was) (?:last )?(?:read|opened|viewed|loaded)
tool/output_too_large: output too large
    (?:file|content|output|response|result|text|page|document|data)s?\b[^\n]{0,60}exceeds? (?:the )?(?:max(?:imum)?|
    limit|allowed|\d{1,9} ?[KMG]i?B)[^\n]{0,30}(?:token|size|length|limit|character|byte|output|line|KB|MB|\d)|
    (?:output|response|result|file|content|document|page) (?:is |was |are )?too (?:large|long|big)(?: to (?:display|
    read|return|show|process|open|load|be))?|(?:output|result|response)[^\n]{0,30}(?:larger|longer|
    bigger) than (?:the )?(?:max|limit|\d)|(?:output|response|result) exceed(?:s|ed) \d|maximum (?:output|response|
    result) (?:size|length) exceeded
    unless: request (?:entity|body|payload)|upload|payload too|argument list too long|file ?name too long|413
""")

_NO_SOURCE = (
    r"^cc1\w{0,8}: fatal error: .{1,200}: No such file|no input files|couldn't read `[^`\n]{1,200}`: No such file|"
    r"^\S{1,200}\.py: error: Cannot read file|^E902 No such file|^\S{0,40}clang\S{0,20}: error: no such file|"
    r"^g?make: \S{1,200}: No such file or directory\ng?make: \*\*\* No rule|^error: file not found: |"
    r"unrecogni[sz]ed command.line option|^g?make: \*\*\* \S{1,200}: No such file|^CMake Error: Unknown argument"
)
"""Errors about a missing source file: the command was wrong, not the code."""

TESTS_AND_BUILDS = read_rules(
    r"""
tool/test_failure: go test failed
    ^\s{0,40}(?:\[[\w:-]{1,30}\] )?--- FAIL: |^FAIL\t\S{1,300}\t[\d.]{1,20}s|panic: test timed out|^=== RUN   Test
tool/test_failure: pytest failed
    ^={1,200} (?:FAILURES|ERRORS) ={1,200}|^(?:FAILED|ERROR) \S{1,300}(?:::| - )|^={1,200} .{0,80}\b\d{1,9} (?:failed|
    errors?)\b.{0,80} in [\d.]{1,20}|short test summary info|^\d{1,9} failed(?:, \d{1,9} \w{1,80}){0,5} in [\d.]{1,20}s|
    ^E   +(?:assert|AssertionError)|errors? during collection
tool/test_failure: unittest failed
    ^FAILED \((?:failures|errors)=|^(?:FAIL|ERROR): (?:test|setUp)\w{0,80} \([\w.]{1,80}\)
tool/test_failure: jest or vitest failed
    ^[ \t]{0,40}(?:Tests?|Test Suites|Test Files):?\s{1,40}(?:\d{1,9} \w{1,80}[,|] ?){0,3}\d{1,9} failed|
    ^[ \t]{0,40}FAIL\s{1,40}\S{1,300}\.(?:test|spec)\.\w{1,80}|^[ \t]{0,40}FAIL\s{1,40}\S{0,300}__tests__|
    ^[ \t]{0,40}(?:\d{1,9}|[1-9]\d{0,9}) failing\b|^not ok \d{1,9}|^# fail [1-9]|^\u2139 fail [1-9]|
    ^[ \t]{1,40}\u25cf .+ \u203a |^[ \t]{0,40}[1-9]\d{0,9} (?:tests? )?failed$
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
    \*\*\*Test Failed\*\*\*|items? had failures
tool/test_failure: go test run
    ^\[test[\w:]{0,12}\] \$ go test[^\n]{0,200}\n(?:[^\n]{0,300}\n){0,3}\?? {0,3}(?:ok|\?) ?[\t ]
    unless: \[build failed\]|\[setup failed\]
tool/build_failure: go does not build
    ^[^\s:]{1,200}\.go:\d{1,9}:\d{1,9}: |\[(?:build|setup) failed\]|updates to go\.mod needed|go\.mod file not found|
    cannot find module providing|import cycle not allowed|no required module provides package|^go: (?:cannot|no|module|
    finding|updates|build|errors|inconsistent|\S{1,300}@|\S{1,300}: )|missing go\.sum entry|golangci-lint|^(?:vet|
    gofmt): |^# \S{1,300}\n\S{1,300}\.go:|is not in (?:GOROOT|std)|build constraints exclude all Go files|
    ^(?:\[[\w:-]{1,30}\] )?\S{1,300}\.go:\d{1,9}:\d{1,9}:[ ]
    unless: cannot find main module|\.go: no such file
tool/build_failure: rust does not compile
    ^error\[E\d{4}\]|could not find `Cargo\.toml`|could not compile `|aborting due to (?:\d{1,9} |
    \w{1,80} )?previous error|failed to run custom build command|error: failed to (?:select a version|parse manifest|
    load manifest|resolve|get `)|error: no matching package (?:named|found)|error: the package '.{1,80}
    ' does not contain|error: no \w{1,12} target named|error: (?:package|dependency|feature) `|
    ^error: .{1,200}\n\s{1,40}--> \S{1,300}\.rs:\d{1,9}
    unless: NO_SOURCE
tool/build_failure: typescript does not compile
    error TS\d{3,5}:|\bTS\d{4}:|\bts\(\d{4}\)|^\u2716 \d{1,9} problems?|\d{1,9} problems? \([1-9]\d{0,9} errors?|
    failed to compile|module not found: (?:error: )?can't resolve|rollup failed|build failed with [1-9]|
    \[vite[^\]]{0,30}\].{0,40}(?:error|failed)|^ERROR in (?:\.{0,2}/|\[|\w{1,80}\.\w)|\[ERROR\] .{1,200}\n|
    transform failed with|^[ \t]{1,40}\d{1,9}:\d{1,9}\s{1,40}error\s{1,40}\S|webpack .{0,60}compiled with [1-9]\d{0,
    9} errors?|code style issues found|parsing error:[ ]
tool/build_failure: java does not compile
    \.java:\d{1,9}: error:|\.java:\[\d{1,9},\d{1,9}\]|COMPILATION ERROR|compilation (?:failed|error)|BUILD FAIL(?:URE|
    ED)|Execution failed for task '?:?\S{0,300}compile|^e: \S{1,300}\.kts?|\.kt:\d{1,9}:\d{1,9}:? error|
    \.scala:\d{1,9}:(?:\d{1,9}:)? ?error|could not resolve all (?:files|dependencies)|could not compile build file|
    \.java:\d{1,9}: .{1,80}\n\s{1,40}symbol:
tool/build_failure: c does not compile
    ^[^\s:]{1,200}:\d{1,9}(?::\d{1,9})?: (?:fatal )?error: |undefined reference to|ld returned \d{1,9} exit|
    linker command failed|fatal error LNK\d{1,9}|error LNK\d{4}|\berror C\d{4}:|cmake error|ninja: (?:build stopped|
    error)|undefined symbols for architecture|ld: (?:symbol|library|cannot find|undefined)|collect2: error|^(?:g?make|
    make)(?:\[\d{1,9}\])?: \*\*\* (?:\[|No rule)|\*\*\* [^\n]{1,120}\.  Stop\.|\((?:fatal )?error\): |
    ^ld(?:\.\w{1,80})?: cannot find
    unless: NO_SOURCE
tool/build_failure: c sharp does not compile
    error (?:CS|FS|BC|MSB|NU|NETSDK)\d{3,5}|^[ \t]{0,40}Build FAILED\.?$
tool/build_failure: python does not compile
    ^[ \t]{0,40}(?:SyntaxError|IndentationError|TabError): |\*\*\* (?:Error compiling|Sorry: )|
    \.py:\d{1,9}(?::\d{1,9})?:? (?:- )?error[: ]|\.py:\d{1,9}:\d{1,9}: [A-Z]{1,4}\d{2,4} |
    ^Found \d{1,9} errors?(?: in \d{1,9} files?| \(|\.$|,)|^\d{1,9} errors?, \d{1,9} warnings?(?:, \d{1,9} \w{1,80})?$|
    would (?:be )?reformat(?:ted)?
    unless: <stdin>|<unknown>|in JSON at position|JSON\.parse|not valid JSON|NO_SOURCE
tool/build_failure: a package does not build
    failed (?:to build|building) (?:installable )?wheels?|could not build wheels|subprocess-exited-with-error|
    metadata-generation-failed|node-gyp.{0,40}(?:failed|not ok)|gyp err!|failed to build gem native|failed to solve: |
    error: failed to build|failed to build (?:image|.{1,60}:)|executor failed running
tool/build_failure: source does not compile
    :\d{1,9}: (?:unexpected symbol|.{1,30} expected) near '|introduced (?:new )?syntax error|^-e:\d{1,9}: syntax error|
    \bSC\d{4}\b \((?:error|warning|info|style)\)|^[ \t]{1,40}\d{1,9}:\d{1,9}\s{1,40}error\s{1,40}\S|(?:compile|
    compilation|compiler) errors?\b|== compilation error|compilation (?:failed|aborted|terminated)|
    error: \[GHC-\d{1,9}\]|\.hs:\d{1,9}:\d{1,9}: error|\.swift:\d{1,9}:\d{1,9}: error|\.zig:\d{1,9}:\d{1,9}: error|
    php parse error|\.ex:\d{1,9}|\berror: compilation\b|\.(?:rb|php|pl|pm|lua|js|mjs|cjs|tex|css|scss|
    proto):\d{1,9}(?::\d{1,9})?:? .{0,40}(?:syntax error|parse error|unexpected)|syntax error at \S{1,300} line \d{1,9}|
    had compilation errors|\[lint[\w:]{0,12}\] ERROR|^[ \t]{0,40}build failed\b
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
