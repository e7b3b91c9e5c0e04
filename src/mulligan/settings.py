"""Settings: keyword arguments override the environment, `mulligan.toml`, the user's file and defaults, in this
order."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Collection, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any, Literal, get_args

import msgspec

from mulligan.core.failure import Returns, SettingsError, ToolCategory, require_choice
from mulligan.core.log import get_logger
from mulligan.recover.policy import REMOVED_SETTINGS, Learn, Mode, Policy

log = get_logger(__name__)

Level = Literal["local", "shared"]
Recording = Literal["full", "shape", "off"]
LogLevel = Literal["off", "warning", "info", "debug"]

POLICY_NAMES = tuple(name for name in Policy.__struct_fields__ if name not in REMOVED_SETTINGS)
"""Policy settings are set like all others: `attempts = 2`, `MULLIGAN_ATTEMPTS=2`."""
STRICTNESS = {"level": ("shared", "local"), "record": ("off", "shape", "full"), "learn": ("off", "tell", "repair")}
"""Settings that a project file can only tighten, the strictest value first."""
NOT_FOR_PROJECTS = (
    "redact_ignore",
    "unredacted_arguments",
    "tools",
    "reflect",
    "reflect_key",
    "alert_command",
    "alert_webhook",
    "base_url",
    "alerts",
)
"""Settings that a project file cannot set. Its author is not the user: it may tighten redaction, never loosen it, and
neither send records elsewhere nor run commands."""


TEST_FOLDERS = "MULLIGAN_TEST_FOLDERS"
"""Environment variable of the pytest plugin: folders in which a test may open a store. Every other store is replaced
by one in memory."""


TOOL_CHOICES = {
    "effects": ("none", "idempotent", "once"),
    "category": get_args(ToolCategory),
    "returns": get_args(Returns),
    "mode": get_args(Mode),
    "record": get_args(Recording),
    "learn": get_args(Learn),
}
TOOL_TYPES: dict[str, tuple[Any, str]] = {
    "privileged": (list[str], "a list of strings"),
    "unprivileged": (list[str], "a list of strings"),
    "clamp": (list[str], "a list of strings"),
    "destructive": (bool, "true or false"),
    "detect_errors": (bool | Literal["text"], 'true, false or "text"'),
    "timeout": (Annotated[float, msgspec.Meta(ge=0, lt=1e9)], "a number of seconds"),
}
"""Tool options without choices: their type, and its description for error messages."""


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    store: str = ""
    """The store: a path, `sqlite:///PATH`, `memory:`, `postgresql://HOST/DATABASE`, or the http(s) address of a server.

    Empty means a file in `home`.
    """
    token: str = ""
    """The access token for a server. Create one with `mulligan token create --role ingest`."""
    home: str = ""
    """The folder for mulligan's files. Empty means the user's data folder."""
    agent: str = ""
    """The agent name for runs without one."""
    environment: str | None = None
    """The environment: production, staging, a laptop."""
    mode: Mode = "repair"
    """The recovery mode: observe only records, suggest also retries, repair also changes arguments."""
    record: Recording = "full"
    """The record level: full, shape (types and lengths, no text and no results), or off."""
    fsync: bool = False
    """Whether records survive a crash of the machine, not only of the process. Each call then waits for the disk."""
    level: Level = "local"
    """The redaction level: local removes secrets, shared removes all values except `unredacted_arguments`.

    The default is shared for PostgreSQL, which several people read.
    """
    redact_names: tuple[str, ...] = ()
    """Additional argument names whose values are always redacted."""
    redact_patterns: tuple[str, ...] = ()
    """Additional regular expressions for texts to redact."""
    redact_ignore: tuple[str, ...] = ()
    """Texts that look like secrets but are not redacted."""
    unredacted_arguments: tuple[str, ...] = ()
    """At level shared: names of arguments whose values are stored."""
    learn: Learn = "tell"
    """The use of memory: off ignores it, tell informs models and applies promoted form changes and approved fixes,
    repair also runs promoted prerequisites."""
    holdout: float = 0.05
    """The share of runs in which a model is not told a learned fix that models have followed in five runs, or not shown
    its lesson, so that the effect can be measured. From 0 to 0.5. Reminders and repairs have settings of their own."""
    holdout_reminders: float = 0.0
    """The share of sessions without reminders after a compaction, so that their effect can be measured. 0 to 0.5."""
    holdout_repairs: float = 0.0
    """The share of runs in which a tool's calls are not repaired, by run and tool, so that the effect of repairs can be
    measured. From 0 to 0.5."""
    reflect: Any = ""
    """The reflector, your own model as the last resort for a failed call: `https://host/v1#model` of an endpoint that
    speaks OpenAI's protocol, or `module:function`. `configure` also takes a function, a client or a
    `mulligan.Reflector`. Empty means none."""
    reflect_key: str = ""
    """The API key of that endpoint."""
    alert_command: str = ""
    """The command that `mulligan serve` runs for each alert, with the alert as JSON on standard input."""
    alert_webhook: str = ""
    """The URL to which `mulligan serve` posts each alert, in the format of Slack's incoming webhooks."""
    base_url: str = ""
    """The address of the dashboard for its users, such as `https://mulligan.example.com`: links of alerts start with
    it. Empty means the server's own address, and no links from a server beyond loopback."""
    log: LogLevel = "off"
    """The log level: off, warning (failures), info (also retries, repairs and recoveries) or debug (everything).

    True means info. Records go to the handlers that the program has configured, else to standard error.
    """
    enabled: bool = True
    """Whether mulligan records and recovers calls. If false, calls pass through unchanged. The environment variable
    `MULLIGAN=off` also disables it."""
    control_flow: tuple[str, ...] = ()
    """Additional exception classes that are no failures, as `module:Class`. `configure` also takes the classes."""
    injected_types: tuple[str, ...] = ()
    """Additional types whose parameters are not arguments, as `module:Class`. `configure` also takes the classes."""
    policy: Policy = msgspec.field(default_factory=Policy)
    kinds: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """User-defined kinds of failures; see docs/classify.md."""
    rules: tuple[Any, ...] = ()
    """User-defined classification rules. They run before the built-in rules."""
    prices: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Prices by model, in US dollars per million tokens: `{"my-model": {"input": 2.0, "output": 8.0}}`.

    They replace the shipped prices of these models; see docs/models.md.
    """
    alerts: Mapping[str, Any] = msgspec.field(default_factory=dict)
    """Targets and rules of the alerts that `mulligan serve` sends: see docs/server.md."""
    tools: Mapping[str, Mapping[str, Any]] = msgspec.field(default_factory=dict)
    """Options for tools of servers behind `mulligan proxy`, by `server.tool`, `server.*` or `*`."""

    def __post_init__(self) -> None:
        require_choice("mode", self.mode, get_args(Mode))
        require_choice("record", self.record, get_args(Recording))
        require_choice("level", self.level, get_args(Level))
        require_choice("learn", self.learn, get_args(Learn))
        require_choice("log", self.log, get_args(LogLevel))
        if self.base_url and not re.fullmatch(r"https?://[\w.:\[\]-]+(/[\w./~-]*)?", self.base_url, re.ASCII):
            raise SettingsError(
                f"base_url must be an address such as https://mulligan.example.com, got {self.base_url!r}."
            )
        for name in ("holdout", "holdout_reminders", "holdout_repairs"):
            share = getattr(self, name)
            if not 0 <= share <= 0.5:
                raise SettingsError(f"{name} must be between 0 and 0.5, got {share}. To hold out nothing, set 0.")

    @property
    def folder(self) -> Path:
        return Path(self.home).expanduser() if self.home else data_folder()

    @property
    def store_url(self) -> str:
        return self.store or str(self.folder / "mulligan.db")


CLASS_SETTINGS = ("control_flow", "injected_types")
"""Settings that name classes. Those of all sources are added up."""
TABLE_NAMES = ("kinds", "rules", "prices", "alerts", "tools")
"""Tables, for files and `configure` only. They have no environment variables."""
SETTING_NAMES = (
    tuple(name for name in Settings.__struct_fields__ if name not in ("policy", *TABLE_NAMES)) + POLICY_NAMES
)


ENVIRONMENT_SOURCE = "environment"


def load_settings(
    arguments: Mapping[str, Any] | None = None,
    environment: Mapping[str, str] | None = None,
    folder: Path | None = None,
    user_file: Path | None = None,
    *,
    of_user: bool = False,
) -> Settings:
    """Load the effective settings. Raises `SettingsError` for invalid names or values, with a suggestion.

    `of_user` is for hooks, proxy and `mulligan mcp`, which other programs start in any folder: it ignores project
    files, and the mode is suggest unless the user sets another.
    """
    environ = os.environ if environment is None else environment
    sources = read_sources(environ, folder, user_file, of_user=of_user)
    merged: dict[str, Any] = {}
    for values in sources.values():
        _merge(merged, dict(values))
    overrides, policy = check_overrides(arguments or {})
    _merge(merged, overrides)
    if of_user:
        merged.setdefault("mode", "suggest")
    settings = _build_settings(merged, policy)
    test_folders = environ.get(TEST_FOLDERS)
    names = {*sources[ENVIRONMENT_SOURCE], *overrides}
    if test_folders is None or _is_test_store(settings, names, test_folders.split(os.pathsep)):
        return settings
    return msgspec.structs.replace(settings, store="memory:", token="")


def read_sources(
    environment: Mapping[str, str], folder: Path | None = None, user_file: Path | None = None, *, of_user: bool = False
) -> dict[str, dict[str, Any]]:
    """Return the checked settings of the user file, the project file and the environment, by name of the source."""
    user = user_file if user_file is not None else config_folder() / "mulligan.toml"
    user_values = _check_values(_skip_removed(_read_toml(user), str(user)), str(user))
    sources = {str(user): user_values}
    project = None if of_user else _find_project_file(folder if folder is not None else _current_folder())
    if project is not None:
        path, values = project
        values = _skip_removed(values, str(path))
        sources[str(path)] = _check_project(_check_values(values, str(path)), user_values, path, user)
    sources[ENVIRONMENT_SOURCE] = {
        name: _check_value(name, value, f"Environment variable MULLIGAN_{name.upper()}")
        for name, value in _from_environment(environment)
    }
    return sources


def _skip_removed(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    """Return the settings of a source without those of 0.1.0 that are gone. Log what replaces them, once."""
    for name in REMOVED_SETTINGS.keys() & values.keys():
        if (where, name) not in _warned_removals:
            _warned_removals.add((where, name))
            log.warning("%s: %s was removed and is ignored. %s", where, name, REMOVED_SETTINGS[name])
    return {name: value for name, value in values.items() if name not in REMOVED_SETTINGS}


_warned_removals: set[tuple[str, str]] = set()


def _is_test_store(settings: Settings, names: Collection[str], folders: Sequence[str]) -> bool:
    """Return whether a test may use the store: in memory, or a file in one of these folders.

    `names` are the settings that the program or the test made. The store of a settings file, and that of the user's
    data folder, are real, wherever they are.
    """
    url = settings.store_url
    if url.startswith("memory:"):
        return True
    if ("store" if settings.store else "home") not in names or "://" in url.removeprefix("sqlite://"):
        return False
    path = os.path.realpath(os.path.expanduser(url.removeprefix("sqlite://").removeprefix("sqlite:")))
    return any(folder and path.startswith(os.path.join(os.path.realpath(folder), "")) for folder in folders)


def _check_project(values: dict[str, Any], user_values: Mapping[str, Any], path: Path, user: Path) -> dict[str, Any]:
    """Return the settings of a project file. Raise `SettingsError` if it loosens what protects the user."""

    def reject(name: str, reason: str, change: str = "") -> None:
        change = change or f"Set {name} in {user} or as MULLIGAN_{name.upper()}."
        raise SettingsError(f"{path}: a project file cannot {reason}. {change}")

    for name in NOT_FOR_PROJECTS:
        if name in values:
            reject(name, f"set {name}, which would weaken redaction or safety")
    if "token" in values or values.get("store", "").lower().startswith(("http", "postgres")):
        reject("token" if "token" in values else "store", "send records to a server")
    for name, strictest_first in STRICTNESS.items():
        order = strictest_first.index
        if name in values and name in user_values and order(values[name]) > order(user_values[name]):
            reject(name, f"loosen {name}", f"Remove the line, or edit {user}.")
    if values.get("learn") == "repair" and user_values.get("learn") != "repair":
        reject("learn", 'set learn = "repair", which runs calls that memory suggests')
    if values.get("level") == "local":
        del values["level"]  # the store may require shared, and a project cannot loosen that either
    for name in ("redact_names", "redact_patterns"):
        if name in values:
            values[name] = (*user_values.get(name, ()), *values[name])
    return values


def check_overrides(arguments: Mapping[str, Any], where: str = "configure") -> tuple[dict[str, Any], Policy | None]:
    """Check keyword settings and split off the policy. Reads no files."""
    overrides = dict(arguments)
    policy = overrides.pop("policy", None)
    duplicate = next((name for name in POLICY_NAMES if name in overrides), None)
    if policy is not None and duplicate:
        raise SettingsError(f"{where}: {duplicate} is part of policy, and both were given. Pass only one of them.")
    if policy is not None and not isinstance(policy, Policy):
        raise SettingsError(f"{where}: policy must be a mulligan.Policy, got {type(policy).__name__}.")
    return _check_values(overrides, where), policy


def _merge(merged: dict[str, Any], values: dict[str, Any]) -> None:
    """Add the values of a more specific source. Its rules run before the existing ones, its tables and classes are
    added."""
    for name in ("kinds", "prices", "alerts", "tools"):
        if name in values:
            values[name] = {**merged.get(name, {}), **values[name]}
    for name in ("rules", *CLASS_SETTINGS):
        if name in values:
            values[name] = (*values[name], *merged.get(name, ()))
    merged.update(values)


def _build_settings(merged: dict[str, Any], policy: Policy | None) -> Settings:
    fields = {name: merged.pop(name) for name in POLICY_NAMES if name in merged}
    if merged.get("store", "").lower().startswith("postgres"):
        merged.setdefault("level", "shared")  # several people read such a store (SAFETY 3)
    return Settings(**merged, policy=policy or Policy(**fields))


def _check_values(values: Mapping[str, Any], where: str) -> dict[str, Any]:
    return {name: _check_value(name, value, where) for name, value in values.items()}


def _check_value(name: str, value: Any, where: str) -> Any:
    if name == "rules" and isinstance(value, list | tuple):
        return tuple(value)
    if name in ("kinds", "prices", "alerts", "tools") and isinstance(value, Mapping):
        is_tools = name == "tools"
        return {key: _check_tool_options(key, item, where) if is_tools else item for key, item in value.items()}
    if name in TABLE_NAMES:
        description = "a list of tables" if name == "rules" else "a table"
        raise SettingsError(f"{where}: {name} must be {description}, got {value!r}.")
    if name in REMOVED_SETTINGS:
        raise SettingsError(f"{where}: {name} was removed. {REMOVED_SETTINGS[name]}")
    if name not in SETTING_NAMES:
        import difflib  # lazy: needed only for errors

        setting_names = (*SETTING_NAMES, *TABLE_NAMES)
        near = difflib.get_close_matches(name, setting_names, n=1)
        suggestion = f"Did you mean {near[0]}?" if near else f"Available settings: {', '.join(setting_names)}."
        raise SettingsError(f"{where}: unknown setting {name!r}. {suggestion}")
    if name in CLASS_SETTINGS:
        return _check_classes(name, value, where)
    if name == "reflect" and not isinstance(value, str):
        if isinstance(value, bool | int | float | list | tuple | dict):
            raise SettingsError(f"{where}: reflect must be an address or module:function, got {value!r}.")
        return value
    if name == "log":
        value = LOG_SWITCHES.get(str(value).casefold(), str(value).casefold())
    converted = _convert(f"{where}: {name}", value, *_TYPES.get(_ANNOTATIONS[name], (str, "a string")))
    try:
        _build_settings({name: converted}, None)  # checked alone, so that the error names the source of the value
    except SettingsError as error:
        raise SettingsError(f"{where}: {error}") from None
    return converted


def _check_classes(name: str, value: Any, where: str) -> tuple[str, ...]:
    """Return the qualified names of classes. A class can be given itself, or as `module:Class`."""
    if isinstance(value, str):
        value = [part.strip() for part in value.split(",") if part.strip()]
    entries = value if isinstance(value, list | tuple | set | frozenset) else [value]
    return tuple(_check_class(entry, name, f"{where}: {name}") for entry in entries)


def _check_class(entry: Any, name: str, location: str) -> str:
    base, expected = (BaseException, "exception classes") if name == "control_flow" else (object, "classes")
    cls = entry
    if isinstance(entry, str):
        module, colon, path = entry.partition(":")
        if not colon or not all(part.isidentifier() for part in (*module.split("."), *path.split("."))):
            near = ":".join(entry.rpartition(".")[::2]) if not colon and "." in entry else "myapp.errors:Pause"
            raise SettingsError(
                f"{location} must be {expected}, got {entry!r}. Use module:Class, for example {near!r}."
            )
        cls = _find_class(module, path)
        if cls is None:
            return entry  # of a module that is not loaded yet
    if not isinstance(cls, type) or not issubclass(cls, base):
        raise SettingsError(f"{location} must be {expected}, got {entry!r}.")
    if cls in (Exception, BaseException, object):
        raise SettingsError(f"{location} must be {expected} more specific than {entry!r}, which matches everything.")
    return f"{cls.__module__}:{cls.__qualname__}"


def _find_class(module: str, path: str) -> Any:
    """Return what a qualified name stands for; None if its module is not loaded or has no such name."""
    target: Any = sys.modules.get(module)
    for part in path.split("."):
        target = getattr(target, part, None)
    return target


def _check_tool_options(tool: str, rule: Any, where: str) -> dict[str, Any]:
    """Check the options of one tool. An unknown option would silently protect nothing."""
    location = f'{where}: [tools."{tool}"]'
    if not isinstance(rule, Mapping):
        raise SettingsError(f"{location} must be a table, got {rule!r}.")
    for name, value in rule.items():
        if name in TOOL_CHOICES:
            try:
                require_choice(name, value, TOOL_CHOICES[name])
            except SettingsError as error:
                raise SettingsError(f"{location}: {error}") from None
        elif name in TOOL_TYPES:
            _convert(f"{location}: {name}", value, *TOOL_TYPES[name])
        else:
            names = ", ".join((*TOOL_CHOICES, *TOOL_TYPES))
            raise SettingsError(f"{location}: unknown option {name!r}. Options: {names}.")
    return dict(rule)


LOG_SWITCHES = {"true": "info", "on": "info", "1": "info", "false": "off", "": "off", "0": "off"}
"""Values of `log` that switch it on or off without a level."""
_SWITCHES = {"on": True, "off": False, "": False}
_TYPES: dict[str, tuple[Any, str]] = {
    "tuple[str, ...]": (tuple[str, ...], "a list of strings"),
    "int": (int, "an integer"),
    "int | None": (int, "an integer"),
    "float": (float, "a number"),
    "float | None": (float, "a number"),
    "bool": (bool, "true or false"),
}
"""Types of settings that are converted, by annotation, with a description. All other settings are strings."""
_ANNOTATIONS = {**Settings.__annotations__, **Policy.__annotations__}


def _convert(name: str, value: Any, type: Any, description: str) -> Any:
    """Convert a value to a type. A text, as in an environment variable, may state a number, a switch or a list."""
    raw = os.fspath(value) if isinstance(value, os.PathLike) else value
    if isinstance(raw, str) and type == tuple[str, ...]:
        return tuple(part.strip() for part in raw.split(",") if part.strip())
    if isinstance(raw, str) and type is bool:
        raw = _SWITCHES.get(raw.casefold(), raw)
    try:
        return msgspec.convert(raw, type, strict=not isinstance(raw, str))
    except msgspec.ValidationError:
        raise SettingsError(f"{name} must be {description}, got {value!r}.") from None


def _from_environment(environ: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    variables = {f"MULLIGAN_{name.upper()}": name for name in SETTING_NAMES}
    removed = {name: f"MULLIGAN_{name.upper()}" for name in REMOVED_SETTINGS}
    _skip_removed({name: "" for name, variable in removed.items() if variable in environ}, ENVIRONMENT_SOURCE)
    environ = {variable: value for variable, value in environ.items() if variable not in removed.values()}
    misspelled_names = set(_warn_of_misspelled(environ, variables))
    for variable, name in variables.items():
        value = environ.get(variable)
        if value == "" and name == "enabled":
            continue  # an empty variable counts as unset, and must not disable mulligan
        if value is not None:
            yield name, value
    if environ.get("MULLIGAN", "").casefold() in ("off", "0", "false"):
        yield "enabled", "false"  # last: it overrides MULLIGAN_ENABLED
    if misspelled_names & _PRIVACY_SETTINGS:
        yield "record", "off"


_PRIVACY_SETTINGS = frozenset({"record", "level", "redact_names", "redact_patterns"})
"""Settings that keep values out of the store. If the variable of one is misspelled, nothing is recorded."""
_warned_variables: set[str] = set()


def _warn_of_misspelled(environ: Mapping[str, str], variables: Mapping[str, str]) -> Iterator[str]:
    """Warn, once per process, of each variable that resembles one of ours. Yield the names of those settings."""
    for environment_name in environ:
        if environment_name.startswith("MULLIGAN_") and environment_name not in variables:
            import difflib  # lazy: rarely needed

            # Report only close matches: other programs may use variables with the same prefix.
            for near in difflib.get_close_matches(environment_name, variables, n=1, cutoff=0.9):
                name = variables[near]
                effect = "Until this is fixed, nothing is recorded." if name in _PRIVACY_SETTINGS else "It is ignored."
                if environment_name not in _warned_variables:
                    _warned_variables.add(environment_name)
                    log.warning("Unknown environment variable %s. Did you mean %s? %s", environment_name, near, effect)
                yield name


def _current_folder() -> Path | None:
    try:
        return Path.cwd()
    except OSError:  # the current folder was deleted, so there is no project
        return None


def _find_project_file(folder: Path | None) -> tuple[Path, dict[str, Any]] | None:
    """Return the nearest `mulligan.toml`, or `[tool.mulligan]` of a `pyproject.toml`, in this folder or above."""
    for directory in (folder, *folder.parents) if folder else ():
        project_file = directory / "mulligan.toml"
        if _is_file(project_file):
            return project_file, _read_toml(project_file)
        pyproject_file = directory / "pyproject.toml"
        if _is_file(pyproject_file):
            tools = _read_toml(pyproject_file, mention=b"mulligan").get("tool", {})
            if isinstance(tools, dict) and "mulligan" in tools:
                if not isinstance(tools["mulligan"], dict):
                    raise SettingsError(
                        f"{pyproject_file}: [tool.mulligan] must be a table, got {tools['mulligan']!r}."
                    )
                return pyproject_file, dict(tools["mulligan"])
    return None


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except OSError:  # no permission to read the folder
        return False


def _read_toml(path: Path, mention: bytes = b"") -> dict[str, Any]:
    """Read a TOML file, unless it is missing or does not mention this name."""
    try:
        data = path.read_bytes()
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"Cannot read {path} ({error.strerror}).") from None
    if mention not in data:
        return {}
    import tomllib  # lazy: takes 10 ms, and most users have no file

    try:
        return tomllib.loads(data.decode())
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise SettingsError(f"{path} is not valid TOML: {error}.") from None


def data_folder() -> Path:
    if sys.platform == "darwin":
        return _home() / "Library" / "Application Support" / "mulligan"
    if sys.platform == "win32":
        return Path(os.environ.get("LOCALAPPDATA") or _home() / "AppData" / "Local") / "mulligan"
    return Path(os.environ.get("XDG_DATA_HOME") or _home() / ".local" / "share") / "mulligan"


def hook_folder() -> Path:
    """Return the folder for the state of coding agent hooks. The first hook stage computes it on its own."""
    home_override = os.environ.get("MULLIGAN_HOME")
    return (Path(home_override).expanduser() if home_override else data_folder()) / "hooks"


def config_folder() -> Path:
    if sys.platform in ("darwin", "win32"):
        return data_folder()
    return Path(os.environ.get("XDG_CONFIG_HOME") or _home() / ".config") / "mulligan"


def _home() -> Path:
    try:
        return Path.home()
    except RuntimeError:  # neither HOME nor an entry in the password file
        return Path("/nonexistent")
