"""Recipes as they are read, and what is said before hours of work begin."""

from __future__ import annotations

import json
from dataclasses import asdict
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("trl", reason="needs the [train] extra")

import torch
import yaml
from typer import Typer
from typer.testing import CliRunner

from training import classify, decompose, evaluate, train
from training.common import TrainConfig, check_start, load_config
from vista_local.errors import InputError


def test_recipes_refuse_what_they_do_not_know(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{stage: verify, train: [a], dev: [b], dilute_sentences: [1, 2]}", encoding="utf-8")
    assert load_config(path, {"max_steps": 3}).max_steps == 3
    assert load_config(path).dilute_sentences == (1, 2)
    path.write_text("{stage: verify, train: [a], dev: [b], learning_rat: 1}", encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml: unknown setting 'learning_rat'"):
        load_config(path)
    path.write_text("{stage: verify, train: [a]}", encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml: setting 'dev' is missing"):
        load_config(path)
    path.write_text("{stage: verify, train: [a], dev: [b], only_with: {a: [WRONG]}}", encoding="utf-8")
    with pytest.raises(InputError, match=r"recipe\.yaml: setting 'only_with', 'a': unknown label 'WRONG'; accepted"):
        load_config(path)


@pytest.mark.parametrize(
    ("setting", "message"),
    [
        ("dilute_sentences: 5", r"'dilute_sentences': .*tuple, found 5"),
        ("dilute_sentences: [1, 2, 3]", r"'dilute_sentences': .*found a list"),
        ("dilute_sentences: [9, 2]", r"'dilute_sentences': least and most are expected, found \[9, 2\]"),
        ("limits: 3", "'limits': .*dictionary, found 3"),
        ("limits: {a: many}", "'limits.a': .*integer.*found 'many'"),
        ("limits: {a: -1}", "'limits.a': .*greater than or equal to 0, found -1"),
        ("epochs: two", "'epochs': .*number.*found 'two'"),
        ("epochs: .nan", "'epochs': .*finite number, found nan"),
        ("batch_size: 0", "'batch_size': .*greater than or equal to 1, found 0"),
        ("dilute_share: 5", "'dilute_share': .*less than or equal to 1, found 5"),
        ("only_with: [x]", "'only_with': .*dictionary, found a list"),
        ("only_with: {a: [FALSE]}", "'only_with.a.0': .*string, found False"),
        ("only_with: {f: [3]}", "'only_with.f.0': .*string, found 3"),
        ("train: a", "'train': .*list, found 'a'"),
        ("base: 2026-12-01", r"'base': .*string, found datetime\.date\(2026, 12, 1\)"),
        ("stage: verity", "'stage': 'verity'; accepted: decompose, verify, categorise"),
        ("extends: 5", "'extends': .*file names are expected, found 5"),
        ("extends: [5]", "'extends': .*file names are expected, found a list"),
        ("5: 5", "unknown setting 5; known: base"),
    ],
)
def test_a_recipe_names_the_setting_that_cannot_be(tmp_path: Path, setting: str, message: str) -> None:
    path = tmp_path / "recipe.yaml"
    given = {"stage": "verify", "train": "[a]", "dev": "[b]"}
    key, _, value = setting.partition(": ")
    path.write_text("".join(f"{k}: {v}\n" for k, v in (given | {key: value}).items()), encoding="utf-8")
    with pytest.raises(InputError, match=rf"recipe\.yaml: .*{message}"):
        load_config(path)


def test_a_recipe_that_is_no_utf8_is_named(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_bytes(b"stage: verify # \xe9\n")
    with pytest.raises(InputError, match=r"recipe\.yaml: cannot be read: .*utf-8"):
        load_config(path)


def test_a_number_may_be_written_without_a_dot(tmp_path: Path) -> None:
    path = tmp_path / "recipe.yaml"
    path.write_text("{stage: verify, train: [a], dev: [b], learning_rate: 2e-4, epochs: 2}", encoding="utf-8")
    assert yaml.safe_load(path.read_text(encoding="utf-8"))["learning_rate"] == "2e-4"  # what PyYAML makes of it
    config = load_config(path)
    assert (config.learning_rate, config.epochs) == (2e-4, 2.0)


DEFAULT_RECIPES = sorted((Path(__file__).parent.parent / "configs" / "default").glob("*.yaml"))


@pytest.mark.parametrize("path", DEFAULT_RECIPES, ids=lambda path: path.stem)
def test_the_default_recipes_load_as_they_stand(path: Path) -> None:
    config = load_config(path)
    assert config.stage == path.stem.partition("-")[0]
    assert set(config.limits) <= set(config.train)
    written = yaml.safe_load(path.read_text(encoding="utf-8"))
    found = json.loads(json.dumps(asdict(config)))
    assert found == json.loads(json.dumps(asdict(TrainConfig(**written))))


# ---- what is said before hours of work ----


def command(main: Any, *arguments: str) -> str:
    """What a command says on standard error before it ends with exit code 2."""
    app = Typer()
    app.command()(main)
    result = CliRunner().invoke(app, list(arguments))
    assert result.exit_code == 2 and isinstance(result.exception, SystemExit), result.output
    assert result.stderr.count("error:") == 1, result.stderr
    return " ".join(result.stderr.split())


def never(*_: Any, **__: Any) -> Any:
    raise AssertionError("something was loaded")


def test_an_adapter_to_start_from_is_looked_for_before_anything_loads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(classify, "train", never)
    recipe, run = tmp_path / "categorise.yaml", tmp_path / "runs" / "verify-2"
    settings = {"stage": "categorise", "train": ["a"], "dev": ["a"], "init_from": str(run / "adapter")}
    recipe.write_text(json.dumps(settings), encoding="utf-8")
    arguments = ("categorise", "--config", str(recipe), "--out", str(tmp_path / "out"))
    said = command(train.main, *arguments)
    assert "verify-2/adapter: no adapter_config.json there" in said
    assert said.endswith(f"python -m training.train verify --config RECIPE --out {run}")
    (tmp_path / "verify-2.yaml").touch()
    assert f"--config {tmp_path / 'verify-2.yaml'} --out {run}" in command(train.main, *arguments)
    assert not (tmp_path / "out").exists()
    (run / "adapter").mkdir(parents=True)
    (run / "adapter" / "adapter_model.safetensors").touch()
    (run / "adapter" / "adapter_config.json").write_text('{"auto_mapping": {"x": "y"}}', encoding="utf-8")
    assert "asks for code from outside" in command(train.main, *arguments)
    (run / "adapter" / "adapter_config.json").write_text("{}", encoding="utf-8")
    check_start(load_config(recipe), tmp_path)


@pytest.mark.parametrize(("stage", "size"), [("verify", "token_budget (1600)"), ("decompose", "batch_size (8)")])
def test_a_full_gpu_is_one_sentence_with_what_to_lower(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, stage: str, size: str
) -> None:
    def full(*_: Any) -> Any:
        raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB.\nSee documentation")

    for module in (classify, decompose):
        monkeypatch.setattr(module, "train", full)
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text(json.dumps({"stage": stage, "train": ["a"], "dev": ["a"]}), encoding="utf-8")
    said = command(train.main, stage, "--config", str(recipe), "--out", str(tmp_path / "out"))
    assert "Tried to allocate 2.00 GiB" in said and "See documentation" not in said
    assert f"lower {size} in the recipe and raise gradient_accumulation_steps (1)" in said
    assert "gradient_checkpointing: true" in said and "running the command again resumes from the last" in said


def test_an_evaluation_that_could_not_be_written_does_not_begin(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(evaluate.Evaluator, "from_pretrained", never)
    monkeypatch.setattr(evaluate, "adapters_dir", Path)
    (tmp_path / "file").touch()
    for out, message in (
        (tmp_path, "is a folder; give a file name"),
        (tmp_path / "nowhere" / "out.json", "cannot be written: No such file or directory"),
        (tmp_path / "file" / "out.json", "cannot be written: Not a directory"),
    ):
        said = command(evaluate.main, "--adapters", str(tmp_path), "--out", str(out))
        assert f"{out}: {message}" in said
    evaluate.check_writable(tmp_path / "file")  # one that is there is replaced
    assert [p.name for p in tmp_path.iterdir()] == ["file"]
