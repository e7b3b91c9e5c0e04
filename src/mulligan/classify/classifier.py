"""Classification of an error into a `Failure`. The first decision in order of evidence strength wins. Never raises."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.classify import coding, providers, python, refusals, taxonomy, unwrap, waits, world
from mulligan.classify.evidence import Evidence, gather, opened, plain
from mulligan.classify.fingerprint import fingerprint
from mulligan.classify.frames import framed, is_a_program
from mulligan.classify.memo import Memo
from mulligan.classify.rules import Rule, compiled, matching
from mulligan.failure import AgentError, Failure, InfraError, Kind, Ran, Remedy

_SHORT = 700
"""Longer texts are matched at both ends only: their middle is usually output of the tool."""

_FLAG = frozenset({bool, type(None)})
_SOURCES = ("tool", "model", "retrieval", "orchestration")

_GENERAL = (
    *world.BUGS,
    refusals.ARGUMENTS[0],
    *refusals.FORBIDDEN,
    *world.SERVICES,
    *refusals.ARGUMENTS[1:],
    *refusals.STATE,
    *refusals.MISSING,
)
_PARTICULAR = frozenset(world.PARTICULAR)

_SPELLINGS = (
    ("\u2019", "'"),
    ("\u2018", "'"),
    ("\u201c", '"'),
    ("\u201d", '"'),
    ("can't", "cannot"),
    ("can not", "cannot"),
    ("n't ", " not "),
    ("ognised", "ognized"),
    ("uthoris", "uthoriz"),
)
"""Spelling variants and their normal form, so that general rules need to list each word only once."""


class Decision(msgspec.Struct, frozen=True):
    """A kind with the evidence for it."""

    kind: Kind
    why: tuple[str, ...]
    confidence: float
    ran: Ran | None = None
    place: int = -1
    """Index in the text where the deciding rule matched, or -1."""


class Classifier:
    """Classifier with a table of kinds and rules. User-defined rules run before the built-in ones."""

    def __init__(self, kinds: Sequence[Kind] = (), rules: Sequence[Rule] = ()) -> None:
        self.kinds: dict[str, Kind] = {**taxonomy.KINDS, **{str(kind): kind for kind in kinds}}
        self.rules = tuple(rules)
        self._memo = Memo()
        for rule in self.rules:
            from mulligan.classify import custom  # lazy: needed for user-defined rules only

            custom.check_pattern(rule.pattern, f"rule {rule.name!r}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Classifier:
        """Build a classifier from the `kinds` and `rules` of `mulligan.toml`.

        Raise `SettingsError` if they are invalid.
        """
        from mulligan.classify import custom  # lazy: needed for user-defined rules only

        return cls(*custom.read(settings, taxonomy.KINDS))

    def classify(
        self,
        error: object = None,
        *,
        source: str | None = None,
        tool: str | None = None,
        status: int | None = None,
        text: str | None = None,
        is_error: bool | None = None,
        arguments: Mapping[str, Any] | None = None,
        exception: str | None = None,
        rejects: Collection[int] = (),
    ) -> Failure:
        """Classify an error. Never raises, and reads only both ends of long texts.

        `source` is the type of the step (`tool`, `model`, `retrieval`, `orchestration`). Without it the evidence
        decides. `exception` is the path of the exception class, for callers that no longer have the exception.
        `rejection_statuses` are HTTP statuses with which the tool reports that the call did not execute.
        """
        if isinstance(error, Failure):
            return error
        if source not in _SOURCES:
            source = None  # other step types, such as a plan, do not tell what failed
        evidence = Evidence(source=source, tool=_name(tool), is_error=is_error)
        try:
            key = None
            if error is None and not rejects and type(is_error) in _FLAG:
                key = self._memo.key(text, arguments, tool, status, exception, source, is_error)
                if key is not None and (known := self._memo.find(key, arguments)) is not None:
                    return known
            if isinstance(arguments, Mapping):
                evidence.arguments = arguments
            evidence.add_status(status)
            evidence.add_class(exception)
            evidence.add_text(text)
            error = opened(error, evidence)
            gather(error, evidence)
            evidence.is_named = bool(evidence.names)
            failure = self._failure(error, evidence)
            if failure.status is not None and failure.status in rejects and not evidence.is_retried:
                failure = _with(failure, ran=Ran.NO, evidence=(*failure.evidence, f"rejects {failure.status}"))
            told = failure.message or evidence.text
            name = fingerprint(failure.kind, evidence.tool, told, evidence.arguments)
            failure = _with(failure, fingerprint=name)
            if key is not None:
                self._memo.keep(key, arguments, failure, told)
            return failure
        except Exception as fault:  # noqa: BLE001 - an internal error must not hide the user's error
            kind = taxonomy.KINDS.get(f"{source}/unknown", taxonomy.TOOL_UNKNOWN)
            why = (f"classification failed: {type(fault).__name__}",)
            return Failure.of(kind, plain(evidence.text)[: unwrap.LONGEST], evidence=why, confidence=0.0)

    def _failure(self, error: object, evidence: Evidence) -> Failure:
        said = _read(evidence)
        if isinstance(error, (AgentError, InfraError)):
            return self._declared(error, evidence)
        decision = next(self._decisions(evidence, said))
        kind = self._of_source(decision.kind, evidence.source)
        message = _message(evidence.text, said, decision)
        rest = evidence.text if evidence.text.strip() != message else ""
        detail = "\n".join(part for part in (rest, evidence.detail) if part)
        retry_after = None
        if kind.remedy is Remedy.WAIT:
            retry_after = waits.asked(evidence.headers, f"{evidence.text}\n{evidence.detail}")
        ran = decision.ran
        if ran is None and kind is taxonomy.TOOL_EXECUTION_FAILED and evidence.exit_code:
            ran = Ran.YES  # the program started, so the call executed
        if evidence.is_retried:
            ran = Ran.UNKNOWN if (ran or kind.ran) is Ran.NO else ran  # earlier attempts may have executed
            if kind.remedy is Remedy.WAIT and kind.type != "model":
                # Only one layer may retry. The wrapping library has already done so.
                hint = taxonomy.ORCHESTRATION_MAX_RETRIES_EXCEEDED.hint
                kind = Kind(kind.type, kind.code, Remedy.TELL, kind.ran, hint)
        return Failure.of(
            kind,
            message,
            ran=ran,
            detail=detail,
            status=evidence.status,
            code=evidence.codes[0] if evidence.codes else "",
            retry_after=retry_after,
            evidence=decision.why,
            confidence=decision.confidence,
        )

    def _declared(self, error: AgentError | InfraError, evidence: Evidence) -> Failure:
        """Build the failure of an `AgentError` or `InfraError`. The author declared the kind, so no rule is applied."""
        code = error.code if isinstance(error.code, str) else ""
        named = self.kinds.get(code) or self.kinds.get(f"{evidence.source or 'tool'}/{code}")
        message = unwrap.tidy(unwrap.plain_marks(plain(evidence.text)))
        fields: dict[str, Any] = {"code": code, "status": evidence.status, "detail": evidence.detail}
        if isinstance(error, InfraError):
            kind = named or taxonomy.TOOL_UNAVAILABLE
            kind = Kind(kind.type, kind.code, Remedy.STOP, kind.ran, kind.hint)
            return Failure.of(kind, message, evidence=("InfraError",), recoverable=False, **fields)
        kind = named or taxonomy.TOOL_INVALID_ARGUMENTS
        # `AgentError` promises that the call did not execute, so a repair is safe unless the author rules it out.
        remedy = Remedy.TELL if not error.recoverable else kind.remedy if named else Remedy.REPAIR
        # The promise does not cover code that caught and wrapped the error.
        kind = Kind(kind.type, kind.code, remedy, Ran.UNKNOWN if evidence.is_wrapped else Ran.NO, kind.hint)
        hint = error.hint or kind.hint
        return Failure.of(kind, message, hint=hint, evidence=("AgentError",), recoverable=error.recoverable, **fields)

    def _decisions(self, evidence: Evidence, said: unwrap.Said) -> Iterator[Decision]:
        """Yield all decisions, strongest evidence first. Callers use only the first; there is always at least one."""
        text = evidence.text
        for rule in self.rules:
            from mulligan.classify import custom  # lazy: needed for user-defined rules only

            place = custom.speaks(rule, text, evidence.tool)
            if place >= 0:
                yield Decision(rule.kind, (f"rule {rule.name}",), 1.0, rule.ran, place)
        # The last exception of a traceback is the one that was raised: a timeout cancels, but is no cancellation.
        for name in evidence.names if evidence.is_named else evidence.names[:1]:
            if name in ("CancelledError", "KeyboardInterrupt", "Cancelled", "TaskCancelledError"):
                yield Decision(taxonomy.NONE_CANCELLED, (f"class {name}",), 1.0)
        for rule, place in matching((*coding.REFUSED, *refusals.LIMITS), _gist(text), evidence.tool):
            yield Decision(rule.kind, (f"text: {rule.name}",), 0.95, rule.ran, place)
        if providers.is_from_a_model(evidence, said.is_envelope):
            kind, why, confidence = providers.named(evidence)
            yield Decision(kind, tuple(why), confidence)
        if evidence.source == "orchestration" and evidence.is_exception:
            yield Decision(taxonomy.ORCHESTRATION_UNCAUGHT_EXCEPTION, tuple(evidence.names[:1]), 0.9)
        yield from _of_a_tool(evidence, said)
        if not text.strip() and not evidence.names and evidence.status is None and evidence.exit_code is None:
            unknown = taxonomy.KINDS.get(f"{evidence.source}/unknown", taxonomy.TOOL_UNKNOWN)
            yield Decision(unknown, ("nothing was said",), 0.1)
        yield _of_last_resort(evidence)

    def _of_source(self, kind: Kind, source: str | None) -> Kind:
        """Return the kind with the same code under the step's type, if there is one, such as `retrieval/timeout`."""
        name = str(kind)
        if source == "retrieval" and kind.type == "tool":
            name = f"retrieval/{'no_results' if kind.code == 'not_found' else kind.code}"
        return self.kinds.get(name) or self.kinds.get(str(kind), kind)


def _of_a_tool(evidence: Evidence, said: unwrap.Said) -> Iterator[Decision]:
    text, tool = evidence.text, evidence.tool
    rpc = python.by_rpc(evidence.rpc)
    if rpc:
        # Only these two codes prove that the call did not execute. A server may send the others after it has started.
        ran = Ran.NO if evidence.rpc in (-32601, -32602) else None
        chosen = next((rule.kind for rule, _ in matching(refusals.ARGUMENTS, text) if rule.kind in rpc), rpc[0])
        yield Decision(chosen, (f"JSON-RPC {evidence.rpc}",), 0.97, ran)
    quoted = python.by_rpc(evidence.quoted_rpc)
    if quoted:
        # A code quoted in text identifies the kind, but does not prove that the call did not execute.
        matched = matching(refusals.ARGUMENTS, text)
        chosen = next((rule.kind for rule, _ in matched if rule.kind in quoted), quoted[0])
        yield Decision(chosen, (f"text: JSON-RPC {evidence.quoted_rpc}",), 0.9)
    written = compiled(r"name '(\w{1,80})' is not defined|\(<(?:string|stdin|unknown)>, line \d{1,9}\)").search(text)
    is_code = not evidence.is_named or "SyntaxError" in evidence.names
    if written and tool and is_code and (written.group(1) is None or written.group(1) in tool):
        # The call itself is model-written code that does not parse.
        yield Decision(taxonomy.MODEL_INVALID_OUTPUT, ("text: the call cannot be read",), 0.8, Ran.UNKNOWN)
    if not evidence.is_exception:
        for rule, place in matching(coding.EDITING, text, tool):
            yield Decision(rule.kind, (f"text: {rule.name}",), 0.95, rule.ran, place)
    allowed, why = _allowed(evidence)
    is_output = not evidence.is_exception and not evidence.is_named and evidence.status is None
    if is_output and not said.is_page:
        for rule, place in matching((*coding.TESTING, *coding.BUILDING), text, tool):
            yield Decision(rule.kind, (f"text: {rule.name}",), 0.9, rule.ran, place)
    gist = _gist(text)
    ran_program = _ran_program(evidence)
    for rules, sure in ((world.PARTICULAR, 0.9), (_GENERAL, 0.8), (world.PROGRAMS, 0.6)):
        if rules is _GENERAL:
            yield from _by_exit(evidence, is_known=True)
            yield from _by_code(evidence, allowed, why, ran_program)
            gist = _spelt(gist)
        # Filter first: the patterns of excluded rules are then never compiled.
        asked = [rule for rule in rules if _may_answer(rule, allowed, why, ran_program, evidence.status)]
        for rule, place in matching(asked, gist, tool):
            at = place if gist == text else text.find(gist[place : place + 12])
            if ran_program and _is_its_own_affair(rule.kind, evidence.status):
                yield Decision(taxonomy.TOOL_EXECUTION_FAILED, (f"text: {rule.name}", "its own affair"), 0.8, place=at)
            ran = _proven(rule, evidence, why)
            yield Decision(rule.kind, (f"text: {rule.name}", *why), sure + 0.05 * bool(why), ran, at)
    if allowed and not (ran_program and _is_its_own_affair(allowed[0], evidence.status)):
        yield Decision(allowed[0], why, 0.85 if evidence.status else 0.75)
    yield from _by_exit(evidence)
    if (
        compiled(r"""\A(?:error(?: during execution)?: )?(?:KeyError: ?)?(["'])\w{1,40}\1\Z""").search(text.strip())
        and not evidence.is_exception
        and not evidence.is_named
    ):
        yield Decision(taxonomy.ORCHESTRATION_UNCAUGHT_EXCEPTION, ("text: nothing but a missing key",), 0.7)
    if not ran_program and not allowed and len(text) <= _SHORT:
        # Match the sentence without its envelope: these patterns are anchored at the start.
        sentence = said.sentence if text.lstrip()[:1] in "{[" else text
        for rule, _ in matching(refusals.GUESSES, _spelt(sentence)):
            yield Decision(rule.kind, (f"text: {rule.name}",), 0.5)


def _ran_program(evidence: Evidence) -> bool:
    """Return whether the text is the output of a program: its exit code is known, or it comes from a shell tool."""
    if evidence.is_named or evidence.is_exception:
        return evidence.exit_code is not None and not evidence.is_named
    return evidence.exit_code is not None or is_a_program(evidence.tool, evidence.text)


def _by_code(
    evidence: Evidence, allowed: tuple[Kind, ...], why: tuple[str, ...], ran_program: bool
) -> Iterator[Decision]:
    """Decide by error code. A code outweighs general words, but not rules for one type of program."""
    for code in evidence.codes if not ran_program else ():
        kind = python.by_code(code)
        if kind is not None and (not allowed or kind in allowed):
            yield Decision(kind, (f"code {code}", *why), 0.9)


def _may_answer(
    rule: Rule, allowed: tuple[Kind, ...], why: tuple[str, ...], ran_program: bool, status: int | None
) -> bool:
    """Return whether a rule may decide, given the kinds that class and status allow and whether a program ran."""
    if ran_program and _is_its_own_affair(rule.kind, status):
        # A particular rule about the program's internals is a decision by itself: nothing is known about the call.
        return rule in _PARTICULAR and not allowed
    if not allowed:
        return True
    if rule.is_vague and why[0] in _OF_ARGUMENTS:
        return False
    return rule.kind in allowed and (rule.kind is not taxonomy.TOOL_EXECUTION_FAILED or rule.is_strong)


_OF_ARGUMENTS = frozenset(("class ValueError", "class TypeError"))
"""Classes that indicate wrong arguments. A vague rule does not override them, a particular one does."""


def _is_its_own_affair(kind: Kind, status: int | None) -> bool:
    """Return whether a program's output is about itself and not about the call. A status it passes on is not."""
    return kind not in world.OF_A_PROCESS and not python.by_status(status)


def _proven(rule: Rule, evidence: Evidence, why: tuple[str, ...]) -> Ran | None:
    """Return whether the call took effect, by a rule. Text proves nothing: a refused connection needs its class."""
    if rule.kind is taxonomy.TOOL_UNKNOWN_TOOL and evidence.is_exception:
        return Ran.UNKNOWN  # raised in this process, which may have executed part of the call
    return rule.ran if any(each.startswith("class ") for each in why) or rule.ran is not Ran.NO else None


def _allowed(evidence: Evidence) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the kinds that status and class allow, and the names of both as evidence."""
    by_status = python.by_status(evidence.status)
    if by_status:
        return by_status, (f"status {evidence.status}",)
    for name in evidence.names:
        if name in python.CLASSES:
            return python.CLASSES[name], (f"class {name}",)
    return (), ()


def _by_exit(evidence: Evidence, is_known: bool = False) -> Iterator[Decision]:
    """Decide by exit code. With `is_standard_only`, use only codes with the same meaning in every shell."""
    if not evidence.exit_code:
        return
    why = (f"exit code {evidence.exit_code}",)
    known = {
        127: taxonomy.TOOL_COMMAND_NOT_FOUND,
        126: taxonomy.TOOL_PERMISSION_DENIED,
        124: taxonomy.TOOL_TIMEOUT,
    }.get(evidence.exit_code)
    if known is taxonomy.TOOL_COMMAND_NOT_FOUND and not compiled(_NOT_THERE).search(evidence.text):
        known = None if compiled(_SAYS_MORE).search(evidence.text) else known
    if known is not None:
        yield Decision(known, why, 0.8)
    if is_known:
        return
    command = (evidence.arguments or {}).get("command")
    if isinstance(command, str):
        for pattern, kind in (
            (_TEST_COMMAND, taxonomy.TOOL_TEST_FAILURE),
            (_BUILD_COMMAND, taxonomy.TOOL_BUILD_FAILURE),
        ):
            if compiled(pattern).search(command[:2_000]):
                yield Decision(kind, (*why, "the command"), 0.7)
    yield Decision(taxonomy.TOOL_EXECUTION_FAILED, why, 0.6, Ran.YES)


_NOT_THERE = r"not found|no such|cannot find|not recogni[sz]ed|ENOENT|unable to find"
"""Messages of a shell for a missing command. Exit code 127 has other causes too."""
_SAYS_MORE = r"^(?!exit code)\S{1,80}: \S"

_TEST_COMMAND = (
    r"\b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|playwright test|ctest|rspec|phpunit|bats)\b"
    r"|\b(?:go|cargo|npm|pnpm|yarn|bun|deno|mvn|mvnw|gradle|gradlew|dotnet|swift|zig|mix|make|mise|just|bazel|"
    r"nx)(?: \S{1,40}){0,3}? (?:run )?:?test\b"
)
_BUILD_COMMAND = (
    r"\b(?:go (?:build|vet)|cargo (?:build|check|clippy)|tsc|javac|gcc|g\+\+|clang|cmake|ninja|golangci-lint|"
    r"eslint|mypy|pyright|ruff)\b"
    r"|\b(?:npm|pnpm|yarn|bun|mvn|gradle|gradlew|dotnet|swift|make|mise|just|bazel|"
    r"nx)(?: \S{1,40}){0,3}? (?:run )?:?(?:build|compile|lint|package)\b"
)


def _of_last_resort(evidence: Evidence) -> Decision:
    """Return the decision for a failure without evidence: `execution_failed`, or `unknown` if it may be none."""
    if evidence.source in ("model", "retrieval", "orchestration"):
        return Decision(taxonomy.KINDS[f"{evidence.source}/unknown"], tuple(evidence.names[:1]), 0.2)
    failed = (
        evidence.is_error
        or is_a_program(evidence.tool, evidence.text)
        or evidence.is_exception
        or bool(evidence.exit_code)
        or bool(evidence.names)
    )
    if failed or compiled(
        r"\b(?:error|fail|failed|failure|exception|cannot|unable|could not|can't|abort|fatal|denied)\b"
    ).search(evidence.text):
        return Decision(taxonomy.TOOL_EXECUTION_FAILED, tuple(f"class {name}" for name in evidence.names[:1]), 0.4)
    return Decision(taxonomy.TOOL_UNKNOWN, (), 0.2)


def _read(evidence: Evidence) -> unwrap.Said:
    """Strip control characters and envelopes from the text. Add its status, codes and classes to the evidence."""
    evidence.text = unwrap.plain_marks(evidence.text)
    evidence.detail = unwrap.plain_marks(evidence.detail)
    if evidence.exit_code is None and not evidence.is_exception:
        frame = framed(evidence.text)
        evidence.text, evidence.exit_code = frame.output or evidence.text, frame.exit_code
    said = unwrap.unwrap(evidence.text)
    for code in said.codes:
        evidence.add_code(code)
    for name in said.names:
        evidence.add_class(name)
    if evidence.rpc is None:
        evidence.rpc = said.rpc
    evidence.quoted_rpc = _quoted_rpc(evidence.text) if evidence.rpc is None else None
    evidence.add_status(said.status)
    if evidence.status is None:
        evidence.add_status(_status(evidence.text))
    return said


def _quoted_rpc(text: str) -> int | None:
    if "-32" not in text[:400]:
        return None
    match = compiled(r"\b(?:mcp|rpc) error:? \(?(-32\d{3})\b").search(text[:400])
    return int(match.group(1)) if match else None


def _status(text: str) -> int | None:
    """Return the HTTP status that the text names as one, or None."""
    if not compiled(r"[45]\d\d").search(text[:2_000]):
        return None  # fast path: the pattern below is expensive
    match = compiled(
        r"\bHTTP(?:/\d(?:\.\d)?)?[ :]+(?:status |error |code )*\(?([45]\d\d)\b|"
        r"\bstatus(?:[ _-]?code)?[\"']?\s?(?:[:=]|of|is|was)?\s?[\"']?([45]\d\d)\b"
        r"|\b([45]\d\d) (?:client|server) error|^error code:? ([45]\d\d)\b|\b(?:returned error|error|"
        r"code):? ([45]\d\d)\b(?=[\s:,.)-]|$)"
        r"|^(?:error:? )?\(?([45]\d\d)\)? (?:bad|un|for|not|method|request|conflict|gone|pre|payload|too|internal|"
        r"service|gateway|locked)|<(?:h1|title)>\s?([45]\d\d)\b"
    ).search(text[:2_000])
    return next((int(group) for group in match.groups() if group), None) if match else None


def _spelt(text: str) -> str:
    for variant, word in _SPELLINGS:
        text = text.replace(variant, word)
    return text


def _gist(text: str) -> str:
    """Return both ends of a long text, cut at line breaks."""
    if len(text) <= _SHORT:
        return text
    head, tail = text[: _SHORT // 2], text[-_SHORT // 2 :]
    return f"{head}\n{tail.partition(chr(10))[2] or tail}"


def _message(text: str, said: unwrap.Said, decision: Decision) -> str:
    """Return the matched line if the text is multi-line output, else the extracted sentence."""
    lines = text.count("\n")
    if decision.place < 0 or lines == 0 or said.is_page or said.is_envelope or text.lstrip()[:1] in "{[":
        return said.sentence
    if decision.kind in (taxonomy.TOOL_TEST_FAILURE, taxonomy.TOOL_BUILD_FAILURE):
        match = compiled(coding.TELLING).search(text)
        if match:
            return unwrap.tidy(match.group())
    start = text.rfind("\n", 0, decision.place + 1) + 1
    if start > decision.place:
        start = decision.place
    end = text.find("\n", decision.place + 1)
    line = text[start : end if end >= 0 else len(text)].strip()
    return said.sentence if unwrap.is_noise(line) else unwrap.tidy(line[:2_000])


def _name(tool: object) -> str:
    return tool[:200] if isinstance(tool, str) else ""


def _with(failure: Failure, **changes: Any) -> Failure:
    return msgspec.structs.replace(failure, **changes)


default = Classifier()
"""Classifier with the built-in kinds and rules only."""

classify = default.classify
