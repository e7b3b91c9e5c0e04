"""The pytest plugin: the fixture `mulligan_sandbox`, and tests that stay out of the user's store.

Every pytest session with mulligan installed loads this module, so it imports nothing of mulligan until a test does.
"""

from __future__ import annotations

import getpass
import os
import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING
from weakref import WeakKeyDictionary

import pytest

if TYPE_CHECKING:
    from mulligan.testing import Sandbox

TEST_FOLDERS = "MULLIGAN_TEST_FOLDERS"
"""The same as `settings.TEST_FOLDERS`, which is not imported here. Processes that a test starts inherit it."""
REAL_STORE_VARIABLES = ("MULLIGAN_STORE", "MULLIGAN_HOME", "MULLIGAN_TOKEN")
"""Variables that name the user's store. They are removed for the session; a test may set its own."""
STORES = ("temporary", "real")
_saved_environments: WeakKeyDictionary[pytest.Config, dict[str, str | None]] = WeakKeyDictionary()
"""The variables that were replaced for each session."""


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("mulligan")
    group.addoption(
        "--mulligan-store",
        choices=STORES,
        help="where tests record calls: temporary (in memory, default), or real (the store of your settings)",
    )
    group.addoption(
        "--mulligan-update-baselines",
        action="store_true",
        help="add new failure patterns to the files of assert_no_new_patterns",
    )
    parser.addini("mulligan_store", "where tests record calls: temporary or real", default=STORES[0])


@pytest.hookimpl(tryfirst=True)
def pytest_load_initial_conftests(early_config: pytest.Config) -> None:
    """Leave the real store before the first conftest imports the program under test."""
    _skip_assertion_rewriting()
    _leave_real_store(early_config)


@pytest.hookimpl(tryfirst=True)
def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "mulligan(**settings): settings of the fixture mulligan_sandbox in this test.")
    _leave_real_store(config)


def _skip_assertion_rewriting() -> None:
    """Import mulligan as it is. pytest compiles packages with a plugin itself, which takes longer than the import."""
    for finder in sys.meta_path:
        names = getattr(finder, "_must_rewrite", None)  # private to pytest: without it, the import is only slower
        cache = getattr(finder, "_marked_for_rewrite_cache", None)
        if isinstance(names, set) and isinstance(cache, dict):
            names.discard("mulligan")
            cache.clear()


def _leave_real_store(config: pytest.Config) -> None:
    """Replace the user's store by one in memory, in this process and in those that tests start."""
    store = getattr(config.known_args_namespace, "mulligan_store", None) or config.getini("mulligan_store")
    if store not in STORES:
        raise pytest.UsageError(f"Invalid mulligan_store {store!r}. Use temporary or real.")
    if store == "real" or config in _saved_environments:
        return
    names = (TEST_FOLDERS, *REAL_STORE_VARIABLES)
    _saved_environments[config] = {name: os.environ.pop(name, None) for name in names}
    try:
        folders = list(_find_test_folders(config))
    except Exception:  # noqa: BLE001 - no folder for temporary files, and pytest -s needs none
        folders = []  # then every store in a file is replaced
    os.environ[TEST_FOLDERS] = os.pathsep.join(folders)


def _find_test_folders(config: pytest.Config) -> Iterator[str]:
    """Yield the folders for temporary files, except those that contain the project: its own files are no test's."""
    temporary_folder = os.environ.get("PYTEST_DEBUG_TEMPROOT") or tempfile.gettempdir()
    base = getattr(config.known_args_namespace, "basetemp", None)
    for folder in (base or os.path.join(temporary_folder, f"pytest-of-{_find_user()}"), temporary_folder):
        path = os.path.realpath(folder)
        if not Path(os.path.realpath(config.rootpath)).is_relative_to(path):
            yield path


def _find_user() -> str:
    try:
        return getpass.getuser()
    except Exception:  # noqa: BLE001 - no such user, or a platform without users; pytest does the same
        return "unknown"


def pytest_unconfigure(config: pytest.Config) -> None:
    for name, value in _saved_environments.pop(config, {}).items():
        os.environ.pop(name, None)
        if value is not None:
            os.environ[name] = value


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Separate the tests: memory and targets of one test do not reach the next."""
    if "mulligan.api" not in sys.modules or item.config not in _saved_environments:
        return
    try:
        from mulligan.testing import reset_instances

        reset_instances()
    except Exception as error:  # noqa: BLE001 - a test without mulligan must not fail because of it
        warnings.warn(f"mulligan could not separate the tests: {error!r}", stacklevel=2)


@pytest.fixture
def mulligan_sandbox(request: pytest.FixtureRequest) -> Iterator[Sandbox]:
    """A sandbox for calls of mulligan.tool and mulligan.model: store in memory, fake clock, backoffs that do not wait.

    Settings: @pytest.mark.mulligan(attempts=2).
    """
    from mulligan.testing import sandbox

    marker = request.node.get_closest_marker("mulligan")
    with sandbox(**(marker.kwargs if marker is not None else {})) as active_sandbox:
        active_sandbox.should_update_baselines = bool(request.config.getoption("mulligan_update_baselines"))
        yield active_sandbox
