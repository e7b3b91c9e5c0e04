"""Typed tools: a model's JSON reaches a function in its types, and the program gets a typed outcome."""

from __future__ import annotations

import json

SHOP = """
    from __future__ import annotations

    import enum, json
    from dataclasses import dataclass
    from datetime import date
    from decimal import Decimal

    from pydantic import BaseModel

    import mulligan
    from mulligan.testing import ScriptedModel, call

    class Speed(enum.Enum):
        FAST = "fast"

    @dataclass
    class Item:
        name: str
        price: Decimal

    class Customer(BaseModel):
        name: str
        born: date

    received = []

    @mulligan.tool
    def order(items: list[Item], customer: Customer, day: date | None = None, speed: Speed = Speed.FAST) -> dict:
        received.append((items, customer, day, speed))
        return {"total": sum(item.price for item in items), "year": customer.born.year}
"""


def test_loop_calls_typed_tools_and_the_model_corrects_what_a_type_rejects(user):
    done = user.runs_program(
        SHOP
        + """
    ann = {"name": "Ann", "born": "1990-05-01"}
    items = [{"name": "lamp", "price": "19.90"}, {"name": "desk", "price": "cheap"}]
    corrected = [items[0], {"name": "desk", "price": 80}]
    model = ScriptedModel(
        call("order", items=items, customer=ann, day="2026-03-02", speed="fast"),
        call("order", items=corrected, customer=ann, day="2026-03-02", speed="fast"),
        "Ordered.",
    )
    done = mulligan.loop(model, [order], "Order a lamp and a desk for Ann.")
    assert received == [(
        [Item("lamp", Decimal("19.90")), Item("desk", Decimal(80))],
        Customer(name="Ann", born=date(1990, 5, 1)), date(2026, 3, 2), Speed.FAST,
    )], received
    print(done.status, done.text)
    for message in done.messages:
        if message["role"] == "tool":
            print(message["content"])
"""
    )
    assert done.returncode == 0, done.stderr
    status, rejection, result = done.stdout.splitlines()
    assert status == "recovered Ordered."
    assert json.loads(rejection)["error"] == "tool/invalid_arguments"
    assert "items.1.price" in json.loads(rejection)["message"]
    assert json.loads(result) == {"total": "99.90", "year": 1990}
    rejected, accepted = (step for step in user.sees("show", "last")["steps"] if step["name"] == "order")
    assert rejected["failure"]["took_effect"] == "no"
    assert "failure" not in accepted
    assert accepted["arguments"]["day"] == "2026-03-02"  # the record has the JSON of the model


def test_program_tells_success_repair_and_failure_apart_by_the_outcome(user):
    done = user.runs_program("""
        import mulligan
        from mulligan import AgentError

        @mulligan.tool(clamp=["top_k"], category="other")
        def search(query: str, top_k: int = 5) -> dict:
            if query == "boom":
                raise TimeoutError("no answer")
            if query == "odd":
                return {"error": True, "message": "The index is damaged."}
            if top_k > 10:
                raise AgentError(f"top_k must be 10 or less, got {top_k}.")
            return {"recoverable": True, "error": None, "rows": top_k}

        for turn in mulligan.turns(limit=1):
            for arguments in ({"query": "fish"}, {"query": "fish", "top_k": 50}, {"query": "boom"}, {"query": "odd"}):
                outcome = turn.call([search], "search", arguments)
                rows = outcome.value["rows"] if outcome.ok else None
                kind = outcome.failure.kind if outcome.failure else None
                print(outcome.ok, rows, kind, len(outcome.notes), "mulligan" in outcome.to_message())
    """)
    assert done.stdout.splitlines() == [
        "True 5 None 0 False",
        "True 10 None 1 True",
        "False None tool/timeout 0 False",
        "False None tool/execution_failed 0 True",
    ], done.stderr


def test_failure_of_any_program_can_be_returned_to_a_model(user):
    done = user.runs_program("""
        import json, mulligan

        def handle(error):
            print(json.dumps(mulligan.classify_error(error).to_tool_response(tool="fetch")))

        handle(ConnectionRefusedError("port 8080 is closed"))
        handle(mulligan.AgentError("Read the file first.", code="stale_file"))
        handle(mulligan.InfraError("db-3.internal is down"))
    """)
    refused, stale, hidden = map(json.loads, done.stdout.splitlines())
    assert refused["error"] == "tool/connection_error"
    assert refused["message"].startswith("[said by fetch, data only")
    assert (stale["error"], stale["recoverable"]) == ("tool/stale_file", True)
    assert "db-3" not in str(hidden)
    assert hidden["recoverable"] is False
