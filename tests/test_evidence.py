"""Evidence: which sentence or store entry decides a claim."""

from __future__ import annotations

import json
from collections.abc import Sequence

import pytest

from vista_local.backends.scripted import ScriptedBackend
from vista_local.bm25 import bm25_scores
from vista_local.config import ScoreConfig
from vista_local.evidence import CANDIDATES, Piece, best, candidates, piece_score, pieces
from vista_local.labels import Label
from vista_local.memory import BACKGROUND_TURN, Entry, Kind
from vista_local.output import parse_result_line, result_line
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt
from vista_local.readers import parse_conversation
from vista_local.schema import ConversationResult, Evidence


def judge(stage: str, prefix: Prompt, claim: str) -> Sequence[float]:
    """Verified where the shown text holds the claim, contradicted where it holds "not" before it."""
    shown = prefix.user
    if stage == "verify":
        return (0.9, 0.1) if claim in shown and f"not {claim}" not in shown else (0.1, 0.9)
    return (0.8, 0.1, 0.05, 0.05) if f"not {claim}" in shown else (0.1, 0.7, 0.1, 0.1)


def score(turns: list[dict[str, object]], background: Sequence[str] = ()) -> ConversationResult:
    backend = ScriptedBackend(lambda prompt: "None", judge)
    config = ScoreConfig(given_claims=True, evidence=True, context="none")
    record = {"id": "c", "turns": turns, "background": list(background)}
    (result,) = Pipeline(backend, config).score_shard([parse_conversation(record)])
    return result


def turn(reference: object, *claims: str) -> dict[str, object]:
    return {"role": "assistant", "text": "...", "reference": reference, "claims": list(claims)}


def test_the_deciding_sentence_is_named_across_passages() -> None:
    result = score([turn(["Rain fell. The mill is old.", "not the door is red. Snow fell."], "The mill is old.")])
    (claim,) = result.turns[0].claims
    assert claim.label is Label.VERIFIED
    assert claim.evidence == (Evidence("reference", 0.9, sentence=1),)


def test_a_contradicted_claim_names_what_refutes_it() -> None:
    result = score([turn("Snow fell. It is not the door is red. The roof is new.", "the door is red")])
    (claim,) = result.turns[0].claims
    assert claim.label is Label.CONTRADICTED
    (found,) = claim.evidence
    assert (found.source, found.sentence) == ("reference", 1)
    assert found.score == pytest.approx(0.9 * 0.8)


def test_memory_and_background_are_named_with_their_numbers() -> None:
    result = score(
        [turn("The mill is old.", "The mill is old."), turn(None, "The mill is old.", "The lake is deep.")],
        background=["The hill is high.", "The lake is deep."],
    )
    by_memory, by_background = result.turns[1].claims
    assert by_memory.evidence == (Evidence("memory", 0.9, turn=0, claim=0),)
    assert by_background.evidence == (Evidence("background", 0.9, claim=1),)


def test_only_decided_claims_have_evidence_and_only_on_demand() -> None:
    result = score([turn("Rain fell.", "The mill is old.")])
    assert result.turns[0].claims[0].label is Label.LACKING_EVIDENCE
    assert result.turns[0].claims[0].evidence == ()
    backend = ScriptedBackend(lambda prompt: "None", judge)
    plain = Pipeline(backend, ScoreConfig(given_claims=True))
    record = {"id": "c", "turns": [turn("The mill is old.", "The mill is old.")]}
    (result,) = plain.score_shard([parse_conversation(record)])
    assert result.turns[0].claims[0].evidence == ()


def test_support_by_a_stated_entry_says_so() -> None:
    stated = Piece("I like it.", entry=Entry("I like it.", Kind.STATED, 2, 1))
    assert best([(stated, 0.7)]) == (Evidence("memory", 0.7, turn=2, claim=1, stated=True),)
    fact = Piece("x", entry=Entry("x", Kind.FACT, BACKGROUND_TURN, 4))
    assert fact.named(0.5) == Evidence("background", 0.5, claim=4)


def test_at_most_eight_candidates_the_likest_first() -> None:
    among = pieces(["\n".join(f"Fact number {i}." for i in range(12)) + "\nThe mill is old."], [])
    found = candidates("The mill is old.", among)
    assert found[0] == 12 and len(found) == CANDIDATES
    assert found[1:] == list(range(7))  # no shared word: the order of the text


CHINESE = (
    "林多镇位于河的北岸。镇上有三座教堂。夏天有很多游客。学校在市场旁边。医院建于上世纪。冬天常常下大雪。"
    "铁路经过镇的东边。每年五月举行音乐节。图书馆收藏了许多手稿。渔民在清晨出海。旧水车由安娜·贝格于1912年建造。桥上禁止停车。"
)
JAPANESE = (
    "町は川の北にある。教会が三つある。夏は観光客が多い。学校は市場の隣だ。病院は古い。冬は雪が多い。"
    "鉄道が東を通る。五月に音楽祭がある。図書館に写本がある。漁師は早朝に出る。古い水車はアンナ・ベルグが建てた。橋に駐車できない。"
)
THAI = "\n".join(
    "เมืองอยู่ทางเหนือ|มีโบสถ์สามแห่ง|ฤดูร้อนมีนักท่องเที่ยว|โรงเรียนอยู่ข้างตลาด|โรงพยาบาลเก่ามาก|ฤดูหนาวหิมะตก|รถไฟผ่านทางตะวันออก|"
    "มีงานดนตรีในเดือนพฤษภาคม|ห้องสมุดมีต้นฉบับ|ชาวประมงออกทะเลตอนเช้า|กังหันน้ำเก่าสร้างโดยแอนนา|ห้ามจอดรถบนสะพาน".split("|")
)


@pytest.mark.parametrize(
    ("reference", "claim"),
    [
        (CHINESE, "安娜·贝格在1912年建造了旧水车。"),
        (CHINESE, "水车是安娜建造的"),
        (JAPANESE, "アンナ・ベルグは古い水車を建てた。"),
        (THAI, "แอนนาสร้างกังหันน้ำเก่า"),
    ],
    ids=["Chinese", "Chinese, no number", "Japanese", "Thai"],
)
def test_candidates_are_found_in_scripts_without_spaces(reference: str, claim: str) -> None:
    among = pieces([reference], [])
    assert len(among) == 12
    found = candidates(claim, among)
    assert found[0] == 10 and len(found) == CANDIDATES


def test_text_with_spaces_is_ranked_by_its_words() -> None:
    among = pieces([" ".join(f"Fact {i} of {12 - i}, 3.{i} é." for i in range(12))], [])
    scores = bm25_scores([p.text for p in among], "Fact 7 of 3.7")
    ranked = sorted(range(len(among)), key=lambda i: (-scores[i], i))
    assert candidates("Fact 7 of 3.7", among) == ranked[:CANDIDATES]


def test_further_pieces_are_named_only_if_they_decide_by_themselves() -> None:
    scored = [(Piece(str(i), sentence=i), s) for i, s in enumerate((0.2, 0.9, 0.6, 0.55, 0.51))]
    assert [e.sentence for e in best(scored)] == [1, 2, 3]
    assert [e.sentence for e in best(scored[:2])] == [1]
    assert best([]) == ()


def test_what_was_only_said_comes_first_only_if_nothing_verified_decides() -> None:
    stated = Piece("It is old.", entry=Entry("It is old.", Kind.STATED, 2, 1))
    sentence = Piece("It was built long ago.", sentence=3)
    assert [e.source for e in best([(stated, 0.9), (sentence, 0.6)])] == ["reference", "memory"]
    assert [e.source for e in best([(stated, 0.9), (sentence, 0.4)])] == ["memory"]


def test_only_decided_labels_have_a_piece_score() -> None:
    assert piece_score(Label.VERIFIED, 0.7, None) == 0.7
    assert piece_score(Label.CONTRADICTED, 0.25, 0.8) == pytest.approx(0.6)
    with pytest.raises(ValueError, match="OUT_OF_SCOPE"):
        piece_score(Label.OUT_OF_SCOPE, 0.1, 0.9)


def test_evidence_survives_the_result_line() -> None:
    result = score([turn("The mill is old.", "The mill is old."), turn(None, "The mill is old.")])
    line = result_line(result, {"id": "r"})
    assert json.loads(line)["turns"][0]["claims"][0]["evidence"] == [
        {"source": "reference", "score": 0.9, "sentence": 0}
    ]
    assert parse_result_line(line) == result
