"""A corpus of broken and odd inputs through the command line: one clear message, or a sane score, and nothing else."""

from __future__ import annotations

import resource
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import scripted
from corpus.build import BUILDERS, GOOD, path_of
from corpus.cases import CASES, Case, Refused, Scored
from typer.testing import CliRunner

from vista_local.backends.scripted import ScriptedBackend
from vista_local.cli import app
from vista_local.evaluator import Evaluator
from vista_local.labels import LABELS
from vista_local.output import read_results
from vista_local.schema import TurnStatus
from vista_local.text import counted

CORPUS = Path(__file__).parent / "corpus"
#: Seconds: a guard against hanging, no measure of speed.
HANGS = 300
#: Memory that all of the corpus together may take beyond what was taken before it.
MEBIBYTES = 700


@pytest.fixture(scope="module", autouse=True)
def bounded_memory() -> Iterator[None]:
    """The largest input is 64 MiB when unpacked: nothing here may need a multiple of that."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    unit = 1 if sys.platform == "darwin" else 1024
    grown = (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) * unit / 2**20
    assert grown < MEBIBYTES, f"the corpus took {grown:.0f} MiB"


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """An empty working folder, a scripted backend in place of the models, and an alarm."""

    def classify(stage: str, prefix: Any, claim: str) -> list[float]:
        if stage == "verify":
            return [0.9, 0.1] if claim in prefix.user else [0.1, 0.9]
        return [0.1, 0.7, 0.1, 0.1]

    def backend() -> ScriptedBackend:
        return ScriptedBackend(lambda p: "- " + " ".join(p.user.rpartition("Reply:")[2].split()[:12]), classify)

    monkeypatch.setattr(Evaluator, "from_pretrained", scripted.without_models(backend))
    here = tmp_path / "here"
    here.mkdir()
    monkeypatch.chdir(here)

    def hanging(*_: object) -> None:
        raise TimeoutError(f"no end after {HANGS} seconds")

    previous = signal.signal(signal.SIGALRM, hanging)
    signal.alarm(HANGS)
    yield here
    signal.alarm(0)
    signal.signal(signal.SIGALRM, previous)


def arguments(case: Case, made: Path) -> list[str]:
    made.mkdir()
    path = path_of(case.name, made)
    if not case.name.startswith("settings_"):
        return ["score", str(path), "-o", "out.jsonl", *case.options]
    good = made / "good.jsonl"
    good.write_text(GOOD, encoding="utf-8")
    return ["score", str(good), "-o", "out.jsonl", "--config", str(path), *case.options]


@pytest.mark.parametrize("case", CASES, ids=lambda case: case.id)
def test_corpus(case: Case, folder: Path, tmp_path: Path) -> None:
    result = CliRunner().invoke(app, arguments(case, tmp_path / "made"))
    said = " ".join(result.stderr.split())
    assert "Traceback" not in said
    assert result.exception is None or isinstance(result.exception, SystemExit), repr(result.exception)
    for word in case.expected.words:
        assert word in said, said[:2000]
    left = [p.name for p in folder.iterdir()]
    if isinstance(case.expected, Refused):
        assert result.exit_code == 2, said[:2000]
        assert said.count("error:") == 1
        assert len(said) < 3_000  # a sentence, however long the input
        assert left == ["out.jsonl"] * case.expected.kept
        assert not case.expected.kept or len(list(read_results(folder / "out.jsonl"))) >= 1
    else:
        assert result.exit_code == 0, said[:2000]
        assert left == ["out.jsonl"]
        check_scored(case.expected, folder / "out.jsonl", said)
    assert sorted(p.name for p in tmp_path.iterdir()) == ["here", "made"]


def check_scored(expected: Scored, path: Path, said: str) -> None:
    results = list(read_results(path))
    assert len(results) == expected.conversations
    assert all(r.error is None for r in results)
    turns = [t for r in results for t in r.turns if t.status is TurnStatus.SCORED]
    assert expected.turns in (None, len(turns))
    assert all(t.unscored is None and all(c.label in LABELS for c in t.claims) for t in turns)
    skipped = f"skipped {counted(expected.skipped, 'broken record')};"
    assert (skipped in said) == ("skipped" in said) == bool(expected.skipped)


def test_the_corpus_is_whole() -> None:
    """Every file is used, every name exists, and there are a hundred."""
    names = {case.name for case in CASES}
    committed = {p.name for p in CORPUS.iterdir() if p.is_file() and p.suffix != ".py"}
    assert committed | set(BUILDERS) | {"no_such_file.jsonl"} == names
    assert not committed & set(BUILDERS)
    assert len(names) >= 100


# ---- places that can't be read or written


@pytest.mark.parametrize(
    ("source", "output", "words"),
    [
        (".", "out.jsonl", ("can't be read: Is a directory",)),
        ("in.jsonl", ".", ("is a folder; give a file name",)),
        ("in.jsonl", "-", ("is no file; give a file name",)),
        ("in.jsonl", "no/such/out.jsonl", ("no/such/out.jsonl: cannot be written: No such file or directory",)),
        ("in.jsonl", "in.jsonl/out.jsonl", ("in.jsonl/out.jsonl: cannot be written: Not a directory",)),
        ("in.jsonl", "/dev/null", ("/dev/null: is no regular file",)),
        ("in.jsonl", "in.jsonl", ("in.jsonl: is the input; results need a file of their own",)),
        ("in.jsonl", "x" * 300, ("cannot be written: File name too long",)),
    ],
)
def test_places(folder: Path, source: str, output: str, words: tuple[str, ...]) -> None:
    given = folder / "in.jsonl"
    given.write_text(GOOD, encoding="utf-8")
    result = CliRunner().invoke(app, ["score", source, "-o", output])
    said = " ".join(result.stderr.split())
    assert result.exit_code == 2, said
    for word in words:
        assert word in said
    assert [p.name for p in folder.iterdir()] == ["in.jsonl"]
    assert given.read_text(encoding="utf-8") == GOOD


@pytest.mark.parametrize("options", [(), ("--resume",)])
def test_standard_input_is_no_place_for_results(folder: Path, options: tuple[str, ...]) -> None:
    given = folder / "in.jsonl"
    given.write_text(GOOD, encoding="utf-8")
    program = [sys.executable, scripted.__file__, "score", "-", "-o", "in.jsonl", *options]
    with open(given, "rb") as stream:
        done = subprocess.run(program, stdin=stream, capture_output=True, text=True)
    assert done.returncode == 2
    assert "in.jsonl: is the input; results need a file of their own" in " ".join(done.stderr.split())
    assert given.read_text(encoding="utf-8") == GOOD


@pytest.mark.parametrize("ending", ["", "\n"])
@pytest.mark.parametrize("other", ["in.jsonl", "other.jsonl"])
def test_an_input_is_never_taken_for_a_result_to_resume(folder: Path, other: str, ending: str) -> None:
    given = folder / "in.jsonl"
    content = GOOD.rstrip("\n") + ending
    given.write_text(content, encoding="utf-8")
    (folder / other).write_text(content, encoding="utf-8")
    result = CliRunner().invoke(app, ["score", "in.jsonl", "-o", other, "--resume"])
    assert result.exit_code == 2
    message = "in.jsonl: is the input" if other == "in.jsonl" else "line 1: not a result line; nothing was changed"
    assert message in " ".join(result.stderr.split())
    assert (folder / other).read_text(encoding="utf-8") == content
