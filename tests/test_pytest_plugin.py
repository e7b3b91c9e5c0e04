"""The pytest plugin, in projects of users that run pytest themselves."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path

import pytest

import mulligan
from mulligan.contract.store import DEFAULT_TENANT, RunQuery
from mulligan.settings import TEST_FOLDERS, load_settings
from mulligan.store.urls import open_store

pytest_plugins = ["pytester"]

AGENT = """
import mulligan


@mulligan.tool(effects="none")
def weather(city: str) -> str:
    return f"rain in {city}"


@mulligan.tool(effects="none")
async def forecast(city: str) -> str:
    return f"sun in {city}"
"""


@pytest.fixture
def project(pytester: pytest.Pytester, monkeypatch: pytest.MonkeyPatch) -> pytest.Pytester:
    """A user's project: an agent whose tools are wrapped at import, and a home with a store."""
    pytester.makepyfile(agent=AGENT)
    for name in ("MULLIGAN_HOME", "MULLIGAN_HOLDOUT", "XDG_DATA_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.delenv(name)
    return pytester


def play(project: pytest.Pytester, tests: str, *options: str) -> pytest.RunResult:
    project.makepyfile(test_agent=tests)
    return project.runpytest_subprocess("-p", "no:cacheprovider", *options)


def read_files(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


def make_store(url: Path) -> None:
    recording = mulligan.Mulligan(store=str(url))
    recording.tool(lambda: 1, name="earlier")()
    recording.close()


# The fixture


def test_users_project_recovers_scripted_failures_without_waiting(project: pytest.Pytester) -> None:
    result = play(
        project,
        """
        import asyncio
        import pytest
        from agent import forecast, weather

        def test_timeout_is_retried(mulligan_sandbox):
            mulligan_sandbox.script(weather, fail_with=[TimeoutError(), TimeoutError()])
            assert weather("Oslo") == "rain in Oslo"
            mulligan_sandbox.assert_recovered(weather)
            mulligan_sandbox.assert_failed("tool/timeout")
            assert mulligan_sandbox.backoffs == [0.5, 1.0]

        def test_script_ended_with_its_test(mulligan_sandbox):
            assert weather("Oslo") == "rain in Oslo"
            mulligan_sandbox.assert_no_new_patterns()

        @pytest.mark.mulligan(attempts=1, agent="tester")
        def test_settings(mulligan_sandbox):
            mulligan_sandbox.script(weather, fail_with=TimeoutError())
            with pytest.raises(TimeoutError):
                weather("Oslo")
            assert mulligan_sandbox.runs[0].run.agent == "tester"
            mulligan_sandbox.assert_unrecovered("tool/timeout")

        @pytest.mark.asyncio
        async def test_with_pytest_asyncio(mulligan_sandbox):
            mulligan_sandbox.script(forecast, fail_with=TimeoutError())
            assert await asyncio.gather(forecast("Oslo"), forecast("Rome")) == ["sun in Oslo", "sun in Rome"]
            mulligan_sandbox.assert_recovered(forecast)

        @pytest.mark.anyio
        async def test_with_anyio(mulligan_sandbox, anyio_backend_name):
            mulligan_sandbox.script(forecast, fail_with=TimeoutError())
            assert await forecast("Oslo") == "sun in Oslo"
            mulligan_sandbox.assert_recovered(forecast)

        @pytest.fixture
        def anyio_backend():
            return "asyncio"
        """,
        "--strict-markers",
        "-W",
        "error::pytest.PytestUnknownMarkWarning",
    )
    result.assert_outcomes(passed=5)
    assert result.duration < 30


def test_failing_assertion_shows_the_run(project: pytest.Pytester) -> None:
    result = play(
        project,
        """
        from agent import weather

        def test_permission(mulligan_sandbox):
            mulligan_sandbox.script(weather, fail_with=PermissionError("no access to Oslo"))
            try:
                weather("Oslo")
            except PermissionError:
                pass
            mulligan_sandbox.assert_recovered()
        """,
    )
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(
        [
            ">*mulligan_sandbox.assert_recovered()",
            "E*AssertionError: 1 call did not recover: weather (tool/permission_denied).",
            "E*run_* failure: 1 call in 1 attempt, 0 of 1 failed calls recovered.",
            "E*weather (tool), unrecovered*",
            "E*no access to Oslo",
        ]
    )
    result.stdout.no_fnmatch_line("*def _fail*")


def test_baseline_is_updated_by_an_option_and_then_accepts_the_pattern(project: pytest.Pytester) -> None:
    tests = """
        from pathlib import Path
        from agent import weather

        def test_weather(mulligan_sandbox):
            mulligan_sandbox.script(weather, fail_with=TimeoutError("no answer in 5 s"))
            weather("Oslo")
            mulligan_sandbox.assert_no_new_patterns(Path(__file__).with_name("weather.txt"))
        """
    result = play(project, tests)
    result.assert_outcomes(failed=1)
    result.stdout.fnmatch_lines(["E*New failure patterns:", "E*To accept them in*--mulligan-update-baselines"])
    play(project, tests, "--mulligan-update-baselines").assert_outcomes(passed=1)
    play(project, tests).assert_outcomes(passed=1)
    assert "weather tool/timeout no answer in" in (project.path / "weather.txt").read_text()


# The real store

RECORDING_TESTS = """
    import multiprocessing
    import subprocess
    import sys
    import mulligan
    from agent import weather

    def test_in_this_process():
        assert weather("Oslo") == "rain in Oslo"
        assert mulligan.flush(30)
        assert len(mulligan.Mulligan().suggest("x", {}, "timeout").suggestions) == 0

    def test_in_a_subprocess():
        code = "import mulligan; from agent import weather; weather('Rome'); assert mulligan.flush(30)"
        subprocess.run([sys.executable, "-c", code], check=True, timeout=60)

    def test_in_a_process_pool():
        with multiprocessing.get_context("spawn").Pool(1) as pool:
            assert pool.map(mulligan.carry_run(weather), ["Bonn"]) == ["rain in Bonn"]

    def test_with_another_instance():
        other = mulligan.Mulligan()
        assert other.tool(lambda: 1)() == 1
        other.close()
    """


@pytest.mark.parametrize("options", [(), ("-n", "2")], ids=["one process", "xdist"])
def test_tests_leave_the_store_in_the_home_folder_as_it_is(project: pytest.Pytester, options: tuple[str, ...]) -> None:
    home = project.path / ".local" / "share" / "mulligan"
    make_store(home / "mulligan.db")
    before = read_files(home)
    play(project, RECORDING_TESTS, *options).assert_outcomes(passed=4)
    assert read_files(home) == before


def test_tests_leave_stores_of_the_environment_and_of_settings_files_as_they_are(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch, tmp_path_factory: pytest.TempPathFactory
) -> None:
    stores = tmp_path_factory.mktemp("stores")
    monkeypatch.setenv("PYTEST_DEBUG_TEMPROOT", str(stores))  # where a test could open stores of its own
    for name in ("environment", "project", "user"):
        make_store(stores / f"{name}.db")
    before = read_files(stores)
    monkeypatch.setenv("MULLIGAN_STORE", str(stores / "environment.db"))
    project.makefile(".toml", mulligan=f'store = "{stores / "project.db"}"')
    settings = project.mkdir(".config") / "mulligan"
    settings.mkdir()
    (settings / "mulligan.toml").write_text(f'store = "{stores / "user.db"}"')
    play(project, RECORDING_TESTS).assert_outcomes(passed=4)
    assert read_files(stores) == before


def test_tests_record_nothing_in_stores_that_the_program_configures(project: pytest.Pytester) -> None:
    configure = "import mulligan\nmulligan.configure(store='postgresql://localhost:1/records')\n"
    project.makepyfile(agent=configure + AGENT)
    others = """
    import pytest

    @pytest.mark.parametrize("url", ["http://127.0.0.1:1", "/dev/null/records.db", "records.db"])
    def test_with_a_store_of_its_own(url):
        other = mulligan.Mulligan(store=url)
        assert other.tool(lambda: 1)() == 1
        assert other.flush(30)
        other.close()
    """
    result = play(project, RECORDING_TESTS + others, "--basetemp", "elsewhere", "-p", "no:asyncio")
    result.assert_outcomes(passed=7)
    assert result.stderr.str() == ""
    assert not (project.path / "records.db").exists()


@pytest.mark.parametrize("by", ["option", "ini"])
def test_real_store_is_used_on_request(project: pytest.Pytester, by: str) -> None:
    if by == "ini":
        project.makeini("[pytest]\nmulligan_store = real")
    store = project.path / ".local" / "share" / "mulligan" / "mulligan.db"
    play(project, RECORDING_TESTS, *(["--mulligan-store=real"] if by == "option" else [])).assert_outcomes(passed=4)
    with contextlib.closing(open_store(str(store))) as opened:
        runs = opened.runs(DEFAULT_TENANT, RunQuery(limit=10))
    assert [step.name for history in runs for step in history.steps].count("weather") == 3


def test_invalid_store_option_is_refused_with_the_choices(project: pytest.Pytester) -> None:
    project.makeini("[pytest]\nmulligan_store = memory")
    result = play(project, "def test_nothing(): pass")
    assert result.ret == pytest.ExitCode.USAGE_ERROR
    result.stderr.fnmatch_lines(["*Invalid mulligan_store 'memory'. Use temporary or real."])


def test_a_test_may_open_a_store_in_the_temporary_folder(project: pytest.Pytester) -> None:
    result = play(
        project,
        """
        import mulligan

        def record(**settings):
            own = mulligan.Mulligan(**settings)
            own.tool(lambda: 1)()
            own.close()

        def test_by_argument(tmp_path):
            record(store=tmp_path / "own.db")
            assert (tmp_path / "own.db").exists()
            record(home=str(tmp_path / "home"))
            assert (tmp_path / "home" / "mulligan.db").exists()

        def test_by_variable(tmp_path, monkeypatch):
            monkeypatch.setenv("MULLIGAN_STORE", str(tmp_path / "own.db"))
            record()
            assert (tmp_path / "own.db").exists()
        """,
        "--basetemp",
        "elsewhere",
    )
    result.assert_outcomes(passed=2)


def test_settings_allow_only_memory_and_files_in_the_test_folders(tmp_path: Path) -> None:
    environment = {TEST_FOLDERS: f"{os.pathsep}{tmp_path / 'tests'}"}

    user_file = tmp_path / "user.toml"

    def find_store(**settings: str) -> str:
        return load_settings(settings, environment, tmp_path, user_file).store

    inside = str(tmp_path / "tests" / "a.db")
    assert find_store(store=inside) == inside
    assert find_store(store=f"sqlite:///{inside}") == f"sqlite:///{inside}"
    assert find_store(store="memory:") == "memory:"
    for store in (
        "",
        "a.db",
        f"{tmp_path}/tests-b/a.db",
        f"{tmp_path}/tests/../a.db",
        "~/a.db",
        "POSTGRES://x",
        "HTTP://x",
    ):
        assert find_store(store=store) == "memory:"
    settings = load_settings({"store": "postgresql://x/y", "token": "secret"}, environment, tmp_path, user_file)
    assert (settings.level, settings.token) == ("shared", "")
    user_file.write_text(f'store = "{inside}"')
    assert find_store() == "memory:"
    (tmp_path / "mulligan.toml").write_text(f'home = "{tmp_path / "tests"}"')
    assert find_store() == "memory:"
    assert find_store(store=inside) == inside


# Between tests


def test_tests_share_no_budget_breaker_memory_or_setting_of_the_environment(project: pytest.Pytester) -> None:
    project.makepyfile(
        agent="""
        import mulligan

        fails = True
        events = []
        policy = mulligan.Policy(attempts=2, retry_tokens=1, initial_backoff=0)

        @mulligan.tool(effects="none", policy=policy, circuit_breaker=True)
        def search(query):
            if fails:
                raise ConnectionError("index offline")
            return query

        remove = mulligan.add_listener(events.append, thread="caller")
        """
    )
    result = play(
        project,
        """
        import agent
        import mulligan
        import pytest
        from mulligan.contract.store import DEFAULT_TENANT, RunQuery

        @pytest.mark.parametrize("number", [1, 2])
        def test_each_test_has_a_full_budget(number):
            agent.events.clear()
            for attempts in (2, 1):  # the budget allows one retry
                with pytest.raises(ConnectionError):
                    agent.search("fish")
            assert sum(event.name == "step.ended" for event in agent.events) == 3

        @pytest.mark.parametrize("number", [1, 2])
        def test_each_test_has_targets_that_work(number):
            with pytest.raises(mulligan.AgentError, match="target is down"):
                for _ in range(9):
                    try:
                        agent.search("fish")
                    except ConnectionError:
                        pass

        @pytest.mark.parametrize("number", [1, 2])
        def test_each_test_has_an_empty_memory(number):
            with pytest.raises(ConnectionError):
                agent.search("fish")
            mulligan.flush(30)
            store = mulligan.api.default._components.recorder.store
            assert len(store.runs(DEFAULT_TENANT, RunQuery(limit=10))) == 1

        def test_settings_of_one_test(monkeypatch):
            monkeypatch.setenv("MULLIGAN_MODE", "observe")
            monkeypatch.setenv("MULLIGAN", "off")

        def test_do_not_reach_the_next_and_listeners_can_be_removed():
            agent.events.clear()
            agent.fails = False
            assert agent.search("fish") == "fish"
            assert agent.events
            agent.remove()
            agent.events.clear()
            agent.search("fish")
            assert agent.events == []

        def test_program_can_be_configured_in_each_test():
            mulligan.configure(mode="observe")
        """,
    )
    result.assert_outcomes(passed=9)


# Every session with mulligan installed


def test_plugin_imports_nothing_of_mulligan_until_a_test_does(project: pytest.Pytester) -> None:
    result = play(
        project,
        """
        import sys

        def test_modules():
            assert sorted(name for name in sys.modules if name.startswith("mulligan")) == [
                "mulligan", "mulligan.pytest_plugin"
            ]
            assert "msgspec" not in sys.modules
            assert "sqlite3" not in sys.modules
        """,
        "-p",
        "no:hypothesispytest",
    )
    result.assert_outcomes(passed=1)


def test_mulligan_is_not_compiled_by_pytest(project: pytest.Pytester) -> None:
    # pytest marks every installed package that has a plugin. The package of these tests is editable, so it is not.
    project.makepyfile(installed="import pytest\npytest.register_assert_rewrite('mulligan')")
    tests = """
        import mulligan.api

        def test_loader():
            assert type(mulligan.api.__loader__).__name__ == "SourceFileLoader"
        """
    play(project, tests, "-p", "installed").assert_outcomes(passed=1)
    play(project, tests, "-p", "installed", "-p", "no:mulligan").assert_outcomes(failed=1)


def test_session_without_the_plugin_runs(project: pytest.Pytester) -> None:
    result = play(project, "from agent import weather\ndef test(): assert weather('Oslo')", "-p", "no:mulligan")
    result.assert_outcomes(passed=1)
    assert (project.path / ".local" / "share" / "mulligan").exists()


def test_internal_error_of_the_plugin_is_a_warning(project: pytest.Pytester) -> None:
    project.makeconftest(
        """
        import mulligan.testing
        def break_down():
            raise RuntimeError("broken")
        mulligan.testing.reset_instances = break_down
        """
    )
    result = play(project, "def test_nothing(): pass")
    result.assert_outcomes(passed=1, warnings=1)
    result.stdout.fnmatch_lines(["*mulligan could not separate the tests: RuntimeError('broken')"])


def test_session_without_a_temporary_folder_runs_and_leaves_the_real_store(
    project: pytest.Pytester, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("PYTEST_DEBUG_TEMPROOT")
    project.makepyfile(
        no_folder="""
        import tempfile
        def gettempdir():
            raise FileNotFoundError("no usable temporary directory")
        tempfile.gettempdir = gettempdir
        """
    )
    project.makepyfile(test_it="from agent import weather\ndef test(): assert weather('Oslo')")
    result = project.runpytest_subprocess("-p", "no_folder", "-p", "no:cacheprovider", "-s", "-n", "0")
    result.assert_outcomes(passed=1)
    assert not (project.path / ".local" / "share" / "mulligan").exists()


def test_environment_is_restored_after_a_session_in_the_same_process(project: pytest.Pytester) -> None:
    project.makepyfile(test_nothing="def test_nothing(): pass")
    project.makepyfile(
        main="""
        import os, sys, pytest
        os.environ["MULLIGAN_STORE"] = "mine.db"
        assert pytest.main(["-q", "test_nothing.py", "-p", "no:cacheprovider"]) == 0
        assert {name for name in os.environ if name.startswith("MULLIGAN")} == {"MULLIGAN_STORE"}
        assert os.environ["MULLIGAN_STORE"] == "mine.db"
        """
    )
    assert project.run(sys.executable, "main.py").ret == 0
