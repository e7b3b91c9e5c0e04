"""Classification of an error into a `Failure`. The first decision in order of evidence strength wins. Never raises."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from mulligan.classify import results
from mulligan.classify.declared_errors import AgentError, InfraError, build_declared_failure
from mulligan.classify.error_numbers import parse_delay, parse_retry_after
from mulligan.classify.evidence import Evidence, gather_evidence, to_bounded_text, unwrap_error, unwrap_logged_error
from mulligan.classify.fingerprint import compute_fingerprint, may_quote_arguments
from mulligan.classify.rules import (
    Rule,
    RuleTable,
    compile_rule_pattern,
    custom,
    match_rules,
    providers,
    python,
    search_rule_pattern,
    words,
)
from mulligan.classify.rules.numbers import find_number
from mulligan.classify.tool_category import find_category_of_name
from mulligan.classify.word_weights import LEARNED_WORDS, MIN_SHARE, guess_kind
from mulligan.core import kinds as kinds_module
from mulligan.core.failure import EARLIER_ATTEMPTS, Failure, Kind, Remedy, TookEffect, ToolCategory, is_guess
from mulligan.core.kinds import KINDS
from mulligan.redaction.regex import LazyRegex, index_patterns

MAX_CACHED_FAILURES = 500
"""Failures in the cache. It is cleared when it is full."""
MAX_CACHED_TEXT_CHARS = 1000
"""Longer texts are not cached."""
_MAX_WHOLE_TEXT_CHARS = 700
"""Longer texts are matched at both ends only: their middle is usually output of the tool."""
SOURCES = ("tool", "model", "retrieval", "orchestration")
_CACHED_TYPES = frozenset((str, int, bool, type(None)))

_SPELLINGS = (
    ("\u2019", "'"), ("\u2018", "'"), ("\u201c", '"'), ("\u201d", '"'), ("can't", "cannot"), ("can not", "cannot"),
    ("n't ", " not "), ("ognised", "ognized"), ("uthoris", "uthoriz"),
)  # fmt: skip
"""Spelling variants and their normal form, so that general rules need to list each word only once."""


class KindDecision(msgspec.Struct, frozen=True):
    kind: Kind
    reasons: tuple[str, ...]
    confidence: float
    took_effect: TookEffect | None = None
    position: int = -1
    """Index in the text where the deciding rule matched, or -1."""
    is_permanent: bool = False
    """Whether another attempt fails the same way."""
    allows_attempt: bool = True
    """Whether the evidence is enough to propose another attempt."""


class Classifier:
    """Classifier with a table of kinds and rules. User-defined rules run before the built-in ones.

    Failures are cached by text and context. Argument values are not part of the key, so a text that quotes one is not
    cached.
    """

    def __init__(self, kinds: Sequence[Kind] = (), rules: Sequence[Rule] = ()) -> None:
        self.kinds: dict[str, Kind] = {**KINDS, **{str(kind): kind for kind in kinds}}
        self.rules = tuple(rules)
        self._cache: dict[tuple[Any, ...], tuple[Failure, str]] = {}
        """Failures with the text from which the fingerprint was computed."""
        for rule in self.rules:
            custom.check_pattern(rule.pattern, f"rule {rule.name!r}")

    @classmethod
    def from_settings(cls, settings: Mapping[str, Any]) -> Classifier:
        """Build a classifier from the `kinds` and `rules` of `mulligan.toml`.

        Raise `SettingsError` if they are invalid.
        """
        return cls(*custom.parse_kinds_and_rules(settings))

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
        category: ToolCategory | None = None,
        is_listed: bool = False,
    ) -> Failure:
        """Classify an error. Never raises, and reads only both ends of long texts.

        `source` is the type of the step (`tool`, `model`, `retrieval`, `orchestration`). Without it the evidence
        decides. `exception` is the path of the exception class, for callers that no longer have the exception.
        `rejection_statuses` are HTTP statuses with which the tool reports that the call did not execute. `category`
        says what the tool is, if its name does not. `is_listed` says that its server lists the tool, so an unknown
        method is not its name.
        """
        if isinstance(error, Failure):
            return error
        if source not in SOURCES:
            source = None  # other step types, such as a plan, do not tell what failed
        evidence = Evidence(source=source, tool=tool[:200] if isinstance(tool, str) else "", is_error=is_error)
        evidence.category = category or find_category_of_name(evidence.tool)
        evidence.is_listed = is_listed
        try:
            key = None
            if error is None and not rejection_statuses:
                context = (tool, status, exception, source, is_error, evidence.category, is_listed)
                key = _cache_key(text, arguments, *context)
                cached_failure, fingerprint_text = self._cache.get(key or ()) or (None, "")
                if cached_failure is not None and not may_quote_arguments(fingerprint_text, arguments):
                    return cached_failure
            if isinstance(arguments, Mapping):
                evidence.arguments = arguments
            evidence.add_status(status)
            evidence.add_class(exception)
            evidence.add_text(text)
            unwrap_logged_error(evidence)
            error = unwrap_error(error, evidence)
            gather_evidence(error, evidence)
            evidence.is_raised = evidence.is_exception or bool(evidence.names)
            evidence.has_known_class = bool(_find_known_class(evidence))
            failure = self._build_failure(error, evidence)
            if failure.status is not None and failure.status in rejection_statuses and not evidence.is_retried:
                reasons = (*failure.evidence, f"rejection status {failure.status}")
                failure = msgspec.structs.replace(failure, took_effect=TookEffect.NO, evidence=reasons)
            # The message of an exception without one is its class. A log has an empty text instead.
            fingerprint_text = failure.message or evidence.text or next(iter(evidence.names), "")
            fingerprint_id = compute_fingerprint(failure.kind, evidence.tool, fingerprint_text, evidence.arguments)
            failure = msgspec.structs.replace(failure, fingerprint=fingerprint_id)
            # A text may name a point in time, or an argument value, which differ in the next call.
            if key and failure.clears_after is None and not may_quote_arguments(fingerprint_text, arguments):
                if len(self._cache) >= MAX_CACHED_FAILURES:
                    self._cache.clear()
                self._cache[key] = failure, fingerprint_text
            return failure
        except Exception as internal_error:  # noqa: BLE001 - an internal error must not hide the user's error
            message = to_bounded_text(evidence.text)[: results.MAX_MESSAGE_CHARS]
            reasons = (f"classification failed: {type(internal_error).__name__}",)
            return Failure.of(_unknown_kind(source), message, evidence=reasons, confidence=0.0)

    def _build_failure(self, error: object, evidence: Evidence) -> Failure:
        unwrapped = _unwrap_evidence_text(evidence)
        if isinstance(error, (AgentError, InfraError)):
            return build_declared_failure(
                error,
                results.tidy_line(results.strip_control_chars(to_bounded_text(evidence.text))),
                source=evidence.source,
                kinds=self.kinds,
                is_wrapped=evidence.is_wrapped,
                status=evidence.status,
                detail=evidence.detail,
            )
        decision = _weigh_words(next(self._iter_decisions(evidence, unwrapped)), evidence, unwrapped)
        kind = self._kind_for_source(decision.kind, evidence.source)
        if _is_about_query(kind, evidence):
            kind = kinds_module.RETRIEVAL_INVALID_QUERY
        message = results.append_reasons(_choose_message(evidence.text, unwrapped, decision), evidence.text)
        detail_text = evidence.text if evidence.text.strip() != message else ""
        clears_after = None
        if kind.remedy is Remedy.RETRY or kind.is_used_up:
            full_text = f"{evidence.text}\n{evidence.detail}"
            clears_after = parse_retry_after(evidence.headers, full_text)
            delay = parse_delay(full_text) if kind.is_used_up and evidence.status not in kind.statuses else None
            # A quota that ends earlier is a rate limit: no person has to act.
            if delay is not None and delay <= 3600.0:
                kind = self.kinds.get(f"{kind.type}/{kind.code_if_short}", kind)
        took_effect, reasons = decision.took_effect, decision.reasons
        if took_effect is None and kind.took_effect is TookEffect.NO and is_guess(reasons, decision.confidence):
            took_effect = TookEffect.UNKNOWN  # words that may be about something else prove nothing
        if took_effect is None and kind.has_no_cause and evidence.exit_code:
            took_effect = TookEffect.YES  # the program started, so the call executed
        if kind.is_about_connection and kind.remedy is Remedy.RETRY and _CERTIFICATE.search(evidence.text):
            kind = kind.with_remedy(Remedy.REPLAN, _CERTIFICATE_HINT)
        if kind.remedy is Remedy.RETRY and (decision.is_permanent or _has_permanent_number(evidence)):
            kind = kind.with_remedy(Remedy.REPLAN, _PERMANENT_HINT)
        if not decision.allows_attempt and kind.remedy in (Remedy.RETRY, Remedy.REPAIR):
            kind = kind.with_remedy(Remedy.REPLAN)
        if evidence.is_retried:
            if (took_effect or kind.took_effect) is TookEffect.NO:
                took_effect = TookEffect.UNKNOWN  # earlier attempts may have executed
                reasons = (*reasons, EARLIER_ATTEMPTS)
            if kind.remedy is Remedy.RETRY and kind.type != "model":
                # Only one layer may retry. The wrapping library has already done so.
                kind = kind.with_remedy(Remedy.REPLAN, kinds_module.ORCHESTRATION_MAX_RETRIES_EXCEEDED.hint)
        return Failure.of(
            kind,
            message,
            took_effect=took_effect,
            detail="\n".join(filter(None, (detail_text, evidence.detail))),
            status=evidence.status,
            code=evidence.codes[0] if evidence.codes else "",
            retry_after=clears_after if kind.remedy is Remedy.RETRY else None,
            clears_after=clears_after,
            evidence=reasons,
            confidence=decision.confidence,
        )

    def _iter_decisions(self, evidence: Evidence, unwrapped: results.UnwrappedText) -> Iterator[KindDecision]:
        """Yield all decisions, strongest evidence first. Callers use only the first; there is always at least one."""
        text = evidence.text
        for rule in self.rules:
            position = custom.match_position(rule, text, evidence.tool)
            if position >= 0:
                yield KindDecision(rule.kind, (f"rule {rule.name}",), 1.0, rule.took_effect, position)
        # The first class that tells something: a timeout cancels what it waits for, but is no cancellation.
        telling_names = (name for name in evidence.names if name in python.CLASSES or name in python.CANCELLATIONS)
        for name in telling_names if evidence.is_raised else evidence.names[:1]:
            if name in python.CANCELLATIONS:
                yield KindDecision(kinds_module.NONE_CANCELLED, (f"class {name}",), 1.0)
            break
        yield from _decide_by_rules(words.STOPPED_CALLS, _truncate_middle(text), evidence.tool, 0.95)
        if providers.is_model_failure(evidence, unwrapped.is_envelope):
            kind, reasons, confidence = providers.classify_model_failure(evidence)
            yield KindDecision(kind, tuple(reasons), confidence)
        if evidence.source == "orchestration" and evidence.is_raised:
            yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, tuple(evidence.names[:1]), 0.9)
        yield from _iter_tool_decisions(evidence, unwrapped)
        if not text.strip() and not evidence.names and evidence.status is None and evidence.exit_code is None:
            yield KindDecision(_unknown_kind(evidence.source), ("no error text",), 0.1)
        yield _fallback_decision(evidence)

    def _kind_for_source(self, kind: Kind, source: str | None) -> Kind:
        """Return the kind with the same code under the step's type, if there is one, such as `retrieval/timeout`."""
        name = str(kind)
        if source == "retrieval" and kind.type == "tool":
            name = f"retrieval/{kind.retrieval_code or kind.code}"
        return self.kinds.get(name) or self.kinds.get(str(kind), kind)


def _is_about_query(kind: Kind, evidence: Evidence) -> bool:
    """Return whether a database or a search rejects the query and not the call: its syntax, its columns."""
    if evidence.category not in ("sql", "search") or not kind.retrieval_code or evidence.number is not None:
        return False
    pattern = words.QUERY_WORDS if evidence.category == "sql" else words.SEARCH_WORDS
    return compile_rule_pattern(pattern).search(evidence.text[:_MAX_WHOLE_TEXT_CHARS]) is not None


_CERTIFICATE = LazyRegex(
    r"certificate[ _](?:verify[ _]failed|has expired|is not (?:valid|trusted))|self[- ]signed certificate|"
    r"unable to get local issuer",
    re.IGNORECASE,
)
_CERTIFICATE_HINT = (
    "The certificate of the service is not trusted here, and a retry cannot help. "
    "Do not switch the check off: tell the user."
)


_PERMANENT_HINT = "The service does not offer this, and another attempt fails the same way. Use another way."


def _has_permanent_number(evidence: Evidence) -> bool:
    stated = [("http", str(evidence.status)), ("rpc", str(evidence.rpc)), ("rpc", str(evidence.quoted_rpc))]
    if evidence.number is not None:
        stated.append((evidence.number.family, evidence.number.value))
    return any(kinds_module.is_permanent_number(family, value) for family, value in stated)


def _cache_key(text: Any, arguments: Any, *context: Any) -> tuple[Any, ...] | None:
    """Return the cache key, with argument names but not values, or None if the call must not be cached."""
    if type(text) is not str or len(text) > MAX_CACHED_TEXT_CHARS or not _CACHED_TYPES.issuperset(map(type, context)):
        return None
    if arguments is None:
        return (text, (), *context)
    # The words of a command influence classification.
    if type(arguments) is not dict or "command" in arguments or not all(type(name) is str for name in arguments):
        return None
    return (text, tuple(arguments), *context)


def _unknown_kind(source: str | None) -> Kind:
    return KINDS.get(f"{source}/unknown", kinds_module.TOOL_UNKNOWN)


def _decide_by_rules(rules: RuleTable, text: str, tool: str, confidence: float) -> Iterator[KindDecision]:
    for rule, position in match_rules(rules, text, tool):
        yield KindDecision(rule.kind, (f"text: {rule.name}",), confidence, rule.took_effect, position)


def _iter_tool_decisions(evidence: Evidence, unwrapped: results.UnwrappedText) -> Iterator[KindDecision]:
    text, tool = evidence.text, evidence.tool
    evidence.number = find_number(text, tuple(evidence.codes))
    if evidence.exit_code is not None and evidence.number and evidence.number.family == "exit":
        evidence.number = None  # that of the frame
    for rpc_code, prefix, confidence in ((evidence.rpc, "", 0.97), (evidence.quoted_rpc, "text: ", 0.9)):
        if rpc_kinds := kinds_module.find_kinds_of_number("rpc", str(rpc_code)):
            tables = (words.ARGUMENTS, words.PARTICULAR_RULES, words.GENERAL_RULES)
            matched_kinds = (rule.kind for table in tables for rule, _ in match_rules(table, text))
            kind = next((kind for kind in matched_kinds if kind in rpc_kinds), rpc_kinds[0])
            # Only these two codes prove that the call did not execute, unless they are quoted in a text. A server may
            # send the others after it has started.
            took_effect = TookEffect.NO if not prefix and rpc_code in (-32601, -32602) else None
            if evidence.is_listed and kinds_module.is_permanent_number("rpc", str(rpc_code)):
                kind = kinds_module.TOOL_API_ERROR  # the server lists the tool, but does not implement a method
            yield KindDecision(kind, (f"{prefix}JSON-RPC {rpc_code}",), confidence, took_effect)
    code_error = search_rule_pattern(_CODE_ERROR_PATTERN, text, text.lower())
    if (
        code_error
        and tool
        and not evidence.has_known_class
        and (code_error.group(1) is None or code_error.group(1) in tool)
    ):
        if evidence.is_raised and code_error.group(1) is None and not _may_hold_code(evidence):
            yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, ("text: code of the tool",), 0.8)
        # The call itself is model-written code that does not parse.
        yield KindDecision(kinds_module.MODEL_INVALID_OUTPUT, ("text: unreadable call",), 0.8, TookEffect.UNKNOWN)
    yield from _decide_by_python_error(evidence)
    if any(module.partition(".")[0] in python.QUERY_PACKAGES for module in evidence.modules):
        yield KindDecision(kinds_module.RETRIEVAL_INVALID_QUERY, ("class of a query language",), 0.8)
    if not evidence.has_known_class:
        framed_text = _truncate_middle(results.shorten_quoted_command(text))
        yield from _decide_by_rules(words.COMMAND_TIMEOUTS, framed_text, tool, 0.9)
        for decision in _decide_by_rules(words.EDITING, text, tool, 0.95):
            if decision.kind.prepared_by == "read" and evidence.status is not None:
                continue  # a document of a service, not a file
            # Code of this process raised it, which may have executed part of the call.
            yield msgspec.structs.replace(decision, took_effect=TookEffect.UNKNOWN) if evidence.is_raised else decision
        if evidence.status is None and not unwrapped.is_page:
            yield from _decide_by_rules(words.TESTS_AND_BUILDS, text, tool, 0.9)
    yield from _decide_by_words(evidence)
    yield from _decide_by_class_name(evidence)
    allowed, _ = _find_allowed_kinds(evidence)
    if not evidence.has_known_class and compile_rule_pattern(_MISSING_KEY_PATTERN).match(text.strip()):
        yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, ("text: only a missing key",), 0.7)
    if not _is_program_output(evidence) and not allowed and len(text) <= _MAX_WHOLE_TEXT_CHARS:
        # Match the sentence without its envelope: these patterns are anchored at the start.
        sentence = unwrapped.sentence if text.lstrip()[:1] in "{[" else text
        for rule, _ in match_rules(words.GUESSES, _normalize_spelling(sentence)):
            yield KindDecision(rule.kind, (f"text: {rule.name}",), 0.5)


_CODE_ERROR_PATTERN = r"name '(\w{1,80})' is not defined|\(<(?:string|stdin|unknown)>, line \d{1,9}\)"
_MISSING_KEY_PATTERN = r"""\A(?:error(?: during execution)?: )?(?:KeyError: ?)?(["'])\w{1,40}\1\Z"""


def _decide_by_python_error(evidence: Evidence) -> Iterator[KindDecision]:
    """Decide by a message of the Python interpreter: a bug in the tool, or a call with other arguments than it has."""
    name = evidence.names[0] if evidence.names else ""
    if _is_program_output(evidence):
        return
    message_pattern = python.INTERPRETER_MESSAGES.get(name)
    if message_pattern and compile_rule_pattern(message_pattern).match(evidence.text):
        yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, (f"class {name}", "text: interpreter"), 0.85)
    if name == "KeyError" and _is_argument_value(evidence):
        yield KindDecision(kinds_module.TOOL_NOT_FOUND, ("class KeyError", "the missing key is an argument"), 0.6)
    if name != "TypeError":
        return
    # The message names the function that was called. If it is the tool, its caller passed the wrong arguments.
    binding = compile_rule_pattern(python.BINDING_ERROR_PATTERN).search(evidence.text)
    if binding and (not evidence.tool or _is_named(evidence.tool, binding.group(1))):
        yield KindDecision(kinds_module.TOOL_INVALID_ARGUMENTS, ("class TypeError", "text: call of the tool"), 0.9)
    if binding or compile_rule_pattern(python.TYPE_ERROR_PATTERN).search(evidence.text):
        yield KindDecision(kinds_module.ORCHESTRATION_UNCAUGHT_EXCEPTION, ("class TypeError",), 0.85)


def _may_hold_code(evidence: Evidence) -> bool:
    """Return whether an argument may be code: unless all are known and none has a space or a sign of code."""
    if evidence.arguments is None:
        return True
    match_name = compile_rule_pattern(r"[\w.@/-]{0,200}\Z").match
    return any(not (isinstance(value, (int, float)) or match_name(str(value))) for value in evidence.arguments.values())


def _is_argument_value(evidence: Evidence) -> bool:
    """Return whether the text of a `KeyError` is a value of the call: the tool looked up what the model asked for."""
    values = (evidence.arguments or {}).values()
    return any(type(value) in (str, int) and repr(value) == evidence.text for value in values)


def _is_named(tool: str, function: str) -> bool:
    """Return whether a function has the name of the tool, which may have a prefix, such as that of a server."""
    return "".join(filter(str.isalnum, tool.lower())).endswith("".join(filter(str.isalnum, function.lower())))


def _decide_by_class_name(evidence: Evidence) -> Iterator[KindDecision]:
    """Decide by the words in the name of an exception class that is in no table, such as `OrderNotFound`."""
    has_status = bool(kinds_module.find_kinds_of_status(evidence.status))
    if evidence.is_raised and not evidence.has_known_class and not has_status and evidence.exit_code is None:
        for kind in _kinds_for_class_name(evidence):
            yield KindDecision(kind, (f"class {evidence.names[0]}",), 0.6)


def _kinds_for_class_name(evidence: Evidence) -> Iterator[Kind]:
    for name in evidence.names[:1]:
        if name not in python.CLASSES and name != "ValueError":
            yield from (rule.kind for rule, _ in match_rules(python.CLASS_NAMES, name))


def _decide_by_words(evidence: Evidence) -> Iterator[KindDecision]:
    """Decide by words, codes and the exit code, within the kinds that the status and the class allow."""
    allowed, reasons = _find_allowed_kinds(evidence)
    is_program_output = _is_program_output(evidence)
    has_status = bool(kinds_module.find_kinds_of_status(evidence.status))
    has_class = bool(reasons) and reasons[0].startswith("class ")

    def is_internal(kind: Kind) -> bool:
        """Return whether a program's output is about itself and not about the call. A status it passes on is not."""
        return is_program_output and not has_status and not kind.can_occur_in_output

    def can_decide(rule: Rule) -> bool:
        if is_internal(rule.kind):
            # A particular rule about the program's internals decides alone: its text tells nothing about the call.
            return rules is words.PARTICULAR_RULES and not allowed
        if rule.is_vague and evidence.names[:1] == ["ValueError"]:
            return False  # a class that indicates wrong arguments: only a particular rule overrides it
        is_weak = rule.kind.has_no_cause and not rule.is_strong
        return not allowed or (rule.kind in allowed and not is_weak)

    excerpt = _truncate_middle(evidence.text)
    tables = (
        (words.PARTICULAR_RULES, 0.9),
        (words.SYSTEM_MESSAGES, 0.9),
        (words.SENTENCES, 0.75),
        (words.GENERAL_RULES, 0.75),
        (words.PROGRAMS, 0.6),
    )
    language_tables = words.find_language_tables(excerpt)
    for rules, confidence in tables:
        if rules is words.SENTENCES:
            yield from _decide_by_exit_code(evidence, is_standard_only=True)
            # A code outweighs general words, but not rules for one type of program.
            text_names = evidence.names[:1] if not evidence.is_raised else ()
            for code in (*evidence.codes, *text_names) if not is_program_output else ():
                kind = python.kind_for_code(code)
                # Some services answer every rejection with status 400 and tell the reason by a code.
                if kind is not None and (not allowed or kind in allowed or evidence.status == 400):
                    yield KindDecision(kind, (f"code {code}", *reasons), 0.9)
            excerpt = _normalize_spelling(excerpt)
        if rules in (words.SYSTEM_MESSAGES, words.SENTENCES) and not language_tables:
            continue
        for rule, position in match_rules(rules, excerpt, evidence.tool, can_decide):
            if excerpt != evidence.text:
                position = evidence.text.find(excerpt[position : position + 12])
            if is_internal(rule.kind):
                internal_reasons = (f"text: {rule.name}", "internal to the program")
                yield KindDecision(kinds_module.TOOL_EXECUTION_FAILED, internal_reasons, 0.8, position=position)
            took_effect = rule.took_effect
            if rule.kind.is_about_tool_name and evidence.is_raised:
                took_effect = TookEffect.UNKNOWN  # raised in this process, which may have executed part of the call
            elif took_effect is TookEffect.NO and not has_class:
                took_effect = None  # text proves nothing: a refused connection needs its class
            # General words with a status for errors of any kind do not tell arguments from a state for certain.
            is_backed = bool(reasons) and not (rules is words.GENERAL_RULES and evidence.status in _VAGUE_REJECTIONS)
            has_certain_words = confidence < _CERTAIN_CONFIDENCE and rule.is_certain(excerpt)
            raised_confidence = (_CERTAIN_CONFIDENCE if has_certain_words else confidence) + 0.05 * is_backed
            rule_reasons = (f"text: {rule.name}", *reasons)
            yield KindDecision(
                rule.kind, rule_reasons, raised_confidence, took_effect, position, is_permanent=rule.is_permanent
            )
    if evidence.status in _REJECTIONS and not is_program_output:
        # Services give these statuses to wrong arguments and to what the state of an object forbids.
        for rule, position in match_rules(words.GUESSES, _normalize_spelling(_truncate_middle(evidence.text))):
            if rule.kind in allowed:
                yield KindDecision(rule.kind, (f"text: {rule.name}", *reasons), 0.7, position=position)
        if not evidence.number and _is_about_state(evidence):
            yield KindDecision(kinds_module.ORCHESTRATION_INVALID_STATE, (*reasons, "no words about arguments"), 0.6)
        for code in evidence.codes:
            for rule, _ in match_rules(python.CLASS_NAMES, code):
                if rule.kind in allowed and not rule.kind.rejects_arguments:
                    yield KindDecision(rule.kind, (f"code {code}", *reasons), 0.7)
    if allowed and not is_internal(allowed[0]):
        # Words that no rule knows may tell another reason, for which the arguments must not be changed.
        is_doubtful = allowed[0].remedy is Remedy.REPAIR or allowed[0].is_limit
        has_unknown_words = is_doubtful and bool(evidence.text.strip())
        is_certain = evidence.number is not None or (evidence.status and not has_unknown_words)
        yield KindDecision(allowed[0], reasons, 0.85 if is_certain else 0.75)
    yield from _decide_by_exit_code(evidence)


def _weigh_words(decision: KindDecision, evidence: Evidence, unwrapped: results.UnwrappedText) -> KindDecision:
    """Return the kind that the words of a sentence suggest, if no rule knows it."""
    is_sentence = len(evidence.text) <= _MAX_WHOLE_TEXT_CHARS and not evidence.names and not evidence.codes
    if decision.confidence >= 0.5 or evidence.rpc is not None or not is_sentence or _is_program_output(evidence):
        return decision
    sentence = unwrapped.sentence if evidence.text.lstrip()[:1] in "{[" else evidence.text
    guess = None if "unknown error" in sentence.lower() else guess_kind(sentence, decision.kind.type == "model")
    if guess is None or guess.share < MIN_SHARE or (guess.kind.needs_reread and evidence.category != "file"):
        return decision
    return KindDecision(guess.kind, (LEARNED_WORDS,), 0.5)


_CERTAIN_CONFIDENCE = 0.85
"""Confidence of words that mean one kind alone, such as `rate limit exceeded`."""
_REJECTIONS = (400, 422)
_VAGUE_REJECTIONS = (*_REJECTIONS, 403)


def _is_about_state(evidence: Evidence) -> bool:
    """Return whether a rejection is about the state of an object: a sentence without a word about arguments."""
    sentence = results.unwrap_text(evidence.text).sentence
    if " " not in sentence or compile_rule_pattern(words.ARGUMENT_WORDS).search(sentence):
        return False
    return not any(str(name).lower() in sentence.lower() for name in (evidence.arguments or {}))


def _is_program_output(evidence: Evidence) -> bool:
    """Return whether the text is the output of a program: its exit code is known, or it comes from a shell tool."""
    if evidence.has_known_class:
        return False
    return evidence.exit_code is not None or _is_unframed_output(evidence)


def _is_unframed_output(evidence: Evidence) -> bool:
    """Return whether the text is the output of a program without its exit code."""
    return evidence.category == "shell" and results.is_shell_output(evidence.text)


def _find_allowed_kinds(evidence: Evidence) -> tuple[tuple[Kind, ...], tuple[str, ...]]:
    """Return the kinds that status and class allow, and the names of both as evidence."""
    by_status = kinds_module.find_kinds_of_status(evidence.status)
    name = _find_known_class(evidence)
    if evidence.number and (not by_status or evidence.status in _GENERAL_STATUSES):
        by_number, reasons = evidence.number.kinds, (evidence.number.label,)
        common_kinds = tuple(kind for kind in by_number if name and kind in python.CLASSES[name])
        return (common_kinds, (f"class {name}", *reasons)) if common_kinds else (by_number, reasons)
    if by_status:
        return by_status, (f"status {evidence.status}",)
    return (python.CLASSES[name], (f"class {name}",)) if name else ((), ())


_GENERAL_STATUSES = (400, 500)
"""Statuses that services give to errors of any kind. A number in their text tells more."""


def _find_known_class(evidence: Evidence) -> str:
    """Return the first class with an entry in the table. A log does not name base classes, so those do not count."""
    if evidence.is_raised and next(_kinds_for_class_name(evidence), None):
        return ""  # its own name tells more than its causes
    ignored = evidence.library_bases if evidence.is_raised else {"TypeError"}  # a result may be about the arguments
    return next((name for name in evidence.names if name in python.CLASSES and name not in ignored), "")


def _decide_by_exit_code(evidence: Evidence, is_standard_only: bool = False) -> Iterator[KindDecision]:
    """Decide by exit code. With `is_standard_only`, use only codes with the same meaning in every shell."""
    if not evidence.exit_code:
        return
    reasons = (f"exit code {evidence.exit_code}",)
    # Exit code 127 has other causes too, with another message than that of a shell for a missing command.
    is_other_message = (
        evidence.exit_code == 127
        and not compile_rule_pattern(_COMMAND_MISSING_PATTERN).search(evidence.text)
        and compile_rule_pattern(r"^(?!exit code)\S{1,80}: \S").search(evidence.text)
    )
    by_exit_code = kinds_module.find_kinds_of_number("exit", str(evidence.exit_code))
    if by_exit_code and not is_other_message:
        yield KindDecision(by_exit_code[0], reasons, 0.8)
    if is_standard_only:
        return
    # A tool may be named after the program that it runs.
    command = (evidence.arguments or {}).get("command") or evidence.tool
    if isinstance(command, str):
        for rule, _ in match_rules(words.COMMANDS, command[:2_000]):
            yield KindDecision(rule.kind, (*reasons, "the command"), 0.7)
    yield KindDecision(kinds_module.TOOL_EXECUTION_FAILED, reasons, 0.6, TookEffect.YES)


_COMMAND_MISSING_PATTERN = r"not found|no such|cannot find|not recogni[sz]ed|ENOENT|unable to find"


def _fallback_decision(evidence: Evidence) -> KindDecision:
    """Return the decision for a failure without evidence: `execution_failed`, or `unknown` if it may be none."""
    if evidence.source in ("model", "retrieval", "orchestration"):
        return KindDecision(_unknown_kind(evidence.source), tuple(evidence.names[:1]), 0.2)
    if evidence.rpc is not None:
        return KindDecision(kinds_module.TOOL_API_ERROR, (f"JSON-RPC {evidence.rpc}",), 0.4)
    has_failed = (
        evidence.is_error
        or _is_unframed_output(evidence)
        or evidence.is_exception
        or evidence.exit_code
        or evidence.names
        or search_rule_pattern(_FAILED_PATTERN, evidence.text, evidence.text.lower())
    )
    if not has_failed:
        return KindDecision(kinds_module.TOOL_UNKNOWN, (), 0.2)
    if evidence.names[:1] in (["ValueError"], ["TypeError"]) and not _is_program_output(evidence):
        return KindDecision(kinds_module.TOOL_INVALID_ARGUMENTS, (f"class {evidence.names[0]}",), 0.6)
    return KindDecision(kinds_module.TOOL_EXECUTION_FAILED, tuple(f"class {name}" for name in evidence.names[:1]), 0.4)


_FAILED_PATTERN = r"\b(?:error|fail|failed|failure|exception|cannot|unable|could not|can't|abort|fatal|denied)\b"


def _unwrap_evidence_text(evidence: Evidence) -> results.UnwrappedText:
    """Strip control characters and envelopes from the text. Add its status, codes and classes to the evidence."""
    evidence.text = results.strip_control_chars(evidence.text)
    evidence.detail = results.strip_control_chars(evidence.detail)
    if evidence.exit_code is None and not evidence.has_known_class:
        output, evidence.exit_code = results.strip_frame(evidence.text)
        evidence.text = output or evidence.text
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
    text = text[:2_000]
    if not compile_rule_pattern(r"[45]\d\d\b(?<!\d{4})").search(text):
        return None  # fast path: the pattern is expensive
    if not index_patterns(_STATUS_PATTERN).has_match(text, text.lower()):
        return None
    match = compile_rule_pattern(_STATUS_PATTERN).search(text)
    return next((int(group) for group in match.groups() if group), None) if match else None


_STATUS_PATTERN = (
    r"\bHTTP(?:/\d(?:\.\d)?)?[ :]+(?:status |error |code )*\(?([45]\d\d)\b|"
    r"\bstatus(?:[ _-]?code)?[\"']?\s?(?:[:=]|of|is|was)?\s?[\"']?([45]\d\d)\b|\b([45]\d\d) (?:client|"
    r"server) error|^error code:? ([45]\d\d)\b|\b(?:returned error|error|code):? \(?([45]\d\d)\b(?=[\s:,.)-]|$)|"
    r"\b(?:returned|answered|responded with|failed with|failed:|got an?)(?: http)? ([45]\d\d)\b(?=[:,.;)]|$| \()|"
    r"^(?:error:? )?\(?([45]\d\d)\)? (?:bad|un|for|not|method|request|conflict|gone|pre|payload|too|internal|"
    r"service|gateway|locked)|^(?:error:? )?\(?(401)\)?:? (?:invalid|wrong|expired|missing|incorrect|no) "
    r"(?:\w{1,12} ){0,2}(?:key|token|credentials?)\b|<(?:h1|title)>\s?([45]\d\d)\b|"
    r"\b(?:get|post|put|patch|delete) https?://\S{1,300}: ([45]\d\d) |\(([45]\d\d) from |"
    r"\b(?:said|gave|sent|saw|answers|responds)(?: an?| http| with)? ([45]\d\d)\b(?=[:,.;)]|$| \()|^got ([45]\d\d)\Z|"
    r"\bhttp_?status\W{1,3}([45]\d\d)\b|^([45]\d\d) (?:from|by|\()|^\W{0,3}([45]\d\d)\W{0,3}\Z"
)


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
    if decision.kind.is_about_code:
        match = compile_rule_pattern(words.FIRST_ERROR_PATTERN).search(text)
        if match:
            return results.tidy_line(match.group())
    start = min(text.rfind("\n", 0, decision.position + 1) + 1, decision.position)
    end = text.find("\n", decision.position + 1)
    line = text[start : end if end >= 0 else len(text)].strip()
    return unwrapped.sentence if results.is_noise(line) else results.tidy_line(line[:2_000])


default = Classifier()
"""Classifier with the built-in kinds and rules only."""

classify = default.classify
