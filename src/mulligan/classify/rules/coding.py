"""Rules for edit, read, build and test tools of coding agents, and for results that are not failures."""

from __future__ import annotations

from mulligan.classify import kinds as kinds
from mulligan.classify.rules.matching import Rule

NOT_FAILURES = (
    Rule(
        "refused by the user",
        kinds.NONE_USER_REJECTED,
        pattern=r"the user (?:doesn't|does not|didn't|did not) want to (?:proceed|take|continue|run|do)|"
        r"request interrupted by (?:the )?user|(?:rejected|declined|denied|refused|disallowed|dismissed|not approved|"
        r"cancell?ed|aborted|interrupted|stopped|skipped) by (?:the )?(?:human |end )?user\b|"
        r"\buser (?:has )?(?:rejected|declined|refused|denied|cancell?ed|aborted|interrupted|dismissed|skipped|"
        r"chose not|has chosen not|decided not|did not (?:approve|allow|accept|confirm)|opted not|said no)|"
        r"tool use was rejected|permission (?:was )?denied by (?:the )?user|\buser'?s? (?:rejection|refusal)|"
        r"rejected the (?:tool|command|edit|plan|change)",
        is_strong=True,
    ),
    Rule(
        "dropped with its sibling",
        kinds.NONE_COLLATERAL,
        pattern=r"sibling tool call|parallel tool call[^\n]{0,120}(?:errored|failed)|(?:skipped|cancell?ed|"
        r"aborted|not (?:run|executed)) (?:\w{1,12} ){0,3}(?:because|since|due to) (?:\w{1,12} ){0,2}(?:an(?:other)? |"
        r"other |previous |earlier |preceding )+tool",
        is_strong=True,
    ),
    Rule(
        "cancelled",
        kinds.NONE_CANCELLED,
        pattern=r"\A\s{0,20}(?:exit code:? \d{1,3}\s{1,20})?(?:error: )?(?:(?:the |this )?(?:operation|request|task|"
        r"call|tool call|(?:tool )?execution|command|run)(?: was| has been)? (?:cancell?ed|aborted|interrupted)\.?|"
        r"cancell?ed\.?|context canceled|aborterror\b.{0,60}|keyboardinterrupt|"
        r"asyncio\.(?:exceptions\.)?cancellederror.{0,40})\s{0,40}\Z",
    ),
)

EDITING = (
    Rule(
        "text to replace is not there",
        kinds.TOOL_EDIT_MISMATCH,
        pattern=r"string to replace (?:was )?not found|matches of the string to replace|old_?(?:string|str|text|"
        r"content)\b[^\n]{0,200}(?:not found|did not (?:appear|match)|does not (?:appear|match|exist)|"
        r"could not be found|found multiple|not unique|multiple times)|(?:multiple|several|\d{1,9}) (?:occurrences|"
        r"matches) (?:of|found|for)[^\n]{0,60}(?:old_?str|old_?text|search|to replace|in (?:the )?file)|"
        r"no replacement was (?:performed|made)|old_?string and new_?string are (?:exactly )?(?:the same|identical)|"
        r"search(?:/replace)? block[^\n]{0,60}(?:failed|not|did|no)|hunk #?\d{1,9} (?:failed|"
        r"succeeded at .* with fuzz)|patch (?:does not apply|failed)|patch failed|corrupt patch|malformed patch|"
        r"only garbage was found in the patch|failed to find (?:expected lines|context)|invalid context|"
        r"apply_patch verification failed|failed to apply (?:patch|diff|edit|hunk)|could not (?:find|apply) (?:the |"
        r"an )?(?:exact match|string to replace|text to replace|edit|diff|hunk)|(?:0|zero|no) (?:occurrences|"
        r"matches) (?:were )?found (?:for|of)[^\n]{0,40}(?:old|string|text|search)|failed to edit|"
        r"expected \d{1,9} occurrences? but found|does not match (?:anything|any text|the content|the file)|"
        r"no (?:sufficiently )?(?:similar|exact) match|diff edit mismatch|no match found for (?:replacement|edit|"
        r"search)|no changes to make|text (?:to replace )?not found in (?:the )?file|appears (?:multiple|"
        r"\d{1,9}) times in (?:the )?file|not unique in the file|^invalid patch|no valid patches in input|"
        r"the first line of the patch|does not match the expected content|requires more (?:code )?context to uniquely|"
        r"no changes to (?:apply|make)|oldstring (?:was )?not found",
        unless=r"failed to read (?:the )?file|no such file|can't open patch",
        is_strong=True,
    ),
    Rule(
        "what an edit starts from is not there",
        kinds.TOOL_EDIT_MISMATCH,
        pattern=r"\b(?:search|string|text|context|block|old_?(?:str\w{0,4}|text)|snippet|content|lines?|anchor|hunk|"
        r"original|target)\b[^\n]{0,80}?(?:(?:was |were |is |are )?not found|(?:does|did|do) not match|no match|"
        r"not unique|ambiguous|(?:multiple|several) (?:times|places|matches|locations|positions)|match(?:es|"
        r"ed)? (?:[2-9]|\d{2,9}|multiple|several)\b|\b\d{1,9} (?:matches|occurrences|locations))|"
        r"expected [^\n]{1,80} but found|(?:none|no) [^\n]{0,40}(?:edits?|them|changes|hunks?|blocks?) (?:could|can|"
        r"were) (?:not )?be(?:en)? applied|edits?\b[^\n]{0,60} (?:could not|none)[^\n]{0,20} be applied",
        unless=r"no such file|file (?:was )?not found|directory|syntax",
        tools=("edit", "patch", "replace", "diff", "update_file", "insert", "modify"),
        is_strong=True,
    ),
    Rule(
        "read it first",
        kinds.TOOL_STALE_FILE,
        pattern=r"file has not been read|has been (?:modified|changed|unexpectedly modified|updated)[^\n]{0,20} since|"
        r"(?:must|need to|should) (?:first )?(?:use (?:your|the) read tool|read (?:the|this|it|"
        r"a) ?(?:file)?)[^\n]{0,60}(?:first|before|at least once)|read it (?:first|again) before|"
        r"modified (?:externally|since (?:it was )?(?:last )?read|on disk)|(?:contents?|file) (?:on disk )?(?:has|"
        r"have) changed since|file is stale|stale (?:file|read)|changed on disk|"
        r"since (?:you|it was|the file was) (?:last )?(?:read|opened|viewed|loaded)",
        is_strong=True,
    ),
    Rule(
        "too large to read",
        kinds.TOOL_OUTPUT_TOO_LARGE,
        pattern=r"(?:file|content|output|response|result|text|page|document|data)s?\b[^\n]{0,60}exceeds? (?:the "
        r")?(?:max(?:imum)?|limit|allowed|\d{1,9} ?[KMG]i?B)[^\n]{0,30}(?:token|size|length|limit|character|byte|"
        r"output|line|KB|MB|\d)|(?:output|response|result|file|content|document|page) (?:is |was |are )?too (?:large|"
        r"long|big)(?: to (?:display|read|return|show|process|open|load|be))?|(?:output|result|"
        r"response)[^\n]{0,30}(?:larger|longer|bigger) than (?:the )?(?:max|limit|\d)|(?:output|response|"
        r"result) exceed(?:s|ed) \d|maximum (?:output|response|result) (?:size|length) exceeded",
        unless=r"request (?:entity|body|payload)|upload|payload too|argument list too long|file ?name too long|413",
    ),
)

_LINE = r"^[^\s:]{1,200}"

TESTING = (
    Rule(
        "go test failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"^\s{0,40}(?:\[[\w:-]{1,30}\] )?--- FAIL: |^FAIL\t\S{1,300}\t[\d.]{1,20}s|panic: test timed out|"
        r"^=== RUN   Test",
    ),
    Rule(
        "pytest failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"^={1,200} (?:FAILURES|ERRORS) ={1,200}|^(?:FAILED|ERROR) \S{1,300}(?:::| - )|"
        r"^={1,200} .{0,80}\b\d{1,9} (?:failed|errors?)\b.{0,80} in [\d.]{1,20}|short test summary info|"
        r"^\d{1,9} failed(?:, \d{1,9} \w{1,80}){0,5} in [\d.]{1,20}s|^E   +(?:assert|AssertionError)|"
        r"errors? during collection",
    ),
    Rule(
        "unittest failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"^FAILED \((?:failures|errors)=|^(?:FAIL|ERROR): (?:test|setUp)\w{0,80} \([\w.]{1,80}\)",
    ),
    Rule(
        "jest or vitest failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"^[ \t]{0,40}(?:Tests?|Test Suites|Test Files):?\s{1,40}(?:\d{1,9} \w{1,80}[,|] ?){0,3}\d{1,9} failed|"
        r"^[ \t]{0,40}FAIL\s{1,40}\S{1,300}\.(?:test|spec)\.\w{1,80}|^[ \t]{0,40}FAIL\s{1,40}\S{0,300}__tests__|"
        r"^[ \t]{0,40}(?:\d{1,9}|[1-9]\d{0,9}) failing\b|^not ok \d{1,9}|^# fail [1-9]|^\u2139 fail [1-9]|"
        r"^[ \t]{1,40}\u25cf .+ \u203a |^[ \t]{0,40}[1-9]\d{0,9} (?:tests? )?failed$",
    ),
    Rule(
        "cargo test failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"test result: FAILED|test failed, to rerun|^[ \t]{0,40}\d{1,9} tests? failed:|"
        r"^test .{1,200} \.\.\. FAILED|Summary \[[^\]]{1,20}\] .{0,60}\d{1,9} failed",
    ),
    Rule(
        "java tests failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"Tests run: \d{1,9}, Failures: (?:[1-9]\d{0,9}|0, Errors: [1-9])|There (?:were|are) (?:failing tests|"
        r"test failures)|\d{1,9} tests? completed, [1-9]\d{0,9} failed|Failed tests:|Test .{1,100} FAILED$",
    ),
    Rule(
        "tests failed",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"\[  FAILED  \]|\d{1,9}% tests passed, [1-9]\d{0,9} tests? failed|The following tests FAILED|"
        r"\d{1,9} examples?, [1-9]\d{0,9} failures?|\d{1,9} runs?, \d{1,9} assertions?, (?:[1-9]\d{0,9} failures|"
        r"0 failures, [1-9])|^FAILURES!$|Tests: \d{1,9}, Assertions: \d{1,9}, (?:Failures|Errors): [1-9]|"
        r"Failed!\s{1,40}- Failed:\s{1,40}[1-9]|Executed \d{1,9} tests?, with [1-9]\d{0,9} failure|\d{1,9} (?:tests?|"
        r"doctests?), [1-9]\d{0,9} failures?|Test Case .{1,120} failed|Total tests: \d{1,9}[\s\S]{0,60}Failed: [1-9]|"
        r"[1-9]\d{0,9} (?:of|out of) \d{1,9} tests? failed|^[ \t]{0,40}[1-9]\d{0,9} tests? failed\b|Test run failed|"
        r"^[ \t]{0,40}(?:AssertionError: )expected .{1,80} to (?:equal|be|deep equal|match|include|contain) |"
        r"\*\*\*Test Failed\*\*\*|items? had failures",
    ),
    Rule(
        "a test run of go",
        kinds.TOOL_TEST_FAILURE,
        pattern=r"^\[test[\w:]{0,12}\] \$ go test[^\n]{0,200}\n(?:[^\n]{0,300}\n){0,3}\?? {0,3}(?:ok|\?) ?[\t ]",
        unless=r"\[build failed\]|\[setup failed\]",
    ),
)

_NO_SOURCE = (
    r"^cc1\w{0,8}: fatal error: .{1,200}: No such file|no input files|couldn't read `[^`\n]{1,200}`: No such file|"
    r"^\S{1,200}\.py: error: Cannot read file|^E902 No such file|^\S{0,40}clang\S{0,20}: error: no such file|"
    r"^g?make: \S{1,200}: No such file or directory\ng?make: \*\*\* No rule|^error: file not found: |"
    r"unrecogni[sz]ed command.line option|^g?make: \*\*\* \S{1,200}: No such file|^CMake Error: Unknown argument"
)
"""Errors about a missing source file: the command was wrong, not the code."""

BUILDING = (
    Rule(
        "go does not build",
        kinds.TOOL_BUILD_FAILURE,
        pattern=_LINE
        + r"\.go:\d{1,9}:\d{1,9}: |\[(?:build|setup) failed\]|updates to go\.mod needed|go\.mod file not found|"
        r"cannot find module providing|import cycle not allowed|no required module provides package|^go: (?:cannot|no|"
        r"module|finding|updates|build|errors|inconsistent|\S{1,300}@|\S{1,300}: )|missing go\.sum entry|"
        r"golangci-lint|^(?:vet|gofmt): |^# \S{1,300}\n\S{1,300}\.go:|is not in (?:GOROOT|std)|"
        r"build constraints exclude all Go files|^(?:\[[\w:-]{1,30}\] )?" + r"\S{1,300}\.go:\d{1,9}:\d{1,9}: ",
        unless=r"cannot find main module|\.go: no such file",
    ),
    Rule(
        "rust does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"^error\[E\d{4}\]|could not find `Cargo\.toml`|could not compile `|aborting due to (?:\d{1,9} |"
        r"\w{1,80} )?previous error|failed to run custom build command|error: failed to (?:select a version|"
        r"parse manifest|load manifest|resolve|get `)|error: no matching package (?:named|found)|"
        r"error: the package '.{1,80}' does not contain|error: no \w{1,12} target named|error: (?:package|dependency|"
        r"feature) `|^error: .{1,200}\n\s{1,40}--> \S{1,300}\.rs:\d{1,9}",
        unless=_NO_SOURCE,
    ),
    Rule(
        "typescript does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"error TS\d{3,5}:|\bTS\d{4}:|\bts\(\d{4}\)|^\u2716 \d{1,9} problems?|"
        r"\d{1,9} problems? \([1-9]\d{0,9} errors?|failed to compile|module not found: (?:error: )?can't resolve|"
        r"rollup failed|build failed with [1-9]|\[vite[^\]]{0,30}\].{0,40}(?:error|failed)|^ERROR in (?:\.{0,2}/|\[|"
        r"\w{1,80}\.\w)|\[ERROR\] .{1,200}\n|transform failed with|^[ \t]{1,40}\d{1,9}:\d{1,9}\s{1,40}error\s{1,40}\S|"
        r"webpack .{0,60}compiled with [1-9]\d{0,9} errors?|code style issues found|parsing error: ",
    ),
    Rule(
        "java does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"\.java:\d{1,9}: error:|\.java:\[\d{1,9},\d{1,9}\]|COMPILATION ERROR|compilation (?:failed|error)|"
        r"BUILD FAIL(?:URE|ED)|Execution failed for task '?:?\S{0,300}compile|^e: \S{1,300}\.kts?|"
        r"\.kt:\d{1,9}:\d{1,9}:? error|\.scala:\d{1,9}:(?:\d{1,9}:)? ?error|could not resolve all (?:files|"
        r"dependencies)|could not compile build file|\.java:\d{1,9}: .{1,80}\n\s{1,40}symbol:",
    ),
    Rule(
        "c does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=_LINE + r":\d{1,9}(?::\d{1,9})?: (?:fatal )?error: |undefined reference to|ld returned \d{1,9} exit|"
        r"linker command failed|fatal error LNK\d{1,9}|error LNK\d{4}|\berror C\d{4}:|cmake error|"
        r"ninja: (?:build stopped|error)|undefined symbols for architecture|ld: (?:symbol|library|cannot find|"
        r"undefined)|collect2: error|^(?:g?make|make)(?:\[\d{1,9}\])?: \*\*\* (?:\[|No rule)|"
        r"\*\*\* [^\n]{1,120}\.  Stop\.|\((?:fatal )?error\): |^ld(?:\.\w{1,80})?: cannot find",
        unless=_NO_SOURCE,
    ),
    Rule(
        "c sharp does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"error (?:CS|FS|BC|MSB|NU|NETSDK)\d{3,5}|^[ \t]{0,40}Build FAILED\.?$",
    ),
    Rule(
        "python does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"^[ \t]{0,40}(?:SyntaxError|IndentationError|TabError): |\*\*\* (?:Error compiling|Sorry: )|"
        r"\.py:\d{1,9}(?::\d{1,9})?:? (?:- )?error[: ]|\.py:\d{1,9}:\d{1,9}: [A-Z]{1,4}\d{2,4} |"
        r"^Found \d{1,9} errors?(?: in \d{1,9} files?| \(|\.$|,)|"
        r"^\d{1,9} errors?, \d{1,9} warnings?(?:, \d{1,9} \w{1,80})?$|would (?:be )?reformat(?:ted)?",
        unless=r"<stdin>|<unknown>|in JSON at position|JSON\.parse|not valid JSON|" + _NO_SOURCE,
    ),
    Rule(
        "a package does not build",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r"failed (?:to build|building) (?:installable )?wheels?|could not build wheels|"
        r"subprocess-exited-with-error|metadata-generation-failed|node-gyp.{0,40}(?:failed|not ok)|gyp err!|"
        r"failed to build gem native|failed to solve: |error: failed to build|failed to build (?:image|.{1,60}:)|"
        r"executor failed running",
    ),
    Rule(
        "it does not compile",
        kinds.TOOL_BUILD_FAILURE,
        pattern=r":\d{1,9}: (?:unexpected symbol|.{1,30} expected) near '|introduced (?:new )?syntax error|"
        r"^-e:\d{1,9}: syntax error|"
        r"\bSC\d{4}\b \((?:error|warning|info|style)\)|^[ \t]{1,40}\d{1,9}:\d{1,9}\s{1,40}error\s{1,40}\S|(?:compile|"
        r"compilation|compiler) errors?\b|== compilation error|compilation (?:failed|aborted|"
        r"terminated)|error: \[GHC-\d{1,9}\]|\.hs:\d{1,9}:\d{1,9}: error|\.swift:\d{1,9}:\d{1,9}: error|"
        r"\.zig:\d{1,9}:\d{1,9}: error|php parse error|\.ex:\d{1,9}|\berror: compilation\b|\.(?:rb|php|pl|pm|lua|"
        r"js|mjs|cjs|tex|css|scss|proto):\d{1,9}(?::\d{1,9})?:? .{0,40}(?:syntax error|parse error|unexpected)|"
        r"syntax error at \S{1,300} line \d{1,9}|had compilation errors|\[lint[\w:]{0,12}\] ERROR|"
        r"^[ \t]{0,40}build failed\b",
        unless=_NO_SOURCE
        + r"|near line \d{1,9} of|sqlite|mysql|postgres|sql syntax|at or near|\(eval\)|regular expression|regexp|"
        r"\bgrep\b|can't locate \S{1,120}\.pm|regex parse error",
    ),
)

FIRST_ERROR_PATTERN = (
    r"^\s{0,40}--- FAIL: .{1,200}|^(?:FAILED|ERROR) \S{1,300}::.{1,200}|^E   +\S.{1,200}|^test .{1,200} \.\.\. FAILED|"
    r"^error\[E\d{4}\].{1,200}|^\S{1,200}:\d{1,9}:\d{1,9}: .{1,200}|^\S{1,200}\(\d{1,9},\d{1,9}\): error .{1,200}|"
    r"^\S{1,200}:\d{1,9}: error: .{1,200}|^\S{1,200}\.\w{1,8}:\d{1,9}: \S.{1,200}|^[ \t]{0,40}\u25cf .{1,200}|"
    r"^(?:FAIL|ERROR): \w.{1,200}|^[ \t]{0,40}(?:[\w.]{0,80}Error|SyntaxError): .{1,200}|^FAIL\t\S{1,300}.{0,100}|"
    r"^\[ERROR\] .{1,200}|^.{0,100}undefined reference to .{1,200}|^error: .{1,200}"
)
"""First error line of a build or a test run."""
