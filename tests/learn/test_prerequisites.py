"""What had been missing: the shortest set of calls after which the same arguments worked."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from mulligan.contract.store import FixQuery, hash_value
from mulligan.core.records import Change, Prerequisite, encode
from mulligan.learn import prerequisites
from mulligan.learn.fixes import FixAction, FixRecord, OperatorDecision, TrialDetails, Vote
from mulligan.learn.telling import Profile


def tally(*names: str, worked: int = 1, tried: int | None = None, agents: dict[str, int] | None = None) -> FixRecord:
    form = FixAction(type="prerequisite", tools=names)
    return FixRecord(
        id=f"fix_{'_'.join(names)}", tool="start", fingerprint="f", action=form, successes=worked,
        trials=worked if tried is None else tried, agents=agents or {},
    )  # fmt: skip


def told(found: list[prerequisites.SupportedFix]) -> list[Any]:
    """That which explains the most first."""
    ordered = sorted(found, key=lambda each: (-each.successes, len(each.own_row.action.tools), each.own_row.id))
    return [(each.own_row.action.tools, each.successes, each.trials) for each in ordered]


def test_the_shortest_set_of_calls_that_was_enough_is_the_recipe_and_longer_ones_bear_it_out():
    known = [tally("press", worked=100), tally("status", "press", worked=30), tally("press", "light", worked=5)]
    assert told(prerequisites.find_prerequisites(known)) == [(("press",), 135, 135)]


def test_two_calls_that_were_never_enough_alone_are_one_recipe():
    known = [
        tally("lock", "press", worked=70),
        tally("lock", worked=0, tried=9),
        tally("lock", "status", "press", worked=8),
    ]
    assert told(prerequisites.find_prerequisites(known)) == [(("lock", "press"), 78, 78)]


def test_one_lucky_run_does_not_hide_what_most_needed():
    known = [tally("lock", "press", worked=70), tally("status", worked=1), tally("press", worked=1)]
    assert told(prerequisites.find_prerequisites(known))[0] == (("lock", "press"), 70, 70)


def test_what_failed_after_the_same_calls_counts_against_it():
    known = [tally("press", worked=6, tried=10), tally("press", "status", worked=0, tried=2)]
    assert told(prerequisites.find_prerequisites(known)) == [(("press",), 6, 12)]


tallies = st.lists(
    st.builds(
        lambda names, worked, failed, agents: tally(*names, worked=worked, tried=worked + failed, agents=agents),
        st.lists(st.sampled_from("abcdef"), min_size=1, max_size=6, unique=True),
        st.sampled_from([0, 1, 1, 1, 2, 9]),
        st.integers(0, 2),
        st.dictionaries(st.sampled_from([f"agent_{number}" for number in range(12)]), st.integers(1, 3)),
    ),
    max_size=20,
    unique_by=lambda each: each.id,
)


def by_definition(known: list[FixRecord]) -> list[Any]:
    """What a recipe is, said set by set."""

    def above(row: FixRecord) -> list[FixRecord]:
        return [each for each in known if set(row.action.tools) <= set(each.action.tools)]

    def is_enough(row: FixRecord) -> bool:
        is_short = 0 < len(row.action.tools) <= prerequisites.MAX_PREREQUISITE_CALLS
        return is_short and row.successes > 0 and row.successes >= 0.2 * sum(each.successes for each in above(row))

    enough = [row for row in known if is_enough(row)]
    found: dict[frozenset[str], FixRecord] = {}
    for row in sorted(enough, key=lambda each: each.id, reverse=True):
        if not any(set(other.action.tools) < set(row.action.tools) for other in enough):
            found[frozenset(row.action.tools)] = row
    sums = [(row, sum(each.successes for each in above(row)), sum(each.trials for each in above(row)))
            for row in found.values()]  # fmt: skip
    sums.sort(key=lambda each: (-each[1], len(each[0].action.tools), each[0].id))
    return [(row.action.tools, worked, tried) for row, worked, tried in sums]


@given(tallies)
def test_recipes_are_those_sets_of_calls_that_were_enough_and_of_which_no_part_was(known):
    assert told(prerequisites.find_prerequisites(known)) == by_definition(known)
    assert told(prerequisites.find_prerequisites(known, 2)) == [each for each in by_definition(known) if each[1] >= 2]


@given(tallies, tallies, st.sampled_from(["", "agent_0", "agent_7"]), st.booleans())
def test_a_few_fixes_are_the_first_of_all_of_them_and_no_others_are_put_together(own, alike, agent, revokes):
    groups = [(1.0, own), (0.7, [tally(*each.action.tools, "z", worked=each.successes) for each in alike])]
    verdicts = {each.id: OperatorDecision(revoked=1) for each in own[::2]} if revokes else {}
    asked: list[str] = []

    def samples(ids: Any) -> dict[str, Any]:
        asked.extend(ids)
        return {}

    known = prerequisites.FixContext(
        verdicts,
        prerequisites.PromotionFacts,
        samples,
        lambda tally, since: tally,
        lambda tool, key: Profile(),
        lambda tool, fingerprint: 0,
    )
    query = FixQuery(tool="start", fingerprint="f", agent=agent, now=1, limit=1000)
    every = prerequisites.rank_fixes(groups, query, known)
    assert not {each.id for each in every} & verdicts.keys()
    order = [(-each.similarity, agent not in each.agents, -each.successes, each.trials, each.id) for each in every]
    assert order == sorted(order)
    asked.clear()
    few = prerequisites.rank_fixes(groups, FixQuery(tool="start", fingerprint="f", agent=agent, now=1, limit=3), known)
    assert few == every[:3]
    assert len(asked) <= 3 * prerequisites.MAX_SOURCE_FIXES
    kept = [(likeness, [prerequisites.FixSummary.of(encode(each)) for each in rows]) for likeness, rows in groups]
    assert prerequisites.rank_fixes(kept, query, known) == every


def sample(**press: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("lock", {"unlock": False, "doors": ["left", "right"]}), ("press", press)]


FORM = FixAction(type="prerequisite", tools=("lock", "press"))


def test_an_argument_that_was_the_same_in_nearly_every_run_belongs_to_the_recipe():
    found = prerequisites.build_prerequisites(
        FORM, [sample(position=1.0), sample(position=1), sample(position=1.0), sample(position=0.5)]
    )
    assert found == (
        Prerequisite(tool="lock", arguments={"unlock": False, "doors": ["left", "right"]}),
        Prerequisite(tool="press", arguments={"position": 1.0}),
    )


def test_an_argument_that_changes_with_the_run_is_named_and_not_repeated():
    found = prerequisites.build_prerequisites(FORM, [sample(who=f"user{n}") for n in range(5)])
    assert found[1] == Prerequisite(tool="press", variable_arguments=("who",))


def test_an_identifier_is_never_repeated_however_often_it_was_the_same():
    found = prerequisites.build_prerequisites(
        FORM, [sample(who="USR001", key="[hidden]", mail="a@b.example") for _ in range(9)]
    )
    assert found[1] == Prerequisite(tool="press", variable_arguments=("who", "key", "mail"))


def test_calls_come_in_the_order_in_which_they_were_mostly_made():
    swapped = [list(reversed(sample(position=1))) for _ in range(3)]
    assert [each.tool for each in prerequisites.build_prerequisites(FORM, [sample(position=1), *swapped])] == [
        "press",
        "lock",
    ]


def test_fix_of_another_tool_with_the_same_error_is_no_rival():
    def build_record(tool: str, path: str, after: int, runs: int) -> FixRecord:
        action = FixAction(changes=(Change(path=path, operation="substitute", after=after),))
        record = FixRecord(id=tool, tool=tool, fingerprint="f", action=action)
        for number in range(runs):
            details = TrialDetails(conditions={"q": f"{number}"})
            fields: dict[str, Any] = {"old_value": hash_value(50), "other_values": f"{number}", "details": details}
            record.add(Vote(f"run_{number}", "local", "", number, 0, successful=True, **fields))
        return record

    known = prerequisites.FixContext(
        {},
        prerequisites.PromotionFacts,
        lambda ids: {},
        lambda record, since: record,
        lambda tool, key: Profile(),
        lambda tool, fingerprint: 0,
    )
    groups = [(1.0, [build_record("top", "k", 10, runs=2)]), (1.0, [build_record("list", "size", 5, runs=9)])]
    fixes = prerequisites.rank_fixes(groups, FixQuery(now=1), known)
    assert {fix.tool: fix.hidden_reason for fix in fixes} == {"top": "", "list": ""}
