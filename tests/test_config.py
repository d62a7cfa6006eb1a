"""Settings: defaults, profiles, files, overrides, and refusals that name the key."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import ValidationError

from vista_local.config import PROFILES, ScoreConfig, load_config
from vista_local.errors import InputError


def written(folder: Path, text: str) -> Path:
    path = folder / "settings.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_defaults() -> None:
    config = load_config()
    assert config == ScoreConfig()
    assert (config.context, config.memory.unreferenced, config.shard_size) == ("recent", "skip", 32)
    assert not (config.full_probs or config.given_claims or config.oracle_memory)


def test_profile_paper_is_the_published_setting() -> None:
    config = load_config(profile="paper")
    assert (config.context, config.memory.unreferenced) == ("none", "trust")
    assert config.memory.budget_tokens == ScoreConfig().memory.budget_tokens


def test_file_wins_over_profile_and_overrides_over_both(tmp_path: Path) -> None:
    path = written(tmp_path, "context: full\nmemory:\n  budget_tokens: 64\nshard_size: 8\n")
    config = load_config(path, {"shard_size": 2, "memory": {"unreferenced": "verify"}}, "paper")
    assert config.context == "full"
    assert (config.memory.budget_tokens, config.memory.unreferenced) == (64, "verify")
    assert config.shard_size == 2
    assert load_config(path, profile="paper").memory.unreferenced == "trust"


def test_loading_leaves_the_profile_and_the_overrides_as_they_are() -> None:
    overrides: dict[str, Any] = {"memory": {"unreferenced": "verify"}}
    load_config(overrides=overrides, profile="paper")
    assert PROFILES["paper"] == {"context": "none", "memory": {"unreferenced": "trust"}}
    assert overrides == {"memory": {"unreferenced": "verify"}}


@pytest.mark.parametrize("text", ["", "# nothing\n", "{}"])
def test_an_empty_file_means_defaults(tmp_path: Path, text: str) -> None:
    assert load_config(written(tmp_path, text)) == ScoreConfig()


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("contxt: full", "unknown setting 'contxt'; did you mean 'context'?"),
        ("memory:\n  budget_token: 64", "unknown setting 'memory.budget_token'; did you mean 'memory.budget_tokens'?"),
        ("zzz: 1", "unknown setting 'zzz'; known: context, "),
        ("context: all", "setting 'context'"),
        ("shard_size: 0", "setting 'shard_size'"),
        ("shard_size: many", "found 'many'"),
        ("memory:\n  unreferenced: ignore", "setting 'memory.unreferenced'"),
        ("memory: trust", "setting 'memory'"),
        ("- context", "a mapping of settings is expected, found list"),
        ("context: [", "cannot be read"),
        ("context: 2024-13-45", "cannot be read: month must be in 1..12"),
        ("context: !!bool maybe", "cannot be read"),
        ("context: !!timestamp soon", "cannot be read"),
        ("context: " + "[" * 5000, "cannot be read: it is nested too deeply"),
    ],
)
def test_bad_settings_are_refused_by_file_and_key(tmp_path: Path, text: str, found: str) -> None:
    path = written(tmp_path, text)
    with pytest.raises(InputError) as error:
        load_config(path)
    assert str(error.value).startswith(f"{path}: ")
    assert found in str(error.value)


def test_unreadable_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"missing\.yaml: cannot be read"):
        load_config(tmp_path / "missing.yaml")
    path = tmp_path / "latin.yaml"
    path.write_bytes(b"context: \xe9")
    with pytest.raises(InputError, match=r"latin\.yaml: cannot be read"):
        load_config(path)


def test_an_unknown_profile_is_refused() -> None:
    with pytest.raises(InputError, match="unknown profile 'papr'; accepted: paper"):
        load_config(profile="papr")


def test_settings_do_not_change_during_a_run() -> None:
    config = ScoreConfig()
    with pytest.raises(ValidationError):
        config.context = "none"  # type: ignore[misc]
    with pytest.raises(ValidationError):
        config.memory.unreferenced = "trust"  # type: ignore[misc]
