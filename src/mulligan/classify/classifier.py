"""Classification of an error into a `Failure`. The first decision in order of evidence strength wins. Never raises."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.classify import kinds as kinds_module
from mulligan.classify import results
from mulligan.classify.error_numbers import parse_retry_after
from mulligan.classify.evidence import Evidence, gather_evidence, to_bounded_text, unwrap_error
from mulligan.classify.fingerprint import compute_fingerprint, may_quote_arguments
from mulligan.classify.rules import coding, providers, python, rejections, shell
from mulligan.classify.rules.matching import Rule, compile_rule_pattern, match_rules
from mulligan.core.failure import AgentError, Failure, InfraError, Kind, Remedy, TookEffect

_MAX_WHOLE_TEXT_CHARS = 700
"""Longer texts are matched at both ends only: their middle is usually output of the tool."""

_FLAG_TYPES = frozenset({bool, type(None)})
_SOURCES = ("tool", "model", "retrieval", "orchestration")

_GENERAL_RULES = (
    *shell.BUGS,
    rejections.ARGUMENTS[0],
    *rejections.FORBIDDEN,
    *shell.SERVICES,
    *rejections.ARGUMENTS[1:],
    *rejections.STATE,
    *rejections.MISSING,
)
_PARTICULAR_RULES = frozenset(shell.PARTICULAR_RULES)

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


MAX_CACHED_FAILURES = 500
"""Failures in the cache. It is cleared when it is full."""
MAX_CACHED_TEXT_CHARS = 1000
"""Longer texts are not cached."""

_NAME_TYPES = frozenset({str})
_OPTIONAL_TEXT_TYPES = frozenset({str, type(None)})
_OPTIONAL_INTEGER_TYPES = frozenset({int, type(None)})


class ClassificationCache:
    """Failures by text and context, for one classifier.

    Argument values are not part of the key, so a text that quotes one is not cached.
    """

    def __init__(self) -> None:
        self._entries: dict[tuple[Any, ...], tuple[Failure, str]] = {}

    def build_key(
        self, text: Any, arguments: Any, tool: Any, status: Any, exception: Any, *context: str | bool | None
    ) -> tuple[Any, ...] | None:
        """Return the cache key, with argument names but not values, or None if the call must not be cached."""
        if type(text) is not str or len(text) > MAX_CACHED_TEXT_CHARS:
            return None
        if (
            type(tool) not in _OPTIONAL_TEXT_TYPES
            or type(status) not in _OPTIONAL_INTEGER_TYPES
            or type(exception) not in _OPTIONAL_TEXT_TYPES
        ):
            return None  # values that compare equal may be of different types
        names: tuple[Any, ...] = ()
        if arguments is not None:
            if type(arguments) is not dict or "command" in arguments:
                return None  # the words of a command influence classification
            names = tuple(arguments)
            if not _NAME_TYPES.issuperset(map(type, names)):
                return None
        return (text, names, tool, status, exception, *context)

    def find(self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None) -> Failure | None:
        failure, fingerprint_text = self._entries.get(key) or (None, "")
        return None if failure is None or may_quote_arguments(fingerprint_text, arguments) else failure

    def add(
        self, key: tuple[Any, ...], arguments: Mapping[str, Any] | None, failure: Failure, fingerprint_text: str
    ) -> None:
        """Add a failure. `fingerprint_text` is the text from which its fingerprint was computed."""
        if failure.retry_after is not None or may_quote_arguments(fingerprint_text, arguments):
            return  # the text may name a point in time, or an argument value, which differ in the next call
        if len(self._entries) >= MAX_CACHED_FAILURES:
            self._entries.clear()
        self._entries[key] = failure, fingerprint_text


class KindDecision(msgspec.Struct, frozen=True):
    """A kind with the evidence for it."""

    kind: Kind
    reasons: tuple[str, ...]
    confidence: float
    took_effect: TookEffect | None = None
    position: int = -1
    """Index in the text where the deciding rule matched, or -1."""


class Classifier:
    """Classifier with a table of kinds and rules. User-defined rules run before the built-in ones."""

    def __init__(self, kinds: Sequence[Kind] = (), rules: Sequence[Rule] = ()) -> None:
        self.kinds: dict[str, Kind] = {**kinds_module.KINDS, **{str(kind): kind for kind in kinds}}
        self.rules = tuple(rules)
        self._cache = ClassificationCache()
        for rule in self.rules:
            from mulligan.classify.rules import custom  # lazy: needed for user-defined rules only

            custom.check_pattern(rule.pattern, f"rule {rule.name!r}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Classifier:
        """Build a classifier from the `kinds` and `rules` of `mulligan.toml`.

        Raise `SettingsError` if they are invalid.
        """
        from mulligan.classify.rules import custom  # lazy: needed for user-defined rules only

        return cls(*custom.parse_kinds_and_rules(settings, kinds_module.KINDS))

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
        rejection_statuses: Collection[int] = (),
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
        evidence = Evidence(source=source, tool=_truncate_name(tool), is_error=is_error)
        try:
            key = None
            if error is None and not rejection_statuses and type(is_error) in _FLAG_TYPES:
                key = self._cache.build_key(text, arguments, tool, status, exception, source, is_error)
                if key is not None and (cached_failure := self._cache.find(key, arguments)) is not None:
                    return cached_failure
            if isinstance(arguments, Mapping):
                evidence.arguments = arguments
            evidence.add_status(status)
            evidence.add_class(exception)
            evidence.add_text(text)
            error = unwrap_error(error, evidence)
            gather_evidence(error, evidence)
            evidence.has_explicit_class = bool(evidence.names)
            failure = self._build_failure(error, evidence)
            if failure.status is not None and failure.status in rejection_statuses and not evidence.is_retried:
                failure = _replace_fields(
                    failure,
                    took_effect=TookEffect.NO,
                    evidence=(*failure.evidence, f"rejection status {failure.status}"),
                )
            fingerprint_text = failure.message or evidence.text
            fingerprint_id = compute_fingerprint(failure.kind, evidence.tool, fingerprint_text, evidence.arguments)
            failure = _replace_fields(failure, fingerprint=fingerprint_id)
            if key is not None:
                self._cache.add(key, arguments, failure, fingerprint_text)
            return failure
        except Exception as internal_error:  # noqa: BLE001 - an internal error must not hide the user's error
            kind = kinds_module.KINDS.get(f"{source}/unknown", kinds_module.TOOL_UNKNOWN)
            reasons = (f"classification failed: {type(internal_error).__name__}",)
            return Failure.of(
                kind, to_bounded_text(evidence.text)[: results.MAX_MESSAGE_CHARS], evidence=reasons, confidence=0.0
            )

    def _build_failure(self, error: object, evidence: Evidence) -> Failure:
        unwrapped = _unwrap_evidence_text(evidence)
        if isinstance(error, (AgentError, InfraError)):
            return self._build_declared_failure(error, evidence)
        decision = next(self._iter_decisions(evidence, unwrapped))
        kind = self._kind_for_source(decision.kind, evidence.source)
        message = _choose_message(evidence.text, unwrapped, decision)
        full_text = evidence.text if evidence.text.strip() != message else ""
        detail = "\n".join(part for part in (full_text, evidence.detail) if part)
        retry_after = None
        if kind.remedy is Remedy.RETRY:
            retry_after = parse_retry_after(evidence.headers, f"{evidence.text}\n{evidence.detail}")
        took_effect = decision.took_effect
        if took_effect is None and kind is kinds_module.TOOL_EXECUTION_FAILED and evidence.exit_code:
            took_effect = TookEffect.YES  # the program started, so the call executed
        if evidence.is_retried:
            took_effect = (
                TookEffect.UNKNOWN if (took_effect or kind.took_effect) is TookEffect.NO else took_effect
            )  # earlier attempts may have executed
            if kind.remedy is Remedy.RETRY and kind.type != "model":
                # Only one layer may retry. The wrapping library has already done so.
                hint = kinds_module.ORCHESTRATION_MAX_RETRIES_EXCEEDED.hint
                kind = Kind(kind.type, kind.code, Remedy.REPLAN, kind.took_effect, hint)
        return Failure.of(
            kind,
            message,
            took_effect=took_effect,
            detail=detail,
            status=evidence.status,
            code=evidence.codes[0] if evidence.codes else "",
            retry_after=retry_after,
            evidence=decision.reasons,
            confidence=decision.confidence,
        )

    def _build_declared_failure(self, error: AgentError | InfraError, evidence: Evidence) -> Failure:
        """Build the failure of an `AgentError` or `InfraError`. The author declared the kind, so no rule is applied."""
        code = error.code if isinstance(error.code, str) else ""
        declared_kind = self.kinds.get(code) or self.kinds.get(f"{evidence.source or 'tool'}/{code}")
        message = results.tidy_line(results.strip_control_chars(to_bounded_text(evidence.text)))
        fields: dict[str, Any] = {"code": code, "status": evidence.status, "detail": evidence.detail}
        if isinstance(error, InfraError):
            kind = declared_kind or kinds_module.TOOL_UNAVAILABLE
            kind = Kind(kind.type, kind.code, Remedy.STOP, kind.took_effect, kind.hint)
            return Failure.of(kind, message, evidence=("InfraError",), recoverable=False, **fields)
        kind = declared_kind or kinds_module.TOOL_INVALID_ARGUMENTS
        # `AgentError` promises that the call did not execute, so a repair is safe unless the author rules it out.
        remedy = Remedy.REPLAN if not error.recoverable else kind.remedy if declared_kind else Remedy.REPAIR
        # The promise does not cover code that caught and wrapped the error.
        kind = Kind(
            kind.type, kind.code, remedy, TookEffect.UNKNOWN if evidence.is_wrapped else TookEffect.NO, kind.hint
        )
        hint = error.hint or kind.hint
        return Failure.of(kind, message, hint=hint, evidence=("AgentError",), recoverable=error.recoverable, **fields)

    def _iter_decisions(self, evidence: Evidence, unwrapped: results.UnwrappedText) -> Iterator[KindDecision]:
        """Yield all decisions, strongest evidence first. Callers use only the first; there is always at least one."""
        text = evidence.text
        for rule in self.rules:
            from mulligan.classify.rules import custom  # lazy: needed for user-defined rules only

            position = custom.match_position(rule, text, evidence.tool)
            if position >= 0:
                yield KindDecision(rule.kind, (f"rule {rule.name}",), 1.0, rule.took_effect, position)
        # The last exception of a traceback is the one that was raised: a timeout cancels, but is no cancellation.
        for name in evidence.names if evidence.has_explicit_class else evidence.names[:1]:
            if name in ("CancelledError", "KeyboardInterrupt", "Cancelled", "TaskCancelledError"):
                yield KindDecision(kinds_module.NONE_CANCELLED, (f"class {name}",), 1.0)
        for rule, position in match_rules(
            (*coding.NOT_FAILURES, *rejections.LIMITS), _truncate_middle(text), evidence.tool
        ):
            yield KindDecision(rule.kind, (f"text: {rule.name}",), 0.95, rule.took_effect, position)
        if providers.is_model_failure(evidence, unwrapped.is_envelope):
            kind, reasons, confidence = providers.classify_model_failure(evidence)
            yield KindDecision(kind, tuple(reasons), confidence)
        if evidence.source == "orchestration" and evidence.is_exception:
            yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, tuple(evidence.names[:1]), 0.9)
        yield from _iter_tool_decisions(evidence, unwrapped)
        if not text.strip() and not evidence.names and evidence.status is None and evidence.exit_code is None:
            unknown = kinds_module.KINDS.get(f"{evidence.source}/unknown", kinds_module.TOOL_UNKNOWN)
            yield KindDecision(unknown, ("no error text",), 0.1)
        yield _fallback_decision(evidence)

    def _kind_for_source(self, kind: Kind, source: str | None) -> Kind:
        """Return the kind with the same code under the step's type, if there is one, such as `retrieval/timeout`."""
        name = str(kind)
        if source == "retrieval" and kind.type == "tool":
            name = f"retrieval/{'no_results' if kind.code == 'not_found' else kind.code}"
        return self.kinds.get(name) or self.kinds.get(str(kind), kind)


def _iter_tool_decisions(evidence: Evidence, unwrapped: results.UnwrappedText) -> Iterator[KindDecision]:
    text, tool = evidence.text, evidence.tool
    rpc = python.kinds_for_rpc_code(evidence.rpc)
    if rpc:
        # Only these two codes prove that the call did not execute. A server may send the others after it has started.
        took_effect = TookEffect.NO if evidence.rpc in (-32601, -32602) else None
        chosen_kind = next(
            (rule.kind for rule, _ in match_rules(rejections.ARGUMENTS, text) if rule.kind in rpc), rpc[0]
        )
        yield KindDecision(chosen_kind, (f"JSON-RPC {evidence.rpc}",), 0.97, took_effect)
    quoted = python.kinds_for_rpc_code(evidence.quoted_rpc)
    if quoted:
        # A code quoted in text identifies the kind, but does not prove that the call did not execute.
        matched = match_rules(rejections.ARGUMENTS, text)
        chosen_kind = next((rule.kind for rule, _ in matched if rule.kind in quoted), quoted[0])
        yield KindDecision(chosen_kind, (f"text: JSON-RPC {evidence.quoted_rpc}",), 0.9)
    code_error = compile_rule_pattern(
        r"name '(\w{1,80})' is not defined|\(<(?:string|stdin|unknown)>, line \d{1,9}\)"
    ).search(text)
    is_code = not evidence.has_explicit_class or "SyntaxError" in evidence.names
    if code_error and tool and is_code and (code_error.group(1) is None or code_error.group(1) in tool):
        # The call itself is model-written code that does not parse.
        yield KindDecision(kinds_module.MODEL_INVALID_OUTPUT, ("text: unreadable call",), 0.8, TookEffect.UNKNOWN)
    if not evidence.is_exception:
        for rule, position in match_rules(coding.EDITING, text, tool):
            yield KindDecision(rule.kind, (f"text: {rule.name}",), 0.95, rule.took_effect, position)
    allowed, reasons = _find_allowed_kinds(evidence)
    is_output = not evidence.is_exception and not evidence.has_explicit_class and evidence.status is None
    if is_output and not unwrapped.is_page:
        for rule, position in match_rules((*coding.TESTING, *coding.BUILDING), text, tool):
            yield KindDecision(rule.kind, (f"text: {rule.name}",), 0.9, rule.took_effect, position)
    excerpt = _truncate_middle(text)
    is_program_output = _is_program_output(evidence)
    for rules, confidence in ((shell.PARTICULAR_RULES, 0.9), (_GENERAL_RULES, 0.8), (shell.PROGRAMS, 0.6)):
        if rules is _GENERAL_RULES:
            yield from _decide_by_exit_code(evidence, is_standard_only=True)
            yield from _decide_by_code(evidence, allowed, reasons, is_program_output)
            excerpt = _normalize_spelling(excerpt)
        # Filter first: the patterns of excluded rules are then never compiled.
        applicable_rules = [
            rule for rule in rules if _can_decide(rule, allowed, reasons, is_program_output, evidence.status)
        ]
        for rule, position in match_rules(applicable_rules, excerpt, tool):
            text_position = position if excerpt == text else text.find(excerpt[position : position + 12])
            if is_program_output and _is_program_internal(rule.kind, evidence.status):
                yield KindDecision(
                    kinds_module.TOOL_EXECUTION_FAILED,
                    (f"text: {rule.name}", "internal to the program"),
                    0.8,
                    position=text_position,
                )
            took_effect = _resolve_took_effect(rule, evidence, reasons)
            yield KindDecision(
                rule.kind,
                (f"text: {rule.name}", *reasons),
                confidence + 0.05 * bool(reasons),
                took_effect,
                text_position,
            )
    if allowed and not (is_program_output and _is_program_internal(allowed[0], evidence.status)):
        yield KindDecision(allowed[0], reasons, 0.85 if evidence.status else 0.75)
    yield from _decide_by_exit_code(evidence)
    if (
        compile_rule_pattern(r"""\A(?:error(?: during execution)?: )?(?:KeyError: ?)?(["'])\w{1,40}\1\Z""").search(
            text.strip()
        )
        and not evidence.is_exception
        and not evidence.has_explicit_class
    ):
        yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, ("text: only a missing key",), 0.7)
    if not is_program_output and not allowed and len(text) <= _MAX_WHOLE_TEXT_CHARS:
        # Match the sentence without its envelope: these patterns are anchored at the start.
        sentence = unwrapped.sentence if text.lstrip()[:1] in "{[" else text
        for rule, _ in match_rules(rejections.GUESSES, _normalize_spelling(sentence)):
            yield KindDecision(rule.kind, (f"text: {rule.name}",), 0.5)


def _is_program_output(evidence: Evidence) -> bool:
    """Return whether the text is the output of a program: its exit code is known, or it comes from a shell tool."""
    if evidence.has_explicit_class or evidence.is_exception:
        return evidence.exit_code is not None and not evidence.has_explicit_class
    return evidence.exit_code is not None or results.is_shell_output(evidence.tool, evidence.text)


def _decide_by_code(
    evidence: Evidence, allowed: tuple[Kind, ...], reasons: tuple[str, ...], is_program_output: bool
) -> Iterator[KindDecision]:
    """Decide by error code. A code outweighs general words, but not rules for one type of program."""
    for code in evidence.codes if not is_program_output else ():
        kind = python.kind_for_code(code)
        if kind is not None and (not allowed or kind in allowed):
            yield KindDecision(kind, (f"code {code}", *reasons), 0.9)


def _can_decide(
    rule: Rule, allowed: tuple[Kind, ...], reasons: tuple[str, ...], is_program_output: bool, status: int | None
) -> bool:
    """Return whether a rule may decide, given the kinds that class and status allow and whether a program ran."""
    if is_program_output and _is_program_internal(rule.kind, status):
        # A particular rule about the program's internals is a decision by itself: nothing is known about the call.
        return rule in _PARTICULAR_RULES and not allowed
    if not allowed:
        return True
    if rule.is_vague and reasons[0] in _ARGUMENT_CLASSES:
        return False
    return rule.kind in allowed and (rule.kind is not kinds_module.TOOL_EXECUTION_FAILED or rule.is_strong)


_ARGUMENT_CLASSES = frozenset(("class ValueError", "class TypeError"))
"""Classes that indicate wrong arguments. A vague rule does not override them, a particular one does."""


def _is_program_internal(kind: Kind, status: int | None) -> bool:
    """Return whether a program's output is about itself and not about the call. A status it passes on is not."""
    return kind not in shell.PROCESS_KINDS and not python.kinds_for_status(status)


def _resolve_took_effect(rule: Rule, evidence: Evidence, reasons: tuple[str, ...]) -> TookEffect | None:
    """Return whether the call took effect, by a rule. Text proves nothing: a refused connection needs its class."""
    if rule.kind is kinds_module.TOOL_UNKNOWN_TOOL and evidence.is_exception:
        return TookEffect.UNKNOWN  # raised in this process, which may have executed part of the call
    return (
        rule.took_effect
        if any(reason.startswith("class ") for reason in reasons) or rule.took_effect is not TookEffect.NO
        else None
    )


def _find_allowed_kinds(evidence: Evidence) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the kinds that status and class allow, and the names of both as evidence."""
    by_status = python.kinds_for_status(evidence.status)
    if by_status:
        return by_status, (f"status {evidence.status}",)
    for name in evidence.names:
        if name in python.CLASSES:
            return python.CLASSES[name], (f"class {name}",)
    return (), ()


def _decide_by_exit_code(evidence: Evidence, is_standard_only: bool = False) -> Iterator[KindDecision]:
    """Decide by exit code. With `is_standard_only`, use only codes with the same meaning in every shell."""
    if not evidence.exit_code:
        return
    reasons = (f"exit code {evidence.exit_code}",)
    standard_kind = {
        127: kinds_module.TOOL_COMMAND_NOT_FOUND,
        126: kinds_module.TOOL_PERMISSION_DENIED,
        124: kinds_module.TOOL_TIMEOUT,
    }.get(evidence.exit_code)
    if standard_kind is kinds_module.TOOL_COMMAND_NOT_FOUND and not compile_rule_pattern(
        _COMMAND_MISSING_PATTERN
    ).search(evidence.text):
        standard_kind = None if compile_rule_pattern(_OTHER_MESSAGE_PATTERN).search(evidence.text) else standard_kind
    if standard_kind is not None:
        yield KindDecision(standard_kind, reasons, 0.8)
    if is_standard_only:
        return
    command = (evidence.arguments or {}).get("command")
    if isinstance(command, str):
        for pattern, kind in (
            (_TEST_COMMAND, kinds_module.TOOL_TEST_FAILURE),
            (_BUILD_COMMAND, kinds_module.TOOL_BUILD_FAILURE),
        ):
            if compile_rule_pattern(pattern).search(command[:2_000]):
                yield KindDecision(kind, (*reasons, "the command"), 0.7)
    yield KindDecision(kinds_module.TOOL_EXECUTION_FAILED, reasons, 0.6, TookEffect.YES)


_COMMAND_MISSING_PATTERN = r"not found|no such|cannot find|not recogni[sz]ed|ENOENT|unable to find"
"""Messages of a shell for a missing command. Exit code 127 has other causes too."""
_OTHER_MESSAGE_PATTERN = r"^(?!exit code)\S{1,80}: \S"

_TEST_COMMAND = (
    r"\b(?:pytest|py\.test|unittest|tox|nox|jest|vitest|mocha|playwright test|ctest|rspec|phpunit|bats)\b"
    r"|\b(?:go|cargo|npm|pnpm|yarn|bun|deno|mvn|mvnw|gradle|gradlew|dotnet|swift|zig|mix|make|mise|just|bazel|"
    r"nx)(?: \S{1,40}){0,3}? (?:run )?:?test\b"
)
_BUILD_COMMAND = (
    r"\b(?:go (?:build|vet)|cargo (?:build|check|clippy)|tsc|javac|gcc|g\+\+|clang|cmake|ninja|golangci-lint|eslint|"
    r"mypy|pyright|ruff)\b|\b(?:npm|pnpm|yarn|bun|mvn|gradle|gradlew|dotnet|swift|make|mise|just|bazel|"
    r"nx)(?: \S{1,40}){0,3}? (?:run )?:?(?:build|compile|lint|package)\b"
)


def _fallback_decision(evidence: Evidence) -> KindDecision:
    """Return the decision for a failure without evidence: `execution_failed`, or `unknown` if it may be none."""
    if evidence.source in ("model", "retrieval", "orchestration"):
        return KindDecision(kinds_module.KINDS[f"{evidence.source}/unknown"], tuple(evidence.names[:1]), 0.2)
    has_failed = (
        evidence.is_error
        or results.is_shell_output(evidence.tool, evidence.text)
        or evidence.is_exception
        or bool(evidence.exit_code)
        or bool(evidence.names)
    )
    if has_failed or compile_rule_pattern(
        r"\b(?:error|fail|failed|failure|exception|cannot|unable|could not|can't|abort|fatal|denied)\b"
    ).search(evidence.text):
        return KindDecision(
            kinds_module.TOOL_EXECUTION_FAILED, tuple(f"class {name}" for name in evidence.names[:1]), 0.4
        )
    return KindDecision(kinds_module.TOOL_UNKNOWN, (), 0.2)


def _unwrap_evidence_text(evidence: Evidence) -> results.UnwrappedText:
    """Strip control characters and envelopes from the text. Add its status, codes and classes to the evidence."""
    evidence.text = results.strip_control_chars(evidence.text)
    evidence.detail = results.strip_control_chars(evidence.detail)
    if evidence.exit_code is None and not evidence.is_exception:
        frame = results.strip_frame(evidence.text)
        evidence.text, evidence.exit_code = frame.output or evidence.text, frame.exit_code
    unwrapped = results.unwrap_text(evidence.text)
    for code in unwrapped.codes:
        evidence.add_code(code)
    for name in unwrapped.names:
        evidence.add_class(name)
    if evidence.rpc is None:
        evidence.rpc = unwrapped.rpc
    evidence.quoted_rpc = _find_quoted_rpc(evidence.text) if evidence.rpc is None else None
    evidence.add_status(unwrapped.status)
    if evidence.status is None:
        evidence.add_status(_find_status(evidence.text))
    return unwrapped


def _find_quoted_rpc(text: str) -> int | None:
    if "-32" not in text[:400]:
        return None
    match = compile_rule_pattern(r"\b(?:mcp|rpc) error:? \(?(-32\d{3})\b").search(text[:400])
    return int(match.group(1)) if match else None


def _find_status(text: str) -> int | None:
    """Return the HTTP status that the text names as one, or None."""
    if not compile_rule_pattern(r"[45]\d\d").search(text[:2_000]):
        return None  # fast path: the pattern below is expensive
    match = compile_rule_pattern(
        r"\bHTTP(?:/\d(?:\.\d)?)?[ :]+(?:status |error |code )*\(?([45]\d\d)\b|"
        r"\bstatus(?:[ _-]?code)?[\"']?\s?(?:[:=]|of|is|was)?\s?[\"']?([45]\d\d)\b|\b([45]\d\d) (?:client|"
        r"server) error|^error code:? ([45]\d\d)\b|\b(?:returned error|error|code):? ([45]\d\d)\b(?=[\s:,.)-]|$)|"
        r"^(?:error:? )?\(?([45]\d\d)\)? (?:bad|un|for|not|method|request|conflict|gone|pre|payload|too|internal|"
        r"service|gateway|locked)|<(?:h1|title)>\s?([45]\d\d)\b"
    ).search(text[:2_000])
    return next((int(group) for group in match.groups() if group), None) if match else None


def _normalize_spelling(text: str) -> str:
    for variant, word in _SPELLINGS:
        text = text.replace(variant, word)
    return text


def _truncate_middle(text: str) -> str:
    """Return both ends of a long text, cut at line breaks."""
    if len(text) <= _MAX_WHOLE_TEXT_CHARS:
        return text
    head, tail = text[: _MAX_WHOLE_TEXT_CHARS // 2], text[-_MAX_WHOLE_TEXT_CHARS // 2 :]
    return f"{head}\n{tail.partition(chr(10))[2] or tail}"


def _choose_message(text: str, unwrapped: results.UnwrappedText, decision: KindDecision) -> str:
    """Return the matched line if the text is multi-line output, else the extracted sentence."""
    lines = text.count("\n")
    if decision.position < 0 or lines == 0 or unwrapped.is_page or unwrapped.is_envelope or text.lstrip()[:1] in "{[":
        return unwrapped.sentence
    if decision.kind in (kinds_module.TOOL_TEST_FAILURE, kinds_module.TOOL_BUILD_FAILURE):
        match = compile_rule_pattern(coding.FIRST_ERROR_PATTERN).search(text)
        if match:
            return results.tidy_line(match.group())
    start = text.rfind("\n", 0, decision.position + 1) + 1
    if start > decision.position:
        start = decision.position
    end = text.find("\n", decision.position + 1)
    line = text[start : end if end >= 0 else len(text)].strip()
    return unwrapped.sentence if results.is_noise(line) else results.tidy_line(line[:2_000])


def _truncate_name(tool: object) -> str:
    return tool[:200] if isinstance(tool, str) else ""


def _replace_fields(failure: Failure, **changes: Any) -> Failure:
    return msgspec.structs.replace(failure, **changes)


default = Classifier()
"""Classifier with the built-in kinds and rules only."""

classify = default.classify
