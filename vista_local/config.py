"""Settings of a scoring run, checked: unknown keys are refused with the nearest known one."""

from __future__ import annotations

import difflib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal, TypeVar

import yaml
from pydantic import BaseModel, ConfigDict, Field, ValidationError

from vista_local.errors import InputError
from vista_local.formats import Format
from vista_local.history import ContextMode

Unreferenced = Literal["skip", "trust", "verify"]


class MemoryConfig(BaseModel):
    """The knowledge store."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    unreferenced: Unreferenced = Field("skip", description="turns without reference: skip, trust or verify them")
    budget_tokens: int = Field(512, ge=16, description="most tokens of store entries in a prompt")


class ScoreConfig(BaseModel):
    """Everything about a run that its results depend on, apart from models and input."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    context: ContextMode = Field("recent", description="history shown to verify and categorise")
    memory: MemoryConfig = MemoryConfig()
    full_probs: bool = Field(False, description="run categorise on verified claims too")
    given_claims: bool = Field(False, description="label the claims that the input carries")
    oracle_memory: bool = Field(False, description="fill the store from the input's own labels (analysis only)")
    evidence: bool = Field(False, description="name the text that decides verified and contradicted claims")
    keep_input: bool = Field(True, description="put the conversation into its result line, for `show` and reports")
    shard_size: int = Field(32, ge=1, description="conversations scored together")


#: `--profile paper`: the published method's main setting.
PROFILES: dict[str, dict[str, Any]] = {"paper": {"context": "none", "memory": {"unreferenced": "trust"}}}


def format_defaults(form: Format | None) -> dict[str, Any]:
    """What an input's form says where nothing else is configured: the paper's rule for the paper's form."""
    return {"memory": {"unreferenced": "trust"}} if form is Format.VISTA else {}


def load_config(
    path: Path | None = None,
    overrides: dict[str, Any] | None = None,
    profile: str | None = None,
    defaults: dict[str, Any] | None = None,
) -> ScoreConfig:
    """Settings from the input format's defaults, a profile, a YAML file and overrides, the later winning.

    Raises:
        InputError: the file is unreadable, or a key or value is not known; names file and key.
    """
    data: dict[str, Any] = {}
    _merge(data, defaults or {})
    where = str(path) if path else "settings"
    if profile is not None:
        if profile not in PROFILES:
            raise InputError(f"unknown profile {profile!r}; accepted: {', '.join(PROFILES)}")
        _merge(data, PROFILES[profile])
    if path is not None:
        _merge(data, read_settings(path))
    _merge(data, overrides or {})
    known = [*ScoreConfig.model_fields, *(f"memory.{name}" for name in MemoryConfig.model_fields)]
    return check_settings(ScoreConfig, data, where, known)


def read_settings(path: Path) -> dict[str, Any]:
    """The mapping in a YAML file; an empty file is an empty one.

    Raises:
        InputError: the file can't be read, or holds no mapping; names it.
    """
    try:
        loaded = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
    except RecursionError as error:
        raise InputError("cannot be read: it is nested too deeply", str(path)) from error
    # PyYAML lets out what it meets in values: a month 13 is a ValueError, `!!bool maybe` a KeyError.
    except (OSError, ValueError, LookupError, AttributeError, yaml.YAMLError) as error:
        raise InputError(f"cannot be read: {error}", str(path)) from error
    if not isinstance(loaded, dict):
        raise InputError(f"a mapping of settings is expected, found {type(loaded).__name__}", str(path))
    return loaded


Settings = TypeVar("Settings", bound=BaseModel)


def check_settings(model: type[Settings], data: dict[str, Any], where: str, known: Sequence[str]) -> Settings:
    """`data` as `model`.

    Args:
        where: names the settings in errors.
        known: dotted names of all settings, for an unknown one's nearest.

    Raises:
        InputError: a key or value is not known; names the key, what was found and what is near.
    """
    try:
        return model.model_validate(data)
    except ValidationError as error:
        first = error.errors()[0]
        key = ".".join(str(part) for part in first["loc"])
        if first["type"] == "extra_forbidden":
            near = difflib.get_close_matches(key, known, 1)
            hint = f"; did you mean {near[0]!r}?" if near else f"; known: {', '.join(known)}"
            raise InputError(f"unknown setting {key!r}{hint}", where) from error
        if first["type"] == "missing":
            raise InputError(f"setting {key!r} is missing", where) from error
        raise InputError(f"setting {key!r}: {first['msg']}, found {first['input']!r}", where) from error


def _merge(into: dict[str, Any], new: dict[str, Any]) -> None:
    for key, value in new.items():
        if isinstance(value, dict) and isinstance(into.get(key), dict):
            _merge(into[key], value)
        else:
            into[key] = dict(value) if isinstance(value, dict) else value
