"""Trace a run: three attempts are three steps, and the run's status follows from them."""

import mulligan
from mulligan import Policy

answers = iter([ConnectionResetError("connection reset by peer"), TimeoutError("no answer in 30 s"), "rain"])


@mulligan.tool(effects="none", policy=Policy(initial_backoff=0.1))
def weather(city: str) -> str:
    answer = next(answers)
    if isinstance(answer, Exception):
        raise answer
    return f"{answer} in {city}"


with mulligan.run("weather-agent", version="2") as run:
    with run.step("plan", "read the question"):
        city = "Oslo"
    report = weather(city)  # three attempts, three steps
    with run.step("respond", "write the answer"):
        print(f"It is {report}.")

assert run.status == "recovered"  # succeeded after retries
print(f"run {run.id} is {run.status}")
