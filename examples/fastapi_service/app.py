"""A service whose requests are runs: tools recover inside them, and failures become responses."""

from collections.abc import AsyncIterator

from fastapi import Depends, FastAPI, Request
from fastapi.responses import JSONResponse

import mulligan
from mulligan import InfraError

app = FastAPI()
outages = [TimeoutError("no answer in 5 s")]


async def start_run(request: Request) -> AsyncIterator[None]:
    """Start a run for each request, linked to the run of the caller if it sends its headers."""
    with mulligan.run("support-api", traceparent=request.headers):
        yield


@mulligan.tool(effects="none", clamp=["limit"])  # ten orders are a good answer to a request for more
async def find_orders(customer: str, limit: int) -> list[str]:
    if outages:
        raise outages.pop()
    if limit > 10:
        raise mulligan.AgentError(f"limit must be 10 or less, got {limit}.", hint="Ask for 10, then page.")
    return [f"{customer}-{number}" for number in range(limit)]


@mulligan.tool(effects="none")
def read_balance(customer: str) -> int:
    raise InfraError("ledger at 10.0.0.7 is sealed")


@app.get("/orders/{customer}", dependencies=[Depends(start_run)])
async def orders(customer: str, limit: int = 5) -> list[str]:
    return await find_orders(customer, limit=limit)


@app.get("/balance/{customer}", dependencies=[Depends(start_run)])
def balance(customer: str) -> int:
    return read_balance(customer)


@app.exception_handler(InfraError)
async def report_outage(request: Request, error: InfraError) -> JSONResponse:
    """Answer without the message, which may name internals."""
    return JSONResponse(error.to_tool_response(), status_code=503)
