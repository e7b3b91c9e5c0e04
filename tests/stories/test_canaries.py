"""Values that must not be written down, planted wherever a user might put one, and looked for in every byte.

Canaries are made in the user's program from pieces, so that what is found was written by mulligan and not by the test.
"""

from __future__ import annotations

import random
import string
from pathlib import Path

import pytest

_draw = random.Random(1907)


def _some(length: int, alphabet: str = string.ascii_letters + string.digits) -> str:
    return "".join(_draw.choice(alphabet) for _ in range(length))


_HEX = "0123456789abcdef"
# By their shape; and, below, by nothing but their name: words that no detection could tell.
SHAPED = {
    "argument": "gh" + "p_" + _some(36),
    "result": "sk" + "-proj-" + _some(48),
    "message": "xo" + "xb-" + _some(12, string.digits) + "-" + _some(12, string.digits) + "-" + _some(24),
    "note": "AK" + "IA" + _some(16, string.ascii_uppercase + "234567"),
    "cause": "gl" + "pat-" + _some(20),
    "stack": "np" + "m_" + _some(36),
    "frame": "gh" + "o_" + _some(36),
    "context": "h" + "f_" + _some(34, string.ascii_letters),
    "metadata": "sk" + "_live_" + _some(24),
    "hint": "do" + "p_v1_" + _some(64, _HEX),
    "person": "canary.nine@mail.acme.io",
    "card": "4539 5787 6362 1486",
    "address": _some(14),
    "change": "SG" + "." + _some(22) + "." + _some(43),
    "environment": "pu" + "l-" + _some(40, _HEX),
    "agent": "tv" + "ly-" + _some(32),
}
NAMED = {
    "password": "kumquat lantern orchard",
    "api_key": "marmalade-window",
    "client_secret": "tangerine.harbour",
    "badge": "violet umbrella",
    "pin": "739154",
}

PROGRAM = r"""
    import asyncio, logging, os, sys
    logging.basicConfig(level=logging.DEBUG, stream=sys.stderr)

    import mulligan
    from mulligan import AgentError

    SHAPED, NAMED = {shaped!r}, {named!r}
    mulligan.configure(redact_names=["badge"])

    @mulligan.tool(effects="none")
    def sign_in(user, password, options):
        return {{"access_token": SHAPED["result"], "said": "welcome, " + password, "options": options}}

    @mulligan.tool
    def fails(password, note=""):
        local = SHAPED["stack"]
        try:
            names = {{"refused": ValueError("refused: " + SHAPED["cause"])}}
            source = "def " + SHAPED["frame"] + "(): raise refused"
            exec(compile(source, "/srv/" + SHAPED["frame"] + "/app.py", "exec"), names)
            names[SHAPED["frame"]]()
        except ValueError as cause:
            error = RuntimeError(f"{{SHAPED['message']}}: {{password}} failed for {{SHAPED['person']}}")
            error.add_note("token=" + SHAPED["note"] + " local " + local)
            raise error from cause

    @mulligan.tool(clamp=["top_k"])
    def refuses(client_secret, top_k=5, key=""):
        if top_k > 10:
            raise AgentError(
                f"top_k must be 10 or less, got {{top_k}}; {{client_secret}} is known.",
                hint="Ask for 10 with " + SHAPED["hint"],
            )
        return "postgres://app:" + SHAPED["address"] + "@db/prod"

    @mulligan.tool
    def never(badge, pin):
        everything = repr(dict(os.environ))[:4000]
        raise PermissionError(f"badge {{badge}} with {{pin}}, card {{SHAPED['card']}}: {{everything}}")

    @mulligan.model(policy=mulligan.Policy(attempts=2))
    def model(messages):
        raise TimeoutError("no answer to " + str(messages))

    with mulligan.run(
        "agent " + SHAPED["agent"],
        context="use " + SHAPED["context"] + " and never " + NAMED["api_key"],
        metadata={{"api_key": NAMED["api_key"], "about": SHAPED["metadata"], "list": [NAMED["api_key"]]}},
        session="chat-7",
        version="1.0",
    ):
        sign_in("ann", NAMED["password"], {{"api_key": NAMED["api_key"], "header": "Bearer " + SHAPED["argument"]}})
        for tool, arguments in (
            (fails, {{"password": NAMED["password"], "note": SHAPED["argument"]}}),
            (never, {{"badge": NAMED["badge"], "pin": NAMED["pin"]}}),
            (model, {{"messages": [{{"role": "user", "content": "my key is " + SHAPED["argument"]}}]}}),
        ):
            try:
                tool(**arguments)
            except Exception:
                pass
        refuses(NAMED["client_secret"], top_k=50, key=SHAPED["change"])
        for turn in mulligan.turns(limit=2):
            turn.call([fails, refuses], "fails", {{"password": NAMED["password"], "note": SHAPED["change"]}})
    try:
        with mulligan.run("crashes"):
            raise RuntimeError("the agent died with " + SHAPED["message"])
    except RuntimeError:
        pass
    print("done")
"""


def planted() -> str:
    return PROGRAM.format(shaped=SHAPED, named=NAMED)


ENVIRONMENT = {
    "PULUMI_ACCESS_TOKEN": SHAPED["environment"],
    "APP_PASSWORD": NAMED["password"],
    "MULLIGAN_AGENT": "env-agent",
}


@pytest.fixture
def lived(user):
    """A user whose agent has met every canary."""
    done = user.runs_program(planted(), **ENVIRONMENT)
    assert done.stdout.endswith("done\n"), done.stderr
    user.said = done.stderr
    return user


def found(raw: bytes, where: str) -> list[str]:
    """Canaries in some bytes, also as JSON or a URL would spell them."""
    birds = {**SHAPED, **NAMED}
    spelt = {(name, form) for name, bird in birds.items() for form in (bird, bird.replace(" ", "%20"), bird[:14])}
    return sorted({f"{name} in {where}" for name, form in spelt if form.encode() in raw})


def test_no_canary_is_in_any_file_under_the_home(lived):
    files = [path for path in lived.home.rglob("*") if path.is_file()]
    assert any(path.read_bytes().startswith(b"SQLite format 3") for path in files)
    assert [hit for path in files for hit in found(path.read_bytes(), path.name)] == []


def test_no_canary_is_in_what_was_logged(lived):
    assert found(lived.said.encode(), "the log") == []


@pytest.mark.parametrize(
    "words",
    [
        ["runs"], ["runs", "--json"], ["show", "last"], ["show", "last", "--json"], ["demo", "--fast"],
        ["demo", "--fast", "--json"], ["settings"], ["settings", "--json"],
    ],
    ids=" ".join,
)  # fmt: skip
def test_no_canary_is_shown(lived, words):
    said = lived.types(*words, **ENVIRONMENT)
    assert said.returncode in (0, 1), said.stderr
    assert found((said.stdout + said.stderr).encode(), " ".join(words)) == []


def test_every_run_is_shown_without_them_and_with_what_can_be_told(lived):
    shown = [lived.types("show", run["id"]).stdout for run in lived.sees("runs")]
    assert found("\n".join(shown).encode(), "show") == []
    for kind in ("password", "api_key", "secret", "badge", "github", "email"):
        assert any(f"[redacted {kind}]" in each for each in shown), kind


def test_a_process_that_is_killed_leaves_none_in_its_journal(user):
    killed = user.runs_program(planted().replace('print("done")', "os.kill(os.getpid(), 9)"), **ENVIRONMENT)
    assert killed.returncode == -9
    files = [path for path in user.home.rglob("*") if path.is_file()]
    assert files
    assert [hit for path in files for hit in found(path.read_bytes(), path.name)] == []


def test_at_level_shared_nothing_but_types_and_lengths_of_arguments_is_kept(user):
    words = "an ordinary sentence about zebras"
    done = user.runs_program(
        f"""
        import mulligan

        @mulligan.tool
        def search(query):
            return "three pages"

        with mulligan.run("librarian"):
            search({words!r})
        """,
        MULLIGAN_LEVEL="shared",
    )
    assert done.returncode == 0, done.stderr
    files: list[Path] = [path for path in user.home.rglob("*") if path.is_file()]
    assert not [path.name for path in files if words.encode() in path.read_bytes()]


def test_a_session_named_like_a_person_or_a_secret_is_not_kept_by_that_name(user):
    done = user.runs_program(f"""
        import mulligan

        with mulligan.run("greeter", session={SHAPED["person"]!r}):
            pass
    """)
    assert done.returncode == 0, done.stderr
    files = [path for path in user.home.rglob("*") if path.is_file()]
    assert [hit for path in files for hit in found(path.read_bytes(), path.name)] == []
