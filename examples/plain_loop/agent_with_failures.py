"""Run an agent whose calls fail in seven ways and see how each one ends. Then run: mulligan show last"""

import mulligan
from mulligan import AgentError, InfraError, Policy
from mulligan.testing import ScriptedModel, call

QUICK = Policy(initial_backoff=0.05)
asked: dict[str, int] = {}
paid: set[str] = set()


class Busy(Exception):
    status_code = 503


def times(name: str) -> int:
    asked[name] = asked.get(name, 0) + 1
    return asked[name]


@mulligan.tool(effects="none", policy=QUICK)
def weather(city: str) -> str:
    """Fails once with status 503: recovered by a retry."""
    if times("weather") == 1:
        raise Busy("overloaded, try again in 0.1s")
    return f"rain in {city}"


@mulligan.tool(effects="none", policy=QUICK)
def search(query: str, top_k: int = 5) -> list[str]:
    """Rejects an argument before execution: repaired."""
    if top_k > 10:
        raise AgentError(f"top_k must be 10 or less, got {top_k}.")
    return [query] * top_k


@mulligan.tool(verify=lambda invoice: f"receipt of {invoice}" if invoice in paid else False)
def pay(invoice: str) -> str:
    """Pays, but times out: `verify` confirms the payment, so it is not repeated."""
    paid.add(invoice)
    raise TimeoutError("no answer in 30 s")


@mulligan.tool
def send(to: str) -> None:
    """Times out with an unknown outcome: reported to the model, not retried."""
    raise TimeoutError("no answer in 30 s")


@mulligan.tool(effects="none")
def forecast(city: str, days: int) -> str:
    """Rejects a value that no rule can repair: recovered by the model."""
    if days > 7:
        raise ValueError("This range is not supported.")
    return f"{days} days of rain in {city}"


@mulligan.tool(effects="none")
def ticket(number: int) -> str:
    """Fails the same way each time: the third call is blocked."""
    raise KeyError(number)


@mulligan.tool
def vault() -> None:
    """Needs a person: the exception leaves the loop."""
    raise InfraError("the vault is sealed")


model = ScriptedModel(
    call("weather", city="Oslo"),
    call("functions.search", query="refunds", top_k=50),
    call("pay", invoice="INV-1"),
    call("send", to="anna"),
    call("forecast", city="Oslo", days=30),
    call("forecast", city="Oslo", days=7),
    *[call("ticket", number=7)] * 3,
    "Paid, and it will rain. I do not know whether the mail was sent; ticket 7 could not be read.",
)
done = mulligan.loop(model, [weather, search, pay, send, forecast, ticket], "Pay INV-1, then tell me more.", limit=12)
print(done.text, done.report, f"{done.status}: {done.end_reason}", sep="\n\n")

try:
    mulligan.loop(ScriptedModel(call("vault")), [vault], "Open the vault.")
except InfraError as error:
    print(f"\n{error}", *error.__notes__, sep="\n")
