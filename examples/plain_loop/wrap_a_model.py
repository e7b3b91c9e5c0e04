"""Wrap an LLM call: a rate limit is retried after the delay that the provider requests."""

import asyncio

import mulligan


class RateLimited(Exception):
    status_code = 429
    headers = {"retry-after": "0.2"}  # noqa: RUF012 - as HTTP clients have it


answers = [RateLimited("Too many requests"), "Hello."]


@mulligan.model
async def chat(messages: list[dict[str, str]]) -> str:
    """Fake provider: rejects the first request with a rate limit."""
    answer = answers.pop(0)
    if isinstance(answer, Exception):
        raise answer
    return answer


async def main() -> None:
    async with mulligan.run("greeter") as run:
        print(await chat([{"role": "user", "content": "Say hello."}]))
    print(f"run {run.id} is {run.status}")


asyncio.run(main())
