"""What programs do themselves about a failure: wait, try again, take something else, say so, go on, or give up."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from typing import Any

from learning.player import register_program
from learning.stage import Stage
from learning.truth import Arguments, Cure


@register_program
def poll_until_ready(stage: Stage) -> None:
    """A job that is not ready until the nth look. The looks before are no reason to refuse the next."""
    looks = 3 + stage.number % 5

    @stage.tool(effects="none")
    def get_job(job: str) -> str:
        nonlocal looks
        looks -= 1
        if looks > 0:
            raise RuntimeError(f"Job {job} is not finished yet.")
        return "done"

    with stage.run("exporter"):
        for _ in range(20):
            try:
                get_job(f"job-{stage.number}")
                break
            except RuntimeError:
                stage.sleep(2)


@register_program
async def poll_without_blocking(stage: Stage) -> None:
    """The same in a coroutine, beside another call that works all the time."""
    looks = 2 + stage.number % 4

    @stage.tool(effects="none")
    async def get_transcript(call: str) -> str:
        nonlocal looks
        looks -= 1
        if looks > 0:
            raise FileNotFoundError(f"no transcript of {call}")
        return "hello"

    @stage.tool(effects="none")
    async def heartbeat(worker: int) -> bool:
        return True

    with stage.run("callcenter"):
        while True:
            await heartbeat(worker=1)
            try:
                await get_transcript(f"call {stage.number}")
                return
            except FileNotFoundError:
                await asyncio.sleep(0)


@register_program
def mirrors_outside_a_handler(stage: Stage) -> None:
    """One mirror after another until one answers. Nothing says that they are the same: the run is partial."""
    mirrors = stage.random.sample(["alpha", "beta", "gamma", "delta"], 4)

    @stage.tool(effects="none")
    def download(mirror: str, package: str) -> str:
        if mirror == mirrors[0] or (mirror == mirrors[1] and stage.number % 2):
            raise RuntimeError(f"{mirror} does not have this package.")
        return f"{package} from {mirror}"

    with stage.run("installer"):
        for mirror in mirrors:
            with suppress(RuntimeError):
                download(mirror, package=f"parser-{stage.number}")
                break


@register_program
def own_retries(stage: Stage) -> None:
    """A program that tries again itself, with the same arguments, up to five times."""
    failures = {number: int(stage.draw_number("shaky", number) * 4) for number in range(4)}

    @stage.tool()
    def post_entry(number: int) -> str:
        failures[number] -= 1
        if failures[number] >= 0:
            raise RuntimeError("The ledger is busy with another booking.")
        return f"entry {number}"

    with stage.run("ledger"):
        for number in failures:
            for _ in range(5):
                try:
                    post_entry(number)
                    break
                except RuntimeError:
                    stage.sleep(1)


@register_program
def own_retries_in_vain(stage: Stage) -> None:
    """The same where one never works: every attempt is the program's own, and is made."""

    @stage.tool()
    def register_device(serial: str) -> str:
        if serial.endswith("7"):
            raise RuntimeError("The registry rejected the device.")
        return "registered"

    with stage.run("devices"):
        for serial in (f"D{stage.number}5", f"D{stage.number}7", f"D{stage.number}9"):
            for _ in range(4):
                with suppress(RuntimeError):
                    register_device(serial)
                    break


@register_program
def retries_by_a_decorator(stage: Stage) -> None:
    """A retry library of the program's own, around the tool."""

    def retry(times: int) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def decorate(function: Callable[..., Any]) -> Callable[..., Any]:
            def call(*args: Any, **kwargs: Any) -> Any:
                for attempt in range(1, times + 1):
                    try:
                        return function(*args, **kwargs)
                    except OSError:
                        if attempt == times:
                            raise
                        stage.sleep(attempt)
                return None

            return call

        return decorate

    attempts: dict[str, int] = {}

    @retry(4)
    @stage.tool(effects="idempotent")
    def sync_folder(folder: str) -> str:
        attempts[folder] = attempts.get(folder, 0) + 1
        if attempts[folder] <= int(stage.draw_number("slow", folder) * 6):
            raise OSError("The folder is in use.")
        return f"{folder} in sync"

    with stage.run("sync"):
        for folder in ("inbox", "photos", "taxes"):
            with suppress(OSError):
                sync_folder(folder)


@register_program
def raises_at_last(stage: Stage) -> None:
    """A program that leaves its run with the error it met."""

    @stage.tool()
    def deploy(service: str, version: int) -> str:
        if service == "search" and stage.number % 2:
            raise RuntimeError("Health check failed after the deployment.")
        return "up"

    with stage.run("deployer"):
        for service in ("web", "search", "mail"):
            deploy(service, version=stage.number)


@register_program
def said_to_be_a_correction(stage: Stage) -> None:
    """A fallback outside a handler that says so: `with mulligan.correcting(error)`."""

    def truth(call: Arguments) -> Cure:
        return Cure(name="engine", changes={"engine": "basic"})

    @stage.tool(effects="none", truth=truth)
    def transcribe(clip: str, engine: str) -> str:
        if engine == "premium":
            raise RuntimeError("This engine cannot read the clip.")
        return "words"

    failure: Exception | None = None
    with stage.run("captions"):
        clip = f"clip {stage.number}"
        try:
            transcribe(clip, engine="premium")
        except RuntimeError as error:
            failure = error
        if failure is not None:
            with stage.correcting(failure):
                transcribe(clip, engine="basic")


@register_program
def said_across_tools(stage: Stage) -> None:
    """Another tool does what the first could not, and the program says so."""

    @stage.tool()
    def send_sms(number: str, text: str) -> str:
        raise RuntimeError("The number is not reachable by SMS.")

    @stage.tool()
    def send_letter(person: str, text: str) -> str:
        return "posted"

    with stage.run("reminders"):
        text = f"Reminder {stage.number}"
        try:
            send_sms(f"555-01{stage.number:02}", text)
        except RuntimeError as error:
            with stage.correcting(error):
                send_letter(f"person {stage.number}", text)


@register_program
def another_tool_in_a_handler(stage: Stage) -> None:
    """A cache is asked first; what it does not have is computed. Nobody says that this is the same."""

    @stage.tool(effects="none")
    def get_cached(key: str) -> str:
        if stage.draw_number("miss", key) < 0.4:
            raise KeyError(key)
        return f"cached {key}"

    @stage.tool(effects="none")
    def compute(key: str) -> str:
        return f"computed {key}"

    with stage.run("cache"):
        for key in ("sum", "mean", "median", "range"):
            try:
                get_cached(key)
            except KeyError:
                compute(key)


@register_program
def handler_takes_the_next_item(stage: Stage) -> None:
    """A handler that goes on with the next item at once, recursively: inside a handler, and no correction."""

    @stage.tool(effects="none")
    def pick_task(task: int) -> str:
        if task % 3 == stage.number % 3:
            raise RuntimeError("The task is taken by somebody else.")
        return f"task {task}"

    def work(tasks: list[int]) -> None:
        if not tasks:
            return
        try:
            pick_task(tasks[0])
        except RuntimeError:
            work(tasks[1:])
            return
        work(tasks[1:])

    with stage.run("worker"):
        work([10 * stage.number + offset for offset in range(6)])
