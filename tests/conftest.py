"""No test reads this machine's settings, writes into its home, or fails because the machine is busy."""

from __future__ import annotations

import contextlib
import itertools
import os
import sys
import time
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import strict_decoding

strict_decoding.install()  # before the first import of mulligan

import postgres  # noqa: E402
import pytest  # noqa: E402
import tiers  # noqa: E402
from hypothesis import HealthCheck, settings  # noqa: E402

if TYPE_CHECKING:
    from mulligan.testing import Sandbox

# How long an example takes says more about what else is running than about the code: what must be quick is measured
# where it matters, in CPU time.
settings.register_profile("house", deadline=None, derandomize=True, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("explore", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "house"))  # explore: other examples at every run

PATIENCE = 10.0
"""Seconds that a thread is given to end, which hangs in a store or does not."""


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--update-golden", action="store_true", help="rewrite tests/golden from what is there now")
    parser.addoption("--max-examples", type=int, help="try at most this many examples of each property")


def pytest_configure() -> None:
    tiers.observe_processes()


@pytest.hookimpl(tryfirst=True)  # before -m selects
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    tiers.assign_tiers(items, config.getoption("--max-examples"))
    if config.getoption("--update-golden"):
        config.option.markexpr = ""  # in whichever tier they are


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    is_test = collection_path.is_relative_to(tiers.TESTS)
    return True if is_test and tiers.is_left_out(collection_path, config.option.markexpr) else None


if tiers.IS_EVERY_TEST_REQUIRED:

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_makereport() -> Generator[None, pytest.TestReport, pytest.TestReport]:
        tiers.reject_skip(report := (yield))
        return report

    @pytest.hookimpl(wrapper=True)
    def pytest_make_collect_report() -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
        tiers.reject_skip(report := (yield))
        return report


@pytest.fixture(scope="session")
def homes(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Names for the homes and folders of tests. `mktemp` would list all earlier ones for each."""
    folder = tmp_path_factory.mktemp("homes")
    return (folder / str(number) for number in itertools.count())


@pytest.fixture(autouse=True)
def isolation(request: pytest.FixtureRequest, homes: Iterator[Path], monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """Give each test an empty home; end what it started. One fixture: each takes time, ten thousand times."""
    home, folder = next(homes), next(homes)
    isolate_home(home, monkeypatch)
    folder.mkdir()
    if request.node.get_closest_marker("quick"):  # the others start programs of this project, from its folder
        monkeypatch.chdir(folder)
    yield
    stop_recorders()
    for each in (home, folder):
        with contextlib.suppress(OSError):  # it is not empty
            each.rmdir()
    check_tier(request.node)


def isolate_home(home: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    home.mkdir()
    for name in [*os.environ]:
        if name.startswith("MULLIGAN"):
            monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(home))
    for name in ("XDG_DATA_HOME", "XDG_CONFIG_HOME", "XDG_CACHE_HOME", "XDG_STATE_HOME"):
        monkeypatch.setenv(name, str(home / name.lower()))
    monkeypatch.setenv("MULLIGAN_HOME", str(home / "mulligan"))
    monkeypatch.setenv("MULLIGAN_HOLDOUT", "0")  # which runs are held out depends on their random ids


def stop_recorders() -> None:
    """One whose store never comes back goes on trying beside later tests, and says so every minute, in their logs."""
    recording = sys.modules.get("mulligan.record.recorder")
    for each in tuple(recording.recorders) if recording is not None else ():
        if isinstance(each, recording.Recorder):  # a test may have put something else there
            each.stop_thread(time.monotonic() + PATIENCE)


def check_tier(item: pytest.Item) -> None:
    """A quick test starts no Python process and no server."""
    started = sorted(set(tiers.started))
    tiers.started.clear()
    if started and item.get_closest_marker("quick"):
        pytest.fail(f"started {' and '.join(started)}: give it a tier of tests/support/tiers.py")


@pytest.fixture(scope="session", autouse=True)
def a_folder_for_all_workers(tmp_path_factory: pytest.TempPathFactory) -> None:
    base = tmp_path_factory.getbasetemp()
    postgres.share(base.parent if "PYTEST_XDIST_WORKER" in os.environ else base)


@pytest.fixture(scope="session")
def postgres_server() -> str:
    """The URL of the PostgreSQL that all tests of a run share; skips where there is none to be had."""
    return postgres.had()


@pytest.fixture
def postgres_url(postgres_server: str) -> Iterator[str]:
    """A database of its own."""
    with postgres.fresh_database(postgres_server) as url:
        yield url


@pytest.fixture
def types(capsys, monkeypatch):
    """Run the command in this process. Return its exit code, output and error output."""
    from mulligan.cli import main

    def typed(*words):
        monkeypatch.setattr(sys, "argv", ["mulligan", *map(str, words)])
        with pytest.raises(SystemExit) as exit:
            main()
        output = capsys.readouterr()
        return exit.value.code, output.out, output.err

    return typed


@pytest.fixture
def played() -> Iterator[Sandbox]:
    from mulligan.testing import sandbox

    with sandbox() as box:
        yield box
