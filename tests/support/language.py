"""Find names and phrases that the language guide denies.

A name counts where it is bound: functions, classes, parameters, variables, attributes, fields, loop variables, aliases
and modules. Attributes that are only read do not count, so `future.done()` is fine.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

from syntax import parse_source

ROOT = Path(__file__).resolve().parent.parent.parent
PACKAGE = ROOT / "src" / "mulligan"
UNFINISHED: tuple[str, ...] = ()
"""Modules and folders that are about to be merged into others. Their names and prose are finished then."""
ALLOWED = {("src/mulligan/redaction/personal_data.py", "nobody")}
"""Words that are data, not prose: the user `nobody` of Unix."""

PARTICIPLES = (
    r"_?(told|untold|known|kept|said|given|found|made|unmade|heard|asked|seen|met|left|shown|held|lost|taken|named"
    r"|counted|worked|gone|done|noted|drawn|listed|settled|opened|begun|began|tried|untried|mended|spoken|written"
    r"|worded|joined|formed|judged|decided|overcame|overcome|gathered|renewed|thawed|frozen|answered|refused|halted"
    r"|chosen|wanted|meant|taught|advised|remembered|closed|spent|sent|used|needed|changed|folded|cut)$"
)
VAGUE = (
    r"_?(each|some|most|least|few|many|whole|rest|own|alone|place|places|room|moment|what|who|how|why|again|instead"
    r"|beside|above|below|anew|upto|alike|likeness|sort|sure|about|inside|plain|ills|news|crowd|desk|shelf|strangers"
    r"|foreign)$"
)
BOOLEANS = (
    r"_?is_(of|the|its|a|an|over|told|known|kept|said|met|unheard|so|ours|there|away|gone|alone|plain|odd|whole|dull"
    r"|fake|made|unmade|looked_at)(_\w+)?$"
)
CONSTANTS = (
    r"_?(MOST|LONGEST|LARGEST|SHORTEST|FEWEST|DEEPEST|WIDEST|NARROWEST|LEAST|FEW|MANY|SHORT|LONG|LARGE|SMALL|DEEP|WIDE"
    r"|ENOUGH|ENDLESS|EVERY|AGAIN|FIRST|REST|ALIKE|TOLD|KNOWN|KEPT|HELD|SEEN|MET|HEARD|ASKED|SHOWN|OURS|OWN|SURE|SHARE"
    r"|TOGETHER|AT_ONCE|IN_HAND|PATIENCE|SETTLE|SETTLED|WITHIN|RECENT|LATEST|WAITING|REMEMBERED|PAUSE|OPEN|OVER|WHAT"
    r"|WORTH|SOME|ALL|NEVER|BRIEFLY|WHILE|HAPPENED|WORDS|NAMES|LINES|CHARS|READ|RUNS|DAYS|SPACE|ROWS)$"
)
CLASSES = (
    r"_?(Told|Known|Kept|Said|Given|Found|Made|Heard|Asked|Seen|Alone|Here|Open|Done|Above|Ahead|Before|Noted|Unkept"
    r"|Unfit|NotMade|Unanswerable|Refused|Mended|Answered|Passed|Planted|Written|Standing|Keeping|Guarding|Preparing"
    r"|Forgetting|Gathering|Opening|Way|Ways|Crowd|News|Desk|Room|Held|One|Work|Over|Alike|Rest|Place|Form|Parts|Kit"
    r"|Bell|Doors|Side|Pump|Flow|Sum|Part)$"
)
DENIED_NAME = re.compile("|".join((PARTICIPLES, VAGUE, BOOLEANS, CONSTANTS, CLASSES)))
PHRASES = (
    "what is kept", "is told", "given up", "overcome", "nobody", "somebody", "whoever", "stranger", "anew", "in hand",
    "put right", "tried without asking", "half in",
)  # fmt: skip
DENIED_PHRASE = re.compile(
    r"\b(?:" + "|".join(phrase.replace(" ", r"\s+") for phrase in PHRASES) + r")\b", re.IGNORECASE
)
PAIR = {"left", "right"}
"""Two sides of a symmetric pair: `left` is allowed where `right` is bound in the same scope."""

_SCOPES = (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef, ast.Lambda)
_LEAVES = (ast.expr_context, ast.Constant, ast.operator, ast.cmpop, ast.boolop, ast.unaryop)
_STORE = ast.Store()
_NAMES: dict[type[ast.AST], str] = {
    ast.FunctionDef: "name",
    ast.AsyncFunctionDef: "name",
    ast.ClassDef: "name",
    ast.arg: "arg",
    ast.Name: "id",
    ast.Attribute: "attr",
    ast.ExceptHandler: "name",
    ast.MatchAs: "name",
    ast.MatchStar: "name",
    ast.MatchMapping: "rest",
}
"""Where a node that binds a name holds it."""


class Hit(NamedTuple):
    """A denied name or phrase, and where it stands."""

    path: str
    line: int
    text: str

    @property
    def is_unfinished(self) -> bool:
        return self.path.removeprefix("src/mulligan/").startswith(UNFINISHED)

    def __str__(self) -> str:
        return f"{self.path}:{self.line} {self.text}"


def bound_names(tree: ast.AST) -> Iterator[tuple[str, int, int]]:
    """Yield every name that a module binds, its line, and a number for its scope."""
    queue: list[tuple[ast.AST, int]] = [(tree, 0)]
    while queue:
        node, scope = queue.pop()
        for name in _names_of(node):
            yield name, getattr(node, "lineno", 1), scope
        inner = id(node) if isinstance(node, _SCOPES) else scope
        queue.extend((child, inner) for child in ast.iter_child_nodes(node) if not isinstance(child, _LEAVES))


def _names_of(node: ast.AST) -> Iterable[str]:
    attribute = _NAMES.get(type(node))
    if attribute is not None:
        name = getattr(node, attribute)
        is_bound = name is not None and isinstance(getattr(node, "ctx", _STORE), ast.Store)
        return (name,) if is_bound else ()
    if isinstance(node, ast.Import | ast.ImportFrom):
        return [alias.asname for alias in node.names if alias.asname]
    return ()


def find_names(tree: ast.AST, path: str) -> Iterator[Hit]:
    """Yield the denied names that a module binds, its own name included."""
    if DENIED_NAME.match(Path(path).stem):
        yield Hit(path, 1, f"module {Path(path).stem}")
    names = list(bound_names(tree))
    paired = {scope for name, _, scope in names if name == "right"}
    for name, line, scope in names:
        if DENIED_NAME.match(name) and not (name in PAIR and scope in paired):
            yield Hit(path, line, name)


def find_phrases(text: str, path: str, line: int = 1) -> Iterator[Hit]:
    """Yield the denied phrases of a text."""
    for match in DENIED_PHRASE.finditer(text):
        yield Hit(path, line + text.count("\n", 0, match.start()), " ".join(match[0].split()))


def find_source_phrases(tree: ast.AST, path: str) -> Iterator[Hit]:
    """Yield the denied phrases of every string of a module: docstrings, help texts, messages."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str):
            yield from find_phrases(node.value, path, node.lineno)


def find_all() -> dict[str, list[Hit]]:
    """Return every hit of the repository, as `names` and `prose`."""
    hits: dict[str, list[Hit]] = {"names": [], "prose": []}
    for path in sorted(PACKAGE.rglob("*.py")):
        source, name = path.read_text(), path.relative_to(ROOT).as_posix()
        tree = parse_source(source)
        hits["names"] += find_names(tree, name)
        hits["prose"] += find_source_phrases(tree, name)
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *PACKAGE.rglob("*.html"), *PACKAGE.rglob("*.md")]
    for path in sorted(pages):
        hits["prose"] += find_phrases(path.read_text(), path.relative_to(ROOT).as_posix())
    hits["prose"] = [hit for hit in hits["prose"] if (hit.path, hit.text) not in ALLOWED]
    return hits
