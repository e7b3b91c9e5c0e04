"""Real clients and real servers of other people, with the proxy between them and without.

`make test-mcp` installs what this needs: the packages `mcp` and `fastmcp`, servers from PyPI, and, where there is npm,
servers from there. What is not installed is skipped, with the reason.
"""

from __future__ import annotations

import asyncio
import importlib.util
import json
import os
import signal
import sqlite3
import subprocess
import sys
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from mcp_client import stored_runs
from real_mcp import SERVERS, by_mcp, environment, plainly, run

pytest.importorskip("mcp", reason="the mcp package is not installed: make test-mcp")
pytest.importorskip("fastmcp", reason="the fastmcp package is not installed: make test-mcp")
pytestmark = pytest.mark.filterwarnings("ignore")  # warnings of the clients are theirs

NAMES = ("filesystem", "everything", "git", "sqlite", "time")


def command(name: str, folder: Path) -> list[str]:
    """What starts a server on a folder of its own; skipped where it is not installed."""
    if name in ("filesystem", "everything"):
        program = SERVERS / "node_modules" / ".bin" / f"mcp-server-{name}"
        if not program.exists():
            pytest.skip(f"server-{name} is not installed: make test-mcp, where there is npm")
        return [str(program), *([str(folder)] if name == "filesystem" else [])]
    if name == "sqlite":  # of the first version of the mcp package, with which it came
        place = SERVERS / "python"
        if not (place / "mcp_server_sqlite").exists():
            pytest.skip("mcp-server-sqlite is not installed: make test-mcp")
        start = f"import sys; sys.path.insert(0, {str(place)!r}); import mcp_server_sqlite; mcp_server_sqlite.main()"
        return [sys.executable, "-c", start, "--db-path", str(folder / "x.db")]
    module = f"mcp_server_{name}"
    if importlib.util.find_spec(module) is None:
        pytest.skip(f"{module} is not installed: make test-mcp")
    if name == "git":
        return [sys.executable, "-m", module, "--repository", str(folder)]
    return [sys.executable, "-m", module, "--local-timezone", "UTC"]


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "notes.txt").write_text("first line\nsecond line\n")
    about = {
        "GIT_CONFIG_GLOBAL": "/dev/null",
        "GIT_AUTHOR_DATE": "2026-01-01T00:00:00Z",
        "GIT_COMMITTER_DATE": "2026-01-01T00:00:00Z",
    }
    for words in (
        ["init", "-q", "-b", "main"],
        ["add", "notes.txt"],
        ["-c", "user.name=A", "-c", "user.email=a@b.example", "commit", "-qm", "notes"],
    ):
        subprocess.run(["git", *words], cwd=tmp_path, check=True, env={**os.environ, **about})
    with sqlite3.connect(tmp_path / "x.db") as kept:
        kept.execute("create table notes (id integer, text text)")
        kept.execute("insert into notes values (1, 'hello')")
    kept.close()
    return tmp_path


CALLS = {
    "filesystem": ("read_text_file", lambda folder: {"path": str(folder / "notes.txt")}),
    "everything": ("echo", lambda folder: {"message": "hello"}),
    "git": ("git_log", lambda folder: {"repo_path": str(folder), "max_count": 1}),
    "sqlite": ("read_query", lambda folder: {"query": "select * from notes"}),
    "time": (
        "convert_time",
        lambda folder: {"source_timezone": "UTC", "time": "12:00", "target_timezone": "Asia/Tokyo"},
    ),
}
"""For each server a call that works, and always in the same way."""


def through(words: list[str], *options: str) -> list[str]:
    return [sys.executable, "-m", "mulligan", "proxy", "--name", "real", *options, "--", *words]


@asynccontextmanager
async def by_fastmcp(words):
    from fastmcp import Client
    from fastmcp.client.transports import StdioTransport

    async with Client(StdioTransport(words[0], words[1:], env=environment())) as client:
        yield client


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("mode", ["auto", "legacy"])
def test_the_mcp_client_sees_the_same_server(name, mode, folder):
    async def seen(words):
        async with by_mcp(words, mode) as client:
            tool, arguments = CALLS[name]
            found = [plainly(await client.list_tools()), plainly(await client.call_tool(tool, arguments(folder)))]
            about = client.server_capabilities
            if about is not None and about.prompts:
                found.append(plainly(await client.list_prompts()))
            if about is not None and about.resources:
                found.append(plainly(await client.list_resources()))
            return found

    words = command(name, folder)
    assert run(seen(words)) == run(seen(through(words)))


@pytest.mark.parametrize("name", NAMES)
def test_the_fastmcp_client_sees_the_same_server(name, folder):
    async def seen(words):
        async with by_fastmcp(words) as client:
            tool, arguments = CALLS[name]
            listed = [plainly(each) for each in await client.list_tools()]
            return listed, plainly(await client.call_tool(tool, arguments(folder)))

    words = command(name, folder)
    assert run(seen(words)) == run(seen(through(words)))


BAD = {
    "filesystem": (
        "read_text_file",
        lambda folder: {"path": str(folder / "notes.txt"), "head": "1"},
        "head as the number 1",
        "head as the number 1",
    ),
    "everything": ("get-sum", lambda folder: {"a": "2", "b": 3}, "a as the number 2", "a as the number 2"),
    "git": (
        "git_show",
        lambda folder: {"repo_path": str(folder), "revisions": "HEAD"},
        "Rename the argument `revisions` to `revision`",
        "revisions renamed to revision",
    ),
    "sqlite": (
        "append_insight",
        lambda folder: {"insights": "a note"},
        "Rename the argument `insights` to `insight`",
        "insights renamed to insight",
    ),
    "time": (
        "get_current_time",
        lambda folder: {"time_zone": "UTC"},
        "Rename the argument `time_zone` to `timezone`",
        "time_zone renamed to timezone",
    ),
}
"""A call of each server whose arguments break the schema, and the expected suggestion and repair note."""


@pytest.mark.parametrize("name", NAMES)
def test_a_bad_argument_is_suggested_and_with_repair_repaired(name, folder):
    tool, arguments, suggestion, note = BAD[name]

    async def made(*options):
        async with by_mcp(through(command(name, folder), *options)) as client:
            await client.list_tools()
            answer = await client.call_tool(tool, arguments(folder))
            return bool(answer.is_error), [block.text for block in answer.content if block.type == "text"]

    failed, told = run(made())
    assert failed
    assert suggestion in json.loads(told[-1])["mulligan"]["suggestions"][0]
    failed, told = run(made("--repair"))
    assert not failed
    assert f"mulligan: {tool} was called with" in told[-1]
    assert note in told[-1]


def test_an_argument_that_a_server_drops_is_told(folder):
    async def made():
        async with by_mcp(through(command("git", folder))) as client:
            await client.list_tools()
            return await client.call_tool("git_log", {"repo_path": str(folder), "maxcount": 1})

    answer = run(made())
    assert "git_log may have ignored the unknown argument maxcount" in answer.content[-1].text
    assert "Did you mean max_count" in answer.content[-1].text


def test_a_hang_is_timed_out(folder):
    words = command("everything", folder)

    async def hangs():
        async with by_mcp(through(words, "--timeout", "1")) as client:
            await client.list_tools()
            answer = await client.call_tool("trigger-long-running-operation", {"duration": 30, "steps": 1})
            again = await client.call_tool("echo", {"message": "still here"})
            return answer, again

    answer, again = run(hangs())
    assert answer.is_error
    assert "tool/timeout" in answer.content[-1].text
    assert "still here" in again.content[0].text


@pytest.mark.parametrize("name", NAMES)
def test_a_kill_is_survived(name, folder):
    tool, arguments = CALLS[name]

    async def killed():
        async with by_mcp(through(command(name, folder))) as client:
            before = await client.call_tool(tool, arguments(folder))
            killed = servers()
            for server in killed:
                os.kill(server, signal.SIGKILL)
            while any(Path(f"/proc/{server}").exists() for server in killed):
                await asyncio.sleep(0.01)  # until the proxy knows: what it gives to one that dies may have been heard
            return before, await client.call_tool(tool, arguments(folder))

    before, after = run(killed())
    assert not before.is_error
    assert plainly(before)["content"] == plainly(after)["content"]


def servers() -> list[int]:
    """What the proxies that we started have started."""

    def children(pid):
        return [int(each) for each in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]

    proxies = [pid for pid in children(os.getpid()) if b"mulligan" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    return [server for proxy in proxies for server in children(proxy)]


def test_a_cancellation_is_delivered(folder):
    words = command("everything", folder)

    async def cancelled():
        async with by_mcp(through(words), mode="legacy") as client:
            await client.list_tools()
            call = asyncio.ensure_future(
                client.call_tool("trigger-long-running-operation", {"duration": 20, "steps": 20})
            )
            await asyncio.sleep(0.5)
            call.cancel()
            await asyncio.gather(call, return_exceptions=True)
            return await client.call_tool("echo", {"message": "after it"})

    assert "after it" in run(cancelled()).content[0].text
    (history,) = stored_runs()
    first = history.steps[0]
    assert (first.name, first.outcome) == ("real.trigger-long-running-operation", "cancelled")


def test_a_thousand_calls_at_once_are_right(folder):
    words = command("everything", folder)

    async def many():
        async with by_mcp(through(words)) as client:
            await client.list_tools()
            calls = [client.call_tool("get-sum", {"a": number, "b": 1}) for number in range(1000)]
            return await asyncio.gather(*calls)

    answers = run(many())
    for number, answer in enumerate(answers):
        assert str(number + 1) in answer.content[0].text, (number, answer)
    (history,) = stored_runs()
    assert len(history.steps) == 1000


def test_progress_sampling_and_elicitation_pass(folder):
    words = command("everything", folder)
    heard = []

    async def listens(progress, total, message):
        heard.append((progress, total))

    async def samples(context, params):
        from mcp.types import CreateMessageResult, TextContent

        return CreateMessageResult(
            role="assistant", content=TextContent(type="text", text="a sampled word"), model="none"
        )

    async def used():
        async with by_mcp(through(words), mode="legacy", sampling_callback=samples) as client:
            tools = [tool.name for tool in (await client.list_tools()).tools]
            await client.call_tool(
                "trigger-long-running-operation", {"duration": 1, "steps": 2}, progress_callback=listens
            )
            sampling = next(name for name in tools if "sampling" in name)
            return await client.call_tool(sampling, {"prompt": "say a word", "maxTokens": 10})

    answer = run(used())
    assert len(heard) == 2
    assert "a sampled word" in answer.content[0].text
