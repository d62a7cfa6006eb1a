"""Conversations on a terminal."""

from __future__ import annotations

from pathlib import Path

from typer.testing import CliRunner

from vista_local.cli import app
from vista_local.labels import Label
from vista_local.output import result_line
from vista_local.schema import (
    ClaimResult,
    Conversation,
    ConversationResult,
    Evidence,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)
from vista_local.show import render

TALK = Conversation(
    "mill",
    (
        Turn(Role.USER, "How old is the mill?"),
        Turn(Role.ASSISTANT, "It is old \x1b[31mand red.", ("Rain fell. The mill is old.",)),
        Turn(Role.ASSISTANT, "As I said, it is old.", ()),
        Turn(Role.ASSISTANT, "Anything else?"),
    ),
    ("The hill is high.",),
)
RESULT = ConversationResult(
    "mill",
    (
        TurnResult(
            1,
            TurnStatus.SCORED,
            (
                ClaimResult(
                    "The mill is old.", Label.VERIFIED, {"VERIFIED": 0.93}, evidence=(Evidence("reference", 0.9, 1),)
                ),
                ClaimResult("The mill is red.", Label.LACKING_EVIDENCE, {"LACKING_EVIDENCE": 0.6}),
                ClaimResult("The mill is loud.", None, {}, "too long"),
            ),
            unsupported_extraction=("The mill has 4 wings.",),
            notes=("decompose: stopped at a repeated claim",),
        ),
        TurnResult(
            2,
            TurnStatus.SCORED,
            (
                ClaimResult(
                    "It is old.",
                    Label.VERIFIED,
                    {"VERIFIED": 0.8},
                    evidence=(Evidence("memory", 0.8, turn=1, claim=0),),
                ),
                ClaimResult("The hill is high.", Label.VERIFIED, {}, evidence=(Evidence("background", 0.8, claim=0),)),
                ClaimResult(
                    "I like it.", Label.VERIFIED, {}, evidence=(Evidence("memory", 0.8, turn=1, claim=1, stated=True),)
                ),
            ),
        ),
        TurnResult(3, TurnStatus.UNREFERENCED),
    ),
    conversation=TALK,
)


def test_everything_that_is_known_is_shown() -> None:
    text = render(RESULT).plain
    for piece in (
        "User: How old is the mill?",
        "V  The mill is old.  VERIFIED  93 %",
        "reference, sentence 1: The mill is old.",
        "L  The mill is red.",
        "-  The mill is loud.  (too long)",
        "?  The mill has 4 wings.",
        "note: decompose: stopped at a repeated claim",
        "established in turn 1, claim 0: The mill is old.",
        "background fact 0: The hill is high.",
        "said, not verified, in turn 1, claim 1: The mill is red.",
        "(unreferenced: not scored)",
    ):
        assert piece in text, piece


def test_the_text_under_test_cannot_write_to_the_terminal() -> None:
    assert "\x1b" not in render(RESULT).plain
    assert "\\u001b[31mand red." in render(RESULT).plain


def test_command_prints_the_conversation_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    other = ConversationResult("other", ())
    path.write_text("".join(result_line(r, {"id": "r"}) + "\n" for r in (RESULT, other)), encoding="utf-8")
    result = CliRunner().invoke(app, ["show", str(path), "--id", "mill"])
    assert result.exit_code == 0, result.output
    assert "The mill is old." in result.output and "other" not in result.output
    both = CliRunner().invoke(app, ["show", str(path)])
    assert "other" in both.output
    missing = CliRunner().invoke(app, ["show", str(path), "--id", "nobody"])
    assert missing.exit_code == 2 and "nobody" in missing.stderr


def test_a_file_that_holds_no_results_is_refused_with_its_line(tmp_path: Path) -> None:
    path = tmp_path / "out.jsonl"
    path.write_text('{"schema": "other"}\n', encoding="utf-8")
    result = CliRunner().invoke(app, ["show", str(path)])
    assert result.exit_code == 2 and "line 1" in " ".join(result.stderr.split())
    result = CliRunner().invoke(app, ["show", str(tmp_path / "none.jsonl")])
    assert result.exit_code == 2 and "none.jsonl" in result.stderr


def test_without_the_input_claims_stand_alone() -> None:
    compact = ConversationResult(RESULT.id, RESULT.turns)
    text = render(compact).plain
    assert "turn 1" in text and "V  The mill is old." in text and "User:" not in text
