"""From command-line overrides to one typed `SegueConfig`, or to one line that says what is wrong.

Hydra composes `conf/<command>.yaml` (or `conf/config.yaml`), the groups `model`, `env`, `algorithm`, `experiment` and
the overrides over the schema; nothing of Hydra leaves this file: what it returns are plain dataclasses, checked by
`segue.conf.rules`, with paths made absolute against the launch folder.
"""

import functools
import itertools
import re
import shlex
from collections.abc import Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from importlib.resources import files
from pathlib import Path
from typing import Any, cast

from hydra import compose, initialize_config_dir, initialize_config_module
from hydra.core.config_store import ConfigStore
from hydra.core.global_hydra import GlobalHydra
from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override
from hydra.errors import HydraException, MissingConfigException, OverrideParseException
from omegaconf import OmegaConf
from omegaconf.errors import OmegaConfBaseException, ValidationError
from yaml import YAMLError  # type: ignore[import-untyped]

from segue.conf.errors import ConfigError
from segue.conf.flatten import flatten
from segue.conf.groups import GROUPS, group_options
from segue.conf.judge import resolve_judge
from segue.conf.keys import (
    FREE_FORM,
    describe_type,
    element_key,
    element_sections,
    is_free_form,
    known_keys,
    nearest_word,
    unknown_key_message,
)
from segue.conf.model_config import ModelConfig
from segue.conf.reward_term import JUDGE_TERM
from segue.conf.rules import check_rules
from segue.conf.schema import EnvConfig, SegueConfig
from segue.conf.secret import MASK, mask_override, names_secret

STORED_NAME = "config.yaml"
_STORED_HEADER = "defaults:\n- base_config\n"
SHIPPED_WARM_START = "warm_start"
RESUMING_COMMANDS = ("train", "pretrain")
# what stands behind it is a path
_SQLITE = "sqlite:///"
MAX_JOBS = 1000
"""Of one `--multirun`."""

# keys, or whole sections, that a resumed run may be given anew
CHANGEABLE_ON_RESUME = (
    "run.dir",
    "run.console",
    "simulate",
    "run.loggers",
    "run.wandb",
    "run.mlflow",
    "env.import_folder",
    "train.steps",
    "train.eval_every",
    "train.checkpoint_every",
    "train.keep_checkpoints",
    "train.wait_timeout_s",
    "pretrain.steps",
    "pretrain.eval_every",
    "learner.step_timeout_s",
    "eval",
    "cluster",
)


def load_config(overrides: Sequence[str], command: str = "train", *, launch_folder: Path | None = None) -> SegueConfig:
    """Compose, check and resolve the configuration of one run.

    Where `run.dir` holds a run, its stored configuration is the base and `overrides` are applied to it. `train` and
    `pretrain` go on with that run: what may not change must come to the same, and overrides that name a group are
    taken as the whole command line.

    Args:
        overrides: Hydra overrides such as `model=tiny`, `train.steps=3`.
        command: `segue` command; it may have a primary configuration of its own (`conf/pretrain.yaml`).
        launch_folder: relative paths are taken from here; None is the current folder.
    Returns:
        Plain dataclasses; no OmegaConf object inside.
    Raises:
        ConfigError: one line with the full path, what was given, what is allowed and the nearest known key.
    """
    launch = Path.cwd() if launch_folder is None else launch_folder
    parsed = [_parse(text) for text in overrides]
    for override in parsed:
        _refuse_foreign(override)
    config = _resolved(_compose_shipped(command, [*_implied_group(parsed), *parsed]), launch)
    folder = None if config.run.dir is None else Path(config.run.dir)
    if folder is None or not is_file("run.dir", folder / STORED_NAME):
        check_rules(config)
        return config
    stored = load_stored_config(folder)
    config = _based_on_stored(config, parsed, launch)
    check_rules(config)
    if command in RESUMING_COMMANDS:
        _refuse_changes(stored, config)
    return config


def load_stored_config(folder: Path) -> SegueConfig:
    """The configuration of the run that a folder holds.

    Raises:
        ConfigError: there is none, or it is damaged or foreign; the message names the file.
    """
    path = folder / STORED_NAME
    if not is_file("run folder", path):
        require_folder("run folder", folder)
        raise ConfigError(f"run folder must hold a run, got {folder}")
    # YAML that does not name the schema composes to what it likes
    if not path.read_bytes().startswith(_STORED_HEADER.encode()):
        raise ConfigError(f"{path} must be the configuration of a run, got another file")
    try:
        return _compose_stored(folder, [])
    except (ConfigError, YAMLError) as error:
        reason = " ".join(str(error).split())
        raise ConfigError(f"{path} must be the configuration of a run, got {reason}") from error


def job_overrides(overrides: Sequence[str]) -> list[list[str]]:
    """Every combination of the overrides' sweeps (`a=1,2`, `b=range(3)`), the last one varying fastest.

    Raises:
        ConfigError: they are more than `MAX_JOBS`.
    """
    jobs: list[list[str]] = [[]]
    for text in overrides:
        override = _parse(text)
        values = [text]
        if override.is_sweep_override():
            some = itertools.islice(override.sweep_string_iterator(), MAX_JOBS + 1)
            values = [f"{override.get_key_element()}={value}" for value in some]
        if len(jobs) * len(values) > MAX_JOBS:
            raise ConfigError(f"--multirun must come to at most {MAX_JOBS} jobs, got more with {mask_override(text)}")
        jobs = [[*job, value] for job in jobs for value in values]
    return jobs


def text_override(key: str, text: str) -> str:
    """The override that gives a key this text, quoted where the grammar would read something else.

    Example:
        `run.dir=runs/a` and `run.dir="runs/a,b"`.
    """
    plain = f"{key}={text}"
    try:
        override = OverridesParser.create().parse_overrides([plain])[0]
        if not override.is_sweep_override() and override.value() == text:
            return plain
    except OverrideParseException:
        pass
    # backslashes before a quote, or at the end, would be read as its own
    escaped = re.sub(r'(\\*)("|$)', lambda found: found[1] * 2 + found[2].replace('"', '\\"'), text)
    return f'{key}="{escaped}"'


def override_value(text: str) -> Any:
    """What an override without a sweep gives its key.

    Raises:
        ConfigError: it cannot be read.
    """
    return _parse(text).value()


def is_file(key: str, path: Path) -> bool:
    """Whether a key's path leads to a file.

    Raises:
        ConfigError: nobody can say: a name is too long, or a folder may not be looked into.
    """
    try:
        return path.is_file()
    except OSError as error:
        raise ConfigError(f"{key} must be a path that can be looked at, got {path}: {error.strerror}") from error


def require_folder(key: str, folder: Path) -> None:
    """Hold a folder that is to hold a run against what there is.

    Raises:
        ConfigError: there is none.
    """
    if not folder.is_dir():
        beside = sorted(path.name for path in folder.parent.iterdir()) if folder.parent.is_dir() else []
        raise ConfigError(
            f"{key} must be the folder of a run, got {folder}, and there is no such folder"
            f"{nearest_word(folder.name, beside) or '; runs lie in runs/ or where their run.dir was'}"
        )


def config_to_yaml(config: SegueConfig) -> str:
    """The resolved configuration as YAML that composes to itself over the schema."""
    return f"{_STORED_HEADER}- _self_\n\n" + OmegaConf.to_yaml(OmegaConf.structured(config))


def _compose_shipped(command: str, overrides: list[Override]) -> SegueConfig:
    primary = command if (files("segue.conf") / f"{command}.yaml").is_file() else "config"
    with initialize_config_module("segue.conf", version_base="1.3"):
        return _compose(primary, overrides)


def _compose_stored(folder: Path, overrides: list[Override]) -> SegueConfig:
    with initialize_config_dir(str(folder), version_base="1.3"):
        return _compose(Path(STORED_NAME).stem, overrides)


def _compose(primary: str, overrides: list[Override]) -> SegueConfig:
    store = ConfigStore.instance()
    store.store(name="base_config", node=SegueConfig)
    store.store(group="model", name="base_model", node=ModelConfig)
    store.store(group="env", name="base_env", node=EnvConfig)
    # Hydra would merge a dictionary into the one that it replaces
    whole = [override for override in overrides if override.key_or_group in FREE_FORM]
    _refuse_parts_of_a_whole(whole, overrides)
    lines = [_line(override) for override in overrides if override not in whole]
    try:
        config = cast(SegueConfig, OmegaConf.to_object(compose(primary, overrides=lines)))
    except (HydraException, OmegaConfBaseException) as error:
        raise ConfigError(_explain(error, lines)) from error
    except ValueError as error:
        raise ConfigError(str(error)) from error
    finally:
        GlobalHydra.instance().clear()
    _require_sections(config, SegueConfig(), "")
    for override in whole:
        _set_dictionary(config, override)
    return config


def _require_sections(section: Any, schema: Any, prefix: str) -> None:
    """An interpolation may have put a plain value where a section should be."""
    for name in (field.name for field in fields(schema)):
        found, wanted = getattr(section, name), getattr(schema, name)
        if is_dataclass(wanted):
            if type(found) is not type(wanted):
                raise ConfigError(f"{prefix}{name} must be a section, got {found}")
            _require_sections(found, wanted, f"{prefix}{name}.")


def _refuse_parts_of_a_whole(whole: list[Override], overrides: list[Override]) -> None:
    for given in whole:
        key = given.key_or_group
        part = next((other.key_or_group for other in overrides if other.key_or_group.startswith(f"{key}.")), None)
        if part is not None:
            raise ConfigError(
                f"{key} must be given as a whole or by its keys, got both {key} and {part}; "
                f"write {part.removeprefix(f'{key}.')} into {key}={{…}}, or each key as {key}.<key>=<value>"
            )


def _set_dictionary(config: SegueConfig, override: Override) -> None:
    sections, _, name = override.key_or_group.rpartition(".")
    value = override.value()
    if not isinstance(value, dict):
        raise ConfigError(f"{override.key_or_group} must be a dictionary, got {override.get_value_string()}")
    _require_names(override.key_or_group, value)
    setattr(functools.reduce(getattr, sections.split("."), config), name, value)


def _require_names(path: str, value: Any) -> None:
    """Keys are names all the way down: they travel as JSON, which knows no others."""
    if isinstance(value, list):
        for index, item in enumerate(value):
            _require_names(f"{path}.{index}", item)
    if isinstance(value, dict):
        for key, item in value.items():
            if not isinstance(key, str):
                raise ConfigError(f"{path} must be a dictionary by names, got the key {key!r}")
            _require_names(f"{path}.{key}", item)


def _based_on_stored(fresh: SegueConfig, parsed: list[Override], launch: Path) -> SegueConfig:
    """The stored configuration with the overrides applied; the fresh one where an override names a group."""
    assert fresh.run.dir is not None
    if any(override.key_or_group in GROUPS for override in parsed):
        return fresh
    config = _resolved(_compose_stored(Path(fresh.run.dir), parsed), launch)
    config.run.dir = fresh.run.dir
    return config


def _refuse_changes(stored: SegueConfig, config: SegueConfig) -> None:
    before, after = flatten(stored), flatten(config)
    changed = [
        f"{key}: {MASK} -> {MASK}" if names_secret(key) else f"{key}: {before.get(key)} -> {after.get(key)}"
        for key in sorted(before.keys() | after.keys())
        if before.get(key) != after.get(key) and not _is_changeable(key)
    ]
    if changed:
        raise ConfigError(
            f"{config.run.dir} holds a run whose configuration must stay, got {'; '.join(changed)}; "
            f"leave these as they are, or start another run with run.dir=<new folder>"
        )


def _is_changeable(key: str) -> bool:
    return any(key == name or key.startswith(name + ".") for name in CHANGEABLE_ON_RESUME)


def _resolved(config: SegueConfig, launch: Path) -> SegueConfig:
    """Paths made absolute: the process changes to the run folder later."""
    _refuse_blank(config)
    if config.run.dir is not None:
        config.run.dir = absolute_path("run.dir", launch, config.run.dir)
    if config.run.init_from is not None and config.run.init_from != SHIPPED_WARM_START:
        config.run.init_from = absolute_path("run.init_from", launch, config.run.init_from)
    uri = config.run.mlflow.tracking_uri
    if uri is not None and uri.startswith(_SQLITE):
        path = absolute_path("run.mlflow.tracking_uri", launch, uri.removeprefix(_SQLITE))
        config.run.mlflow.tracking_uri = _SQLITE + path
    if config.pretrain.curriculum.text is not None:
        config.pretrain.curriculum.text = absolute_path(
            "pretrain.curriculum.text", launch, config.pretrain.curriculum.text
        )
    config.env.import_folder = absolute_path("env.import_folder", launch, config.env.import_folder or "")
    for name, term in config.rollout.reward_terms.items():
        if isinstance(term, dict) and term.get("term") == JUDGE_TERM and isinstance(term.get("kwargs"), dict):
            resolve_judge(term["kwargs"], partial(absolute_path, f"rollout.reward_terms.{name}.kwargs.model", launch))
    tokenizer = absolute_path("tokenizer", launch, config.tokenizer)
    if is_file("tokenizer", Path(tokenizer)):
        config.tokenizer = tokenizer
    return config


def absolute_path(key: str, launch: Path, path: str) -> str:
    """The path that a key names, from the launch folder; `~` is the user's home, which no shell says behind `key=`.

    Raises:
        ConfigError: it begins with the home of nobody.
    """
    try:
        return str((launch / Path(path).expanduser()).absolute())
    except RuntimeError as error:
        raise ConfigError(f"{key} must begin with the home of a user that there is, got {path}") from error


def _refuse_blank(config: SegueConfig) -> None:
    """An empty path would be the launch folder, an empty id nothing at all."""
    for key, value in flatten(config).items():
        if isinstance(value, str) and not value.strip() and not is_free_form(key):
            raise ConfigError(f"{key} must be {describe_type(key)}, not blank, got {value!r}")


def _parse(text: str) -> Override:
    if not _is_utf8(text):
        # what the shell gave; it could be written to no file and travel to no process
        raise ConfigError(f"override must be UTF-8 text, got {mask_override(text)!r}")
    try:
        override = OverridesParser.create().parse_overrides([text])[0]
    except OverrideParseException as error:
        if (shown := mask_override(text)) != text:
            raise ConfigError(f"override must read key=value, got {shown!r}, whose value needs quotes") from error
        raise ConfigError(f"override must read key=value, got {text!r}{_spacing(text)}{_quoting(text)}") from error
    if not override.key_or_group:
        raise ConfigError(f"override must read key=value, got {text!r}: there is no key")
    return override


def _is_utf8(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return False
    return True


def _spacing(text: str) -> str:
    """The remedy where the shell was not told that it is one word."""
    key, equals, value = text.partition("=")
    if equals and (key != key.strip() or value != value.strip()):
        return "; no spaces around ="
    if value[:1] in ("[", "{") and value[-1:] not in ("]", "}"):
        return "; a list or dictionary with spaces is quoted as a whole: 'key=[a, b]'"
    return ""


def _quoting(text: str) -> str:
    """The remedy where it is only signs in the value that the grammar does not know."""
    key, _, value = text.partition("=")
    quoted = f'{key}="{value}"'
    # what begins so was meant to have parts, or is quoted already
    if not value or value[0] in "{['\"":
        return ""
    try:
        OverridesParser.create().parse_overrides([quoted])
    except OverrideParseException:
        return ""
    return f"; a value with such signs is quoted twice: {shlex.quote(quoted)}"


def _line(override: Override) -> str:
    """Keys of free-form dictionaries need no leading `+`."""
    text = str(override.input_line)
    return f"++{text}" if is_free_form(override.key_or_group) and text[0] not in "+~" else text


def _implied_group(parsed: list[Override]) -> list[Override]:
    """An environment given by its id alone takes its own file, or that of any other, never the default one's."""
    given = {override.key_or_group: override.value() for override in parsed}
    env_id = given.get("env.id", EnvConfig().id)
    if "env" in given or env_id == EnvConfig().id:
        return []
    return [_parse(f"env={env_id if env_id in group_options('env') else 'gymnasium'}")]


def _refuse_foreign(override: Override) -> None:
    key = override.key_or_group
    if override.is_sweep_override():
        raise ConfigError(f"{key} must be one value, got a sweep; add --multirun to run each, or quote it")
    if key in GROUPS:
        if str(override.input_line)[0] in "+~" or override.package is not None:
            raise ConfigError(f"{key} must be set as {key}=<option>, got {override.input_line!r}")
        if not _is_choice(override.value()):
            raise ConfigError(
                f"{key} must be one of {', '.join(group_options(key))}, got {override.get_value_string()}"
            )
        return
    if is_free_form(key):
        return
    if key not in known_keys():
        raise ConfigError(unknown_key_message(key))
    if override.is_add() or override.is_delete():
        raise ConfigError(f"{key} must be set as {key}=<value>, got {override.input_line!r}; every key exists already")


def _is_choice(value: Any) -> bool:
    """True for an option's name, or several to be laid over one another."""
    return isinstance(value, str) or (isinstance(value, list) and all(isinstance(item, str) for item in value))


def _explain(error: Exception, overrides: list[str]) -> str:
    """One line for what Hydra and OmegaConf say over a chain of exceptions."""
    if isinstance(error, MissingConfigException):
        return _missing_option(error)
    cause: BaseException = error
    while cause.__cause__ is not None:
        cause = cause.__cause__
    lines = [line.strip() for line in str(cause).splitlines()]
    # a fault in a shipped or stored file is wrapped without its cause; the first line then names the file
    where = lines.pop(0).split(":")[0] + ": " if lines[0].startswith("In '") else ""
    key = next((line.removeprefix("full_key: ") for line in lines if line.startswith("full_key: ")), None)
    if key is None:
        return where + " ".join(lines)
    key = key.partition("[")[0]
    name = key.partition(".")[0]
    place = _place_of(name, overrides)
    if element := element_key(name):
        shown = element if place is None else f"{place[0]}.{name}"
        return f"{where}{shown} must be {describe_type(element)}, got another; {lines[0]}"
    if place is not None:
        known = nearest_word(name, [field.name for field in fields(place[1])])
        return f"{place[0]}.{name} must be a known key, got an unknown one{known}"
    if key not in known_keys() and not is_free_form(key):
        return where + unknown_key_message(key)
    given = next((line.partition("=")[2] for line in overrides if line.partition("=")[0].lstrip("+") == key), None)
    reason = "" if given is None or isinstance(cause, ValidationError) else f"; {lines[0]}"
    return f"{where}{key} must be {describe_type(key)}, got {lines[0] if given is None else given}{reason}"


def _place_of(name: str, overrides: list[str]) -> tuple[str, type] | None:
    """The first element of a list of sections that cannot be one and has this key, as `….stages[1]`, and its section.

    OmegaConf's messages name the key alone; None where no override gives such a list.
    """
    for key, section in element_sections().items():
        given = next((line for line in overrides if line.partition("=")[0].lstrip("+") == key), None)
        value = [] if given is None else override_value(given)
        for number, element in enumerate(value if isinstance(value, list) else []):
            if not isinstance(element, dict) or name not in element:
                continue
            try:
                OmegaConf.merge(OmegaConf.structured(section), element)
            except OmegaConfBaseException:
                return f"{key}[{number}]", section
    return None


def _missing_option(error: MissingConfigException) -> str:
    group, _, option = str(error.missing_cfg_file).partition("/")
    if group not in GROUPS:
        return " ".join(str(error).splitlines()[0].split())
    options = group_options(group)
    return f"{group} must be one of {', '.join(options)}, got {option!r}{nearest_word(option, options)}"
