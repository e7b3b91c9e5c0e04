"""What a page names exists: commands, options, settings, kinds, endpoints, Python names, targets, anchors, scripts."""

from __future__ import annotations

import importlib
import itertools
import json
import re
import shlex
import tomllib
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import click
import pytest

from mulligan.cli import cli
from mulligan.contract.counters import Cell
from mulligan.core.kinds import KINDS
from mulligan.report.stats import to_facts
from mulligan.server.routes import api_document
from mulligan.settings import SETTING_NAMES, load_settings

ROOT = Path(__file__).parents[1]
SOURCE = ROOT / "src" / "mulligan"
PAGES = sorted([ROOT / "README.md", *(ROOT / "docs").rglob("*.md"), *ROOT.glob("examples/**/README.md")])
ALL_PAGES = sorted([*PAGES, *(path for path in ROOT.glob("*.md") if path.name != "README.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```", re.MULTILINE | re.DOTALL)


@cache
def read(page: Path) -> str:
    return page.read_text()


def prose(page: Path) -> str:
    return FENCE.sub("", read(page))


def inline_code(page: Path) -> list[str]:
    return re.findall(r"`([^`\n]+)`", prose(page))


def blocks(page: Path, *languages: str) -> list[str]:
    return [text for language, text in FENCE.findall(read(page)) if language in languages]


# Commands and options


def documented_commands(page: Path) -> Iterator[str]:
    """Yield what follows `mulligan` in inline code and in blocks, up to a comment or another program."""
    lines = "\n".join(blocks(page, "", "sh")).splitlines()
    lines += [line for text in blocks(page, "text") for line in text.splitlines() if line.startswith("$ ")]
    lines = [match[1] for line in lines if (match := re.match(r"(?:\$ |# )?(?:[A-Z_]+=\S+ )*mulligan( .*)$", line))]
    lines += [text.removeprefix("mulligan") for text in inline_code(page) if text.startswith("mulligan ")]
    for line in lines:
        yield re.split(r"  | #| \| |;|[,:]? or | <|\(|$", line.strip(), maxsplit=1)[0].strip()


def find_command(words: list[str]) -> tuple[click.Command, list[str]]:
    command: click.Command = cli
    context = click.Context(cli)
    while words and isinstance(command, click.Group) and (child := command.get_command(context, words[0])) is not None:
        command, words = child, words[1:]
    return command, words


def options_of(command: click.Command) -> set[str]:
    context = click.Context(command, help_option_names=["-h", "--help"])
    return {name for option in command.get_params(context) for name in (*option.opts, *option.secondary_opts)}


def all_options(command: click.Command = cli) -> set[str]:
    children = command.list_commands(click.Context(command)) if isinstance(command, click.Group) else ()
    found = (command.get_command(click.Context(command), name) for name in children)  # type: ignore[attr-defined]
    return options_of(command).union(*(all_options(child) for child in found if child is not None))


def test_documented_commands_and_their_options_exist() -> None:
    for page in PAGES:
        for line in documented_commands(page):
            words = shlex.split(line.partition(" -- ")[0])
            command, rest = find_command(words)
            if words and not words[0].startswith("-"):
                assert command is not cli, f"{page.name}: mulligan {line}"
            used = {
                word.partition("=")[0].rstrip(",.") for word in rest if re.match(r"--[a-z]", word) and "..." not in word
            }
            assert used <= options_of(command) | {"--version", "--help"}, f"{page.name}: mulligan {line}"


OTHER_OPTIONS = {
    "--alike", "--append", "--doors", "--group", "--half", "--isolated", "--max-examples", "--no-deps", "--only",
    "--record", "--rounds", "--update", "--update-golden", "--write",
}  # fmt: skip
"""Options of pytest, pip and our scripts."""


def test_options_named_in_prose_exist() -> None:
    known_options = all_options() | OTHER_OPTIONS
    for page in PAGES:
        named = {match[0] for text in inline_code(page) if (match := re.match(r"--[a-z][a-z-]+", text))}
        unknown = {name for name in named - known_options if not name.startswith("--mulligan-")}
        assert unknown == set(), page.name


# Settings


def known_variables() -> set[str]:
    sources = "".join(path.read_text() for path in (*SOURCE.rglob("*.py"), *(ROOT / "tests").glob("*.py")))
    return {f"MULLIGAN_{name.upper()}" for name in SETTING_NAMES} | set(re.findall(r'"(MULLIGAN_[A-Z_]+)"', sources))


def test_documented_environment_variables_exist() -> None:
    known = known_variables() | {"MULLIGAN_NAME"}
    for page in PAGES:
        assert set(re.findall(r"\bMULLIGAN_[A-Z_]*[A-Z]\b", read(page))) <= known, page.name


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "toml")], ids=lambda path: path.stem)
def test_documented_settings_files_are_valid(page: Path, tmp_path: Path) -> None:
    for number, text in enumerate(blocks(page, "toml")):
        assert tomllib.loads(text)
        file = tmp_path / f"{number}.toml"
        file.write_text(text)
        load_settings(environment={}, folder=tmp_path, user_file=file)


# Kinds, endpoints, metrics, names


KIND = r"(?<![\w/.-])(?:tool|model|retrieval|orchestration|none)/[a-z_]+(?![\w/.*-])"


def test_documented_kinds_exist() -> None:
    for page in PAGES:
        own_kinds = set(re.findall(r'^\[kinds\."([^"]+)"\]', read(page), re.MULTILINE))
        named = set(re.findall(KIND, read(page)))
        assert named - own_kinds <= set(KINDS), page.name


def test_documented_endpoints_exist() -> None:
    paths = {re.sub(r"\{\w+\}", "ID", path) for path in api_document()["paths"]}
    for page in PAGES:
        for path in re.findall(r"(?<![\w:.}])/(?:v1|api/public)/[\w/{}.-]*", read(page)):
            path = re.sub(r"\{\w+\}", "ID", path.rstrip("./"))
            fits = any(re.fullmatch(re.escape(known).replace("ID", r"[^/]+"), path) for known in paths)
            assert fits or path == "/v1", f"{page.name}: {path}"


def test_every_error_code_of_the_api_is_documented_with_its_status() -> None:
    sources = "".join(path.read_text() for path in (SOURCE / "server").glob("*.py"))
    rows = re.findall(r"^\| (\d{3}) \| ([^|]+) \|", read(ROOT / "docs" / "http-api.md"), re.MULTILINE)
    documented = {(status, code) for status, codes in rows for code in re.findall(r"`(\w+)`", codes)}
    assert documented == set(re.findall(r'ApiError\((\d{3}), "(\w+)"', sources))


def test_every_metric_of_stats_is_documented() -> None:
    page = read(ROOT / "docs" / "report.md").partition("### Metrics")[2]
    named = set(re.findall(r"`(\w+)`", page))
    assert set(to_facts(Cell())) - named == set()


OTHER_NAMES = (
    "mulligan.toml",
    "mulligan.db",
    "mulligan.py",
    "mulligan.service",
    "mulligan.example",
    "mulligan.tenant",
    "mulligan.failure.",
)
"""Files, a host, a setting of PostgreSQL, and attributes of spans that other programs send."""


def test_documented_python_names_exist() -> None:
    attributes = (SOURCE / "otel.py").read_text()
    for page in PAGES:
        for text in inline_code(page):
            for name in re.findall(r"(?<![\w/.@-])mulligan(?:\.\w+)+", text):
                if name.startswith(OTHER_NAMES) or f'"{name}' in attributes:
                    continue
                assert can_resolve(name), f"{page.name}: {name}"


def can_resolve(name: str) -> bool:
    """Whether a dotted name is a module of the package, or an attribute of one."""
    parts = name.split(".")
    for count in range(len(parts), 0, -1):
        try:
            value = importlib.import_module(".".join(parts[:count]))
        except ImportError:
            continue
        for part in parts[count:]:
            if not hasattr(value, part):
                return logger_exists(name)
            value = getattr(value, part)
        return True
    return False


def logger_exists(name: str) -> bool:
    return f'"{name}"' in (SOURCE / "logging.py").read_text()


def test_the_checks_see_what_does_not_exist(tmp_path: Path) -> None:
    page = tmp_path / "page.md"
    page.write_text("`mulligan rums`, `mulligan.rum`\n\n```\n$ mulligan show last --fool   text\n```\n")
    assert list(documented_commands(page)) == ["show last --fool", "rums"]
    assert find_command(["rums"])[0] is cli
    assert "--fool" not in options_of(find_command(["show"])[0])
    assert not can_resolve("mulligan.rum")
    assert can_resolve("mulligan.classify.results.is_error_result")


# Blocks, targets, anchors


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page, "json")], ids=lambda path: path.stem)
def test_blocks_of_json_are_json(page: Path) -> None:
    for text in blocks(page, "json"):
        json.loads(text)


def test_documented_make_targets_and_scripts_exist() -> None:
    targets = set(re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    for page in ALL_PAGES:
        commands = "\n".join([*inline_code(page), *blocks(page, "", "sh")])
        assert set(re.findall(r"^make ([a-z][a-z-]+)", commands, re.MULTILINE)) <= targets, page.name
        for script in re.findall(r"(?:python |`)((?:benchmarks|evals|scripts|examples|tests)/[\w/.]+)", read(page)):
            assert (ROOT / script).exists(), f"{page.name}: {script}"


def slug(heading: str) -> str:
    """The anchor of a heading, as GitHub and the site make it."""
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading).lower()
    return re.sub(r"[^\w\- ]", "", text).strip().replace(" ", "-")


@cache
def anchors(page: Path) -> set[str]:
    return {slug(heading) for heading in re.findall(r"^#+ (.*)$", FENCE.sub("", page.read_text()), re.MULTILINE)}


def test_links_to_sections_lead_somewhere() -> None:
    for page in ALL_PAGES:
        for file, anchor in re.findall(r"\]\(([^)#\s]*)#([^)]+)\)", prose(page)):
            if "://" not in file:
                target = (page.parent / file).resolve() if file else page
                assert anchor in anchors(target), f"{page.name} links to {file}#{anchor}"


# Figures and reasons


MEASURING = re.compile(r"(?:python )?(?:benchmarks|evals)/[\w/]+(?:\.py)?|\bmake (?:bench|eval-\w+)")
MEASURED = re.compile(r"\b[Mm]easured\b.*?\b20\d\d-[01]\d-[0-3]\d\b", re.DOTALL)


WITHOUT_FIGURES = {
    ("reflect.md", "## Measure your model"),
    ("operations.md", "## Set up PostgreSQL"),
    ("search.md", "## The index"),
}
"""Sections that name such a command and give none of its figures."""


def sections(text: str) -> list[str]:
    """The sections of a page, each with its heading. A heading in a block is none."""
    masked = FENCE.sub(lambda match: match[0].replace("\n#", "\n "), text)
    starts = [0, *(match.start() for match in re.finditer(r"^#+ ", masked, re.MULTILINE)), len(text)]
    return [text[start:end] for start, end in itertools.pairwise(starts)]


def test_measured_figures_have_the_date_of_the_measurement() -> None:
    for page in PAGES:
        for section in sections(read(page)):
            has_figures = bool(re.search(r"\d", re.sub(r"^#.*", "", section)))
            if (
                MEASURING.search(section)
                and has_figures
                and (page.name, section.splitlines()[0]) not in WITHOUT_FIGURES
            ):
                assert MEASURED.search(section), f"{page.name}: {section.splitlines()[0]}"


def test_reasons_in_the_faq_are_reasons_of_the_code() -> None:
    table = read(ROOT / "docs" / "faq.md").partition("| Reason |")[2].partition("\n\n")[0]
    reasons = re.findall(r"^\| ([a-z][^|]*?) \|", table, re.MULTILINE)
    assert len(reasons) > 12
    code = " ".join(
        path.read_text() for path in (*(SOURCE / "recover").glob("*.py"), *(SOURCE / "capture").glob("*.py"))
    )
    code = re.sub(r"\\?\{[^{}]*\}", "{}", code)
    for reason in reasons:
        assert re.sub(r"\b\d+\b", "{}", reason) in code, reason
