"""Argument over environment over project file over user file over default."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import pytest

from mulligan import Mulligan, settings
from mulligan.core.failure import SettingsError
from mulligan.recover.policy import Policy
from mulligan.settings import CLASS_SETTINGS, NOT_FOR_PROJECTS, POLICY_NAMES, SETTING_NAMES, Settings

VALUES: dict[str, tuple[Any, Any, Any, Any]] = {
    "store": ("a", "b", "c", "d"),
    "token": ("a", "b", "c", "d"),
    "home": ("a", "b", "c", "d"),
    "agent": ("a", "b", "c", "d"),
    "environment": ("a", "b", "c", "d"),
    "mode": ("observe", "suggest", "repair", "observe"),
    "record": ("full", "shape", "full", "off"),
    "fsync": (True, False, True, False),
    "level": ("local", "shared", "local", "shared"),
    "redact_names": (("a",), ("b",), ("c",), ("d",)),
    "redact_patterns": (("a",), ("b",), ("c",), ("d",)),
    "redact_ignore": (("a",), ("b",), ("c",), ("d",)),
    "unredacted_arguments": (("a",), ("b",), ("c",), ("d",)),
    "learn": ("repair", "tell", "off", "repair"),
    "holdout": (0.1, 0.2, 0.3, 0.4),
    "holdout_reminders": (0.1, 0.2, 0.3, 0.4),
    "holdout_repairs": (0.1, 0.2, 0.3, 0.4),
    "reflect": ("a:a", "b:b", "https://c/v1#c", "d:d"),
    "reflect_key": ("a", "b", "c", "d"),
    "alert_command": ("a", "b", "c", "d"),
    "alert_webhook": ("a", "b", "c", "d"),
    "base_url": ("https://a.example", "https://b.example", "https://c.example/x", "https://d.example:4700"),
    "log": ("warning", "off", "info", "debug"),
    "enabled": (False, True, False, True),
    "control_flow": (("a:A",), ("b:B",), ("c:C",), ("d:D",)),
    "injected_types": (("a:A",), ("b:B",), ("c:C",), ("d:D",)),
    "attempts": (1, 2, 4, 5),
    "initial_backoff": (0.1, 0.2, 0.3, 0.4),
    "max_backoff": (1.0, 2.0, 3.0, 4.0),
    "min_confidence": (0.9, 0.91, 0.92, 0.93),
    "max_run_retries": (1, 2, 3, 4),
    "retry_seconds": (1.0, 2.0, 3.0, 4.0),
    "retry_tokens": (1, 2, 3, 4),
    "down_after": (1, 2, 3, 4),
    "max_identical_failures": (0, 3, 4, 5),
    "on_spiral": ("block", "report", "block", "report"),
}
"""For each setting a value from the user's file, the project's file, the environment and an argument."""


@pytest.fixture
def places(tmp_path: Path) -> Places:
    return Places(tmp_path)


class Places:
    """Where settings stand."""

    def __init__(self, folder: Path) -> None:
        self.user = folder / "config" / "mulligan.toml"
        self.project = folder / "code" / "project"
        self.user.parent.mkdir()
        self.project.mkdir(parents=True)

    def write(self, path: Path, text: str) -> Path:
        path.write_text(textwrap.dedent(text))
        return path

    def read(self, variables: dict[str, str] | None = None, /, **arguments: Any) -> Settings:
        return settings.load_settings(arguments, variables or {}, self.project, self.user)


def line(name: str, value: Any) -> str:
    if isinstance(value, tuple):
        return f"{name} = {list(value)!r}\n"
    return f"{name} = {str(value).lower() if isinstance(value, bool) else repr(value)}\n"


def as_variable(value: Any) -> str:
    return ",".join(value) if isinstance(value, tuple) else str(value)


def of(read: Settings, name: str) -> Any:
    return getattr(read.policy if name in POLICY_NAMES else read, name)


def test_every_setting_is_tried_here():
    assert set(VALUES) == set(SETTING_NAMES)


@pytest.mark.parametrize("name", [name for name in SETTING_NAMES if name not in CLASS_SETTINGS])
def test_an_argument_is_over_the_environment_over_the_project_over_the_user_over_the_default(places, name):
    user, project, variable, argument = VALUES[name]
    variables = {f"MULLIGAN_{name.upper()}": as_variable(variable)}

    assert of(places.read(), name) == of(Settings(), name)
    places.write(places.user, line(name, user))
    assert of(places.read(), name) == user
    if name not in (*NOT_FOR_PROJECTS, "token"):
        places.write(places.project / "mulligan.toml", line(name, project))
        merged = (*user, *project) if name in ("redact_names", "redact_patterns") else project
        assert of(places.read(), name) == merged
    assert of(places.read(variables), name) == variable
    assert of(places.read(variables, **{name: argument}), name) == argument


@pytest.mark.parametrize("name", CLASS_SETTINGS)
def test_classes_of_all_sources_are_added_up(places, name):
    user, project, variable, argument = VALUES[name]
    places.write(places.user, line(name, user))
    places.write(places.project / "mulligan.toml", line(name, project))
    read = places.read({f"MULLIGAN_{name.upper()}": as_variable(variable)}, **{name: argument})
    assert of(read, name) == (*argument, *variable, *project, *user)


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        (KeyError, ("builtins:KeyError",)),
        ([KeyError, "myapp.errors:Pause"], ("builtins:KeyError", "myapp.errors:Pause")),
        ("json:JSONDecodeError", ("json.decoder:JSONDecodeError",)),  # under the name that its class has
        ("myapp.errors:Pause, myapp.errors:Done", ("myapp.errors:Pause", "myapp.errors:Done")),
    ],
)
def test_control_flow_takes_classes_and_their_names(places, value, expected):
    assert places.read(control_flow=value).control_flow == expected


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("control_flow", 42, "control_flow must be exception classes, got 42."),
        ("control_flow", [None], "control_flow must be exception classes, got None."),
        ("control_flow", [int], "control_flow must be exception classes, got <class 'int'>."),
        ("control_flow", [KeyError()], "control_flow must be exception classes, got KeyError()."),
        ("control_flow", ["json:loads"], "control_flow must be exception classes, got 'json:loads'."),
        ("control_flow", ["builtins:int"], "control_flow must be exception classes, got 'builtins:int'."),
        ("control_flow", ["myapp.errors.Pause"], "Use module:Class, for example 'myapp.errors:Pause'."),
        ("control_flow", ["Pause"], "got 'Pause'. Use module:Class, for example 'myapp.errors:Pause'."),
        ("control_flow", [Exception], "more specific than <class 'Exception'>, which matches everything."),
        ("injected_types", ["json:loads"], "injected_types must be classes, got 'json:loads'."),
        ("injected_types", [object], "more specific than <class 'object'>, which matches everything."),
    ],
)
def test_what_is_no_class_is_refused(places, name, value, message):
    with pytest.raises(SettingsError) as refused:
        places.read(**{name: value})
    assert message in str(refused.value)
    with pytest.raises(SettingsError):
        Mulligan(**{name: value})


@pytest.mark.parametrize("name", SETTING_NAMES)
def test_a_value_of_the_wrong_type_is_told_with_its_place(places, name):
    wrong = "[[1]]" if name in ("redact_names", "redact_patterns", "redact_ignore", "unredacted_arguments") else "{}"
    path = places.write(places.user, f"{name} = {wrong}\n")
    with pytest.raises(SettingsError) as told:
        places.read()
    assert str(told.value).startswith(f"{path}: {name} must be ")


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("attempts", "0"),
        ("mode", "'fix'"),
        ("level", "'open'"),
        ("record", "'some'"),
        ("min_confidence", "2"),
        ("initial_backoff", "nan"),
    ],
)
def test_a_value_that_cannot_be_meant_is_told_with_its_place(places, name, value):
    path = places.write(places.user, f"{name} = {value}\n")
    with pytest.raises(SettingsError) as told:
        places.read()
    assert str(told.value).startswith(f"{path}: {name} must be ")
    with pytest.raises(SettingsError, match=f"Environment variable MULLIGAN_{name.upper()}: {name} must be"):
        settings.load_settings(
            {}, {f"MULLIGAN_{name.upper()}": value.strip("'")}, places.project, Path("/nonexistent/mulligan/tests")
        )


@pytest.mark.parametrize(
    ("wrong", "meant"), [("attempt", "attempts"), ("strore", "store"), ("max_backof", "max_backoff")]
)
def test_an_unknown_setting_is_refused_with_the_nearest_name(places, wrong, meant):
    path = places.write(places.project / "mulligan.toml", f"{wrong} = 1\n")
    with pytest.raises(SettingsError) as told:
        places.read()
    assert str(told.value) == f"{path}: unknown setting {wrong!r}. Did you mean {meant}?"
    with pytest.raises(SettingsError, match="configure: unknown setting"):
        settings.load_settings({wrong: 1}, {}, Path("/nonexistent/mulligan/tests"), Path("/nonexistent/mulligan/tests"))


def test_an_unknown_setting_near_to_nothing_is_told_all_names(places):
    with pytest.raises(SettingsError, match=f"Available settings: {', '.join(SETTING_NAMES)}"):
        places.read(zzzzzz=1)


def test_other_programs_variables_are_not_ours(places):
    assert places.read({"MULLIGAN_OF_THE_GOLF_CLUB": "1", "MULLIGANS": "2"}) == Settings()


# A project's file comes with strangers' code


@pytest.mark.parametrize("name", ["redact_ignore", "unredacted_arguments"])
def test_a_project_cannot_let_more_be_kept_or_done(places, name):
    path = places.write(places.project / "mulligan.toml", f"{name} = ['.*']\n")
    with pytest.raises(SettingsError) as told:
        places.read()
    assert str(path) in str(told.value)
    assert f"MULLIGAN_{name.upper()}" in str(told.value)


def test_where_several_people_read_only_listed_values_are_kept_unless_the_user_says_otherwise(places):
    places.write(places.project / "mulligan.toml", "level = 'local'\n")
    team = {"store": "postgresql://db/mulligan"}
    assert places.read(**team).level == "shared"
    assert places.read(**team, level="local").level == "local"
    assert places.read().level == "local"


def test_a_project_cannot_loosen_the_level_its_user_chose(places):
    places.write(places.user, "level = 'shared'\n")
    places.write(places.project / "mulligan.toml", "level = 'local'\n")
    with pytest.raises(SettingsError, match="cannot loosen level"):
        places.read()


def test_project_cannot_let_memory_run_calls(places):
    path = places.write(places.project / "mulligan.toml", "learn = 'repair'\n")
    with pytest.raises(SettingsError, match="learn") as refusal:
        places.read()
    assert str(path) in str(refusal.value)


def test_project_can_switch_memory_off(places):
    places.write(places.project / "mulligan.toml", "learn = 'off'\n")
    assert places.read().learn == "off"


def test_a_project_cannot_keep_more_than_its_user_chose(places):
    places.write(places.user, "record = 'shape'\n")
    places.write(places.project / "mulligan.toml", "record = 'full'\n")
    with pytest.raises(SettingsError, match="cannot loosen record"):
        places.read()
    places.write(places.project / "mulligan.toml", "record = 'off'\n")
    assert places.read().record == "off"


def test_a_project_may_tighten(places):
    places.write(places.user, "redact_names = ['mine']\n")
    places.write(places.project / "mulligan.toml", "level = 'shared'\nredact_names = ['theirs']\n")
    read = places.read()
    assert (read.level, read.redact_names) == ("shared", ("mine", "theirs"))


# Where a project's file is


def test_the_nearest_file_upwards_counts(places):
    places.write(places.project.parent / "mulligan.toml", "agent = 'far'\n")
    assert places.read().agent == "far"
    places.write(places.project / "mulligan.toml", "agent = 'near'\n")
    assert places.read().agent == "near"


def test_a_project_may_use_its_pyproject(places):
    places.write(places.project / "pyproject.toml", "[tool.mulligan]\nagent = 'p'\nattempts = 2\n")
    read = places.read()
    assert (read.agent, read.policy.attempts) == ("p", 2)
    places.write(places.project / "mulligan.toml", "agent = 'own'\n")
    assert places.read().agent == "own"


def test_a_pyproject_without_us_is_passed_over(places):
    places.write(places.project / "pyproject.toml", "[tool.ruff]\nline-length = 120\n")
    places.write(places.project.parent / "mulligan.toml", "agent = 'above'\n")
    assert places.read().agent == "above"


@pytest.mark.parametrize("text", ["tool = 1\n", "[project]\nname = 'x'\n", ""])
def test_a_pyproject_of_any_shape_is_survived(places, text):
    places.write(places.project / "pyproject.toml", text)
    assert places.read() == Settings()


def test_a_table_of_ours_that_is_none_is_told(places):
    places.write(places.project / "pyproject.toml", "[tool]\nmulligan = 5\n")
    with pytest.raises(SettingsError, match=r"\[tool.mulligan\] must be a table"):
        places.read()


def test_a_file_that_is_not_toml_is_told_with_its_name(places):
    path = places.write(places.user, "attempts = = 3\n")
    with pytest.raises(SettingsError, match="is not valid TOML") as told:
        places.read()
    assert str(path) in str(told.value)
    path.write_bytes(b"\xff\xfe")
    with pytest.raises(SettingsError, match="is not valid TOML"):
        places.read()


def test_a_folder_in_the_place_of_a_file_is_told(places):
    places.user.mkdir()
    with pytest.raises(SettingsError, match="Cannot read"):
        places.read()


@pytest.mark.slow
def test_a_removed_working_folder_has_no_project(tmp_path):
    code = """
        import os, sys
        from pathlib import Path
        os.makedirs(sys.argv[1]); os.chdir(sys.argv[1]); os.rmdir(sys.argv[1])
        from mulligan import settings
        assert settings.load_settings({}, {}, user_file=Path("/nonexistent/mulligan/tests")) == settings.Settings()
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(code), str(tmp_path / "gone")], capture_output=True, check=False
    )
    assert done.returncode == 0, done.stderr.decode()


# Switches and policies


@pytest.mark.parametrize("value", ["off", "OFF", "0", "false"])
def test_everything_can_be_switched_off_with_one_variable(places, value):
    assert places.read({"MULLIGAN": value}).enabled is False


def test_one_variable_overrides_the_setting_of_the_environment(places):
    assert places.read({"MULLIGAN": "off", "MULLIGAN_ENABLED": "true"}).enabled is False


@pytest.mark.parametrize("value", ["false", "False", "0", "off"])
def test_setting_enabled_disables_from_the_environment(places, value):
    assert places.read({"MULLIGAN_ENABLED": value}).enabled is False


@pytest.mark.parametrize("value", ["true", "1", "on", ""])
def test_setting_enabled_ignores_an_empty_variable(places, value):
    assert places.read({"MULLIGAN_ENABLED": value}).enabled is True


def test_setting_enabled_is_read_from_files(places):
    places.write(places.user, "enabled = false\n")
    assert places.read().enabled is False
    places.write(places.project / "mulligan.toml", "enabled = true\n")
    assert places.read().enabled is True


def test_setting_off_is_unknown(places):
    with pytest.raises(SettingsError, match="unknown setting 'off'"):
        places.read(off=True)


@pytest.mark.parametrize("value", ["", "on", "1", "anything"])
def test_other_values_of_that_variable_leave_it_on(places, value):
    assert places.read({"MULLIGAN": value}).enabled is True


def test_a_policy_may_be_given_whole(places):
    places.write(places.user, "attempts = 5\n")
    assert places.read(policy=Policy(attempts=2)).policy == Policy(attempts=2)


def test_a_policy_and_a_part_of_it_cannot_both_be_given(places):
    with pytest.raises(SettingsError, match="attempts is part of policy"):
        places.read(policy=Policy(), attempts=2)


def test_a_policy_is_a_policy(places):
    with pytest.raises(SettingsError, match=r"mulligan\.Policy"):
        places.read(policy={"attempts": 2})


def test_lists_in_the_environment_are_separated_by_commas(places):
    assert places.read({"MULLIGAN_REDACT_NAMES": "pin, badge ,"}).redact_names == ("pin", "badge")


def test_a_path_is_as_good_as_a_text(places):
    assert places.read(home=Path("/data")).store_url == str(Path("/data") / "mulligan.db")


def test_variable_that_resembles_ours_is_ignored_with_a_warning(places, caplog):
    with caplog.at_level("WARNING", "mulligan"):
        assert places.read({"MULLIGAN_ATEMPTS": "2"}) == places.read()
        assert places.read({"MULLIGAN_TEST_POSTGRES": "x", "MULLIGANS": "3"}) == places.read()
    assert [record.getMessage() for record in caplog.records] == [
        "Unknown environment variable MULLIGAN_ATEMPTS. Did you mean MULLIGAN_ATTEMPTS? It is ignored."
    ]


@pytest.mark.parametrize("variable", ["MULLIGAN_RECROD", "MULLIGAN_REDACT_NAME"])
def test_nothing_is_recorded_where_a_variable_that_keeps_values_out_is_misspelled(places, variable):
    assert places.read({variable: "pin", "MULLIGAN_RECORD": "full"}).record == "off"


def test_a_door_reads_the_users_file_only_and_repairs_nothing_unasked(tmp_path, monkeypatch):
    (tmp_path / "mulligan.toml").write_text('mode = "repair"\nagent = "stranger"\n')
    monkeypatch.chdir(tmp_path)
    user = tmp_path / "user.toml"
    read = settings.load_settings(environment={}, user_file=user, of_user=True)
    assert (read.mode, read.agent) == ("suggest", "")
    user.write_text('mode = "repair"\n')
    assert settings.load_settings(environment={}, user_file=user, of_user=True).mode == "repair"
    assert (
        settings.load_settings(environment={"MULLIGAN_MODE": "observe"}, user_file=user, of_user=True).mode == "observe"
    )


@pytest.mark.parametrize(
    ("rule", "told"),
    [
        ({"effect": "none"}, "unknown option 'effect'"),
        ({"effects": "never"}, "effects must be none, idempotent or once"),
        ({"category": "disk"}, "category must be shell, file, fetch"),
        ({"returns": "text"}, "returns must be content or status"),
        ({"detect_errors": "all"}, 'detect_errors must be true, false or "text"'),
        ({"mode": "fix"}, "mode must be observe, suggest or repair"),
        ({"privileged": "amount"}, "privileged must be a list of strings"),
        ({"privileged": [1]}, "privileged must be a list of strings"),
        ({"timeout": True}, "timeout must be a number of seconds"),
        ({"timeout": -1}, "timeout must be a number of seconds"),
        ({"destructive": 1}, "destructive must be true or false"),
        ("repair", "must be a table"),
    ],
)
def test_a_rule_for_a_tool_that_cannot_be_meant_is_refused(tmp_path, rule, told):
    with pytest.raises(SettingsError, match=told):
        settings.load_settings({"tools": {"files.*": rule}}, {}, tmp_path, tmp_path / "none.toml")


def test_a_rule_for_a_tool_is_the_users_and_never_a_projects(tmp_path):
    (tmp_path / "user.toml").write_text('[tools."files.read"]\neffects = "none"\n')
    (tmp_path / "mulligan.toml").write_text('[tools."files.read"]\nmode = "repair"\n')
    with pytest.raises(SettingsError, match="a project file cannot set"):
        settings.load_settings({}, {}, tmp_path, tmp_path / "user.toml")
    read = settings.load_settings({}, {}, tmp_path, tmp_path / "user.toml", of_user=True)
    assert read.tools == {"files.read": {"effects": "none"}}


def test_a_removed_setting_of_a_file_or_the_environment_is_ignored_and_names_its_replacement(places, caplog) -> None:
    places.write(places.project / "mulligan.toml", "retry_budget_burst = 50\ncircuit_breaker = false\nattempts = 2\n")
    with caplog.at_level("WARNING", "mulligan"):
        loaded = settings.load_settings(
            environment={"MULLIGAN_RETRY_BUDGET_RATIO": "0.5"}, folder=places.project, user_file=places.user
        )
    assert loaded.policy == Policy(attempts=2)
    text = caplog.text
    assert "retry_budget_burst was removed and is ignored. Use retry_tokens" in text
    assert "circuit_breaker was removed and is ignored. Use down_after = 0" in text
    assert "environment: retry_budget_ratio was removed and is ignored. Use retry_tokens" in text


def test_a_removed_setting_of_the_program_is_refused_with_its_replacement() -> None:
    with pytest.raises(SettingsError, match=r"configure: retry_budget_burst was removed\. Use retry_tokens"):
        settings.check_overrides({"retry_budget_burst": 50})
