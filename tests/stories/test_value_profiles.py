"""A value that no successful call had: a model and a person read what the successes had in common, in a new process."""

from __future__ import annotations

import json

FORECAST = """
    import json
    import os
    import mulligan

    @mulligan.tool(effects="none")
    def forecast(city, days, account="a"):
        if days > 7:
            raise mulligan.AgentError("Invalid days: the forecast ends earlier.")
        if account == "zzz":
            raise mulligan.AgentError("Bad account.")
        return "sun"

    for arguments in json.loads(os.environ["CALLS"]):
        with mulligan.run("weather"):
            for turn in mulligan.turns():
                outcome = turn.call([forecast], "forecast", arguments)
                break
    print(json.dumps([outcome.to_dict() if not outcome else "fine", outcome.ok]))
"""


def call_forecast(user, *calls):
    done = user.runs_program(FORECAST, CALLS=json.dumps(calls))
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_model_reads_the_range_of_successful_calls_and_nothing_is_changed(user):
    call_forecast(user, *({"city": "Bern", "days": 1 + at % 7, "account": "blue"} for at in range(24)))

    answer, ok = call_forecast(user, {"city": "Bern", "days": 30})
    assert not ok
    assert answer["facts"] == ["In 24 successful calls, days was between 1 and 7."]
    assert "suggestions" not in answer

    answer, _ = call_forecast(user, {"city": "Bern", "days": 3, "account": "zzz"})
    assert "facts" not in answer  # privileged


def test_person_reads_the_same_fact_from_suggest(user):
    call_forecast(user, *({"city": "Bern", "days": 1 + at % 7} for at in range(24)))
    failed_call = {"tool": "forecast", "arguments": {"days": 30}, "error": "Invalid days: the forecast ends earlier."}

    (line,) = user.types("suggest", "--json", stdin=json.dumps(failed_call)).stdout.splitlines()
    assert json.loads(line)["facts"] == ["In 24 successful calls, days was between 1 and 7."]


def test_person_reads_the_same_fact_beside_the_failed_call_of_a_run(user):
    call_forecast(user, *({"city": "Bern", "days": 1 + at % 7} for at in range(24)))
    call_forecast(user, {"city": "Bern", "days": 30})

    assert "> fact: In 24 successful calls, days was between 1 and 7." in user.types("show", "last").stdout
    (call,) = user.sees("show", "last")["calls"]
    assert call["facts"] == ["In 24 successful calls, days was between 1 and 7."]


def test_few_successful_calls_say_nothing(user):
    call_forecast(user, *({"city": "Bern", "days": 1 + at % 7} for at in range(12)))

    answer, _ = call_forecast(user, {"city": "Bern", "days": 30})
    assert "facts" not in answer
