"""What worked after the same failure in earlier sessions of one folder."""

from __future__ import annotations

import pytest

import mulligan
from mulligan.core.records import Link, Step
from mulligan.core.run_links import link_recoveries
from mulligan.learn.working_calls import PastFailure, find_working_call

MISSING = "Exit code 1\nrun.sh: config.json is missing"


def shell(seq: int, command: str, error: str = "", run: str = "run_1") -> Step:
    failure = mulligan.classify_error(error) if error else None
    return Step(
        run=run, seq=seq, call=seq, name="Bash", type="tool", arguments={"command": command},
        outcome="failure" if error else "success", failure=failure,
    )  # fmt: skip


def remember(*sessions: list[tuple[str, str]], advice: tuple[str, ...] = ()) -> list[PastFailure]:
    """Record sessions: each is a list of commands with their errors."""
    past_failures = []
    for number, commands in enumerate(sessions):
        steps = [shell(seq, command, error, f"run_{number}") for seq, (command, error) in enumerate(commands, 1)]
        links = {link.failed_call: link for link in link_recoveries(steps)}
        for step in steps:
            if step.has_failed:
                link = links.get(step.call)
                last = link.recovering_call if link else len(steps)
                later = [other for other in steps if step.seq < other.seq <= last]
                if link and advice:
                    link = Link(**{name: getattr(link, name) for name in link.__struct_fields__} | {"advice": advice})
                past_failures.append(PastFailure(step, link, later))
    return past_failures


RUN, SETUP = ("sh run.sh", MISSING), ("sh setup.sh", "")
PREPARED = [RUN, RUN, SETUP, ("sh run.sh", "")]


def find(past: list[PastFailure], command: str = "sh run.sh", error: str = MISSING) -> tuple[str, bool, int] | None:
    found = find_working_call(shell(1, command, error, "run_new"), past)
    return (found.call, found.is_before, found.sessions) if found else None


def test_command_after_which_the_same_command_succeeded_is_found_from_the_third_session_on():
    assert find(remember(*[PREPARED] * 3)) == ("sh setup.sh", True, 3)
    assert find(remember(*[PREPARED] * 2)) is None


def test_corrected_command_is_found_from_the_third_session_on():
    error = "bash: pyhton: command not found"
    past = remember(*[[("pyhton app.py", error), ("python3 app.py", "")]] * 3)
    assert find(past, "pyhton app.py", error) == ("python3 app.py", False, 3)
    assert find(past, "pyhton other.py", error) is None


@pytest.mark.parametrize(
    "sessions",
    [
        [[RUN, SETUP, ("sh run.sh", "")]] * 4,  # no session in which it failed without the call: perhaps time did it
        [[RUN, RUN, ("ls", ""), ("sh run.sh", "")]] * 5,  # a call that reads causes nothing
        [PREPARED] * 3 + [[RUN]] * 3,  # as often, nothing helped
        [PREPARED] * 3 + [[RUN, ("sh run.sh", "")]],  # it also succeeded without
    ],
    ids=["no contrast", "read", "unrecovered", "retry"],
)
def test_coincidences_are_not_found(sessions):
    assert find(remember(*sessions)) is None


def test_error_that_names_the_script_needs_no_contrast():
    error = "Exit code 1\nconfig.json is missing: run setup.sh"
    past = remember(*[[("sh run.sh", error), SETUP, ("sh run.sh", "")]] * 3)
    assert find(past, error=error) == ("sh setup.sh", True, 3)


def test_success_after_advice_is_no_vote():
    assert find(remember(*[PREPARED] * 3, advice=("fix_1",))) is None


def test_what_a_person_decided_counts_more_than_sessions():
    (*_, last) = remember(PREPARED)
    approved = PastFailure(last.step, last.link, last.later_steps, is_approved=True)
    assert find([approved]) == ("sh setup.sh", True, 1)
    revoked = [
        PastFailure(past.step, past.link, past.later_steps, is_revoked=True) for past in remember(*[PREPARED] * 5)
    ]
    assert find(revoked) is None


@pytest.mark.parametrize(
    ("failed", "later"),
    [
        ("ModuleNotFoundError: No module named 'flask'", "ModuleNotFoundError: No module named 'requests'"),
        ("Could not connect to flask-db on port 5432", "Could not connect to web-db on port 5432"),
    ],
)
def test_what_worked_for_another_value_is_not_said(failed, later):
    install = ("pip install flask" if "Module" in failed else "docker start flask-db", "")
    past = remember(*[[("sh run.sh", failed), ("sh run.sh", failed), install, ("sh run.sh", "")]] * 5)
    assert find(past, error=failed) == (install[0], True, 5)
    assert find(past, error=later) is None


def test_first_line_of_several_is_not_said_to_have_worked():
    script = ("python3 - <<'EOF'\nopen('config.json', 'w')\nEOF", "")
    assert find(remember(*[[RUN, RUN, script, ("sh run.sh", "")]] * 5)) is None
