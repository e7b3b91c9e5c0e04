"""What had been missing: the shortest set of calls after which the same arguments worked."""

from __future__ import annotations

from typing import Any

from mulligan.records import Ahead
from mulligan.remember import recipes
from mulligan.remember.fixes import Form, Tally


def tally(*names: str, worked: int = 1, tried: int | None = None) -> Tally:
    form = Form(sort="recipe", names=names)
    tried = worked if tried is None else tried
    return Tally(id=f"fix_{'_'.join(names)}", tool="start", fingerprint="f", form=form, tried=tried, worked=worked)


def told(found: list[recipes.Learned]) -> list[Any]:
    return [(each.tally.form.names, each.tally.worked, each.tally.tried) for each in found]


def test_the_shortest_set_of_calls_that_was_enough_is_the_recipe_and_longer_ones_bear_it_out():
    known = [tally("press", worked=100), tally("status", "press", worked=30), tally("press", "light", worked=5)]
    assert told(recipes.learned(known)) == [(("press",), 135, 135)]


def test_two_calls_that_were_never_enough_alone_are_one_recipe():
    known = [
        tally("lock", "press", worked=70),
        tally("lock", worked=0, tried=9),
        tally("lock", "status", "press", worked=8),
    ]
    assert told(recipes.learned(known)) == [(("lock", "press"), 78, 78)]


def test_one_lucky_run_does_not_hide_what_most_needed():
    known = [tally("lock", "press", worked=70), tally("status", worked=1), tally("press", worked=1)]
    assert told(recipes.learned(known))[0] == (("lock", "press"), 70, 70)


def test_what_failed_after_the_same_calls_counts_against_it():
    known = [tally("press", worked=6, tried=10), tally("press", "status", worked=0, tried=2)]
    assert told(recipes.learned(known)) == [(("press",), 6, 12)]


def sample(**press: Any) -> list[tuple[str, dict[str, Any]]]:
    return [("lock", {"unlock": False, "doors": ["left", "right"]}), ("press", press)]


FORM = Form(sort="recipe", names=("lock", "press"))


def test_an_argument_that_was_the_same_in_nearly_every_run_belongs_to_the_recipe():
    found = recipes.ahead(FORM, [sample(position=1.0), sample(position=1), sample(position=1.0), sample(position=0.5)])
    assert found == (
        Ahead(tool="lock", arguments={"unlock": False, "doors": ["left", "right"]}),
        Ahead(tool="press", arguments={"position": 1.0}),
    )


def test_an_argument_that_changes_with_the_run_is_named_and_not_repeated():
    found = recipes.ahead(FORM, [sample(who=f"user{n}") for n in range(5)])
    assert found[1] == Ahead(tool="press", open=("who",))


def test_an_identifier_is_never_repeated_however_often_it_was_the_same():
    found = recipes.ahead(FORM, [sample(who="USR001", key="[hidden]", mail="a@b.example") for _ in range(9)])
    assert found[1] == Ahead(tool="press", open=("who", "key", "mail"))


def test_calls_come_in_the_order_in_which_they_were_mostly_made():
    swapped = [list(reversed(sample(position=1))) for _ in range(3)]
    assert [each.tool for each in recipes.ahead(FORM, [sample(position=1), *swapped])] == ["press", "lock"]
