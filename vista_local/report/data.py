"""What the report page shows, counted here: figures, charts' numbers, and the conversations in a compact form.

Pure: from results (and gold labels) to JSON values. The page only draws, filters and corrects.
"""

from __future__ import annotations

import hashlib
import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from vista_local import __version__
from vista_local.corrections import Gold, result_gold
from vista_local.errors import VistaError
from vista_local.formats import show
from vista_local.labels import LABELS, MEANING, SAFE_LABELS, Label
from vista_local.metrics import (
    Calibration,
    Confusion,
    Interval,
    bootstrap_interval,
    calibration,
    claim_confusion,
    pool,
)
from vista_local.report.align import aligned, as_the_model_had_it
from vista_local.schema import ClaimResult, ConversationResult, Evidence, GivenClaim, Role, TurnResult, TurnStatus
from vista_local.scoring import ConversationScore, Summary, Totals, TurnScore
from vista_local.text import split_sentences

#: Assistant turns with a point of their own in the chart by turn number; later ones are pooled.
LAST_TURN = 12

#: Resamples of the intervals, and the number of conversations beyond which fewer are drawn (they are narrow then).
RESAMPLES, MANY, FEW_RESAMPLES = 1000, 5000, 200

#: Bins of the reliability diagram.
BINS = 10

#: A part and its whole, as counts.
Ratio = tuple[int, int]

_NUMBER = {label: i for i, label in enumerate(LABELS)}


def report_data(
    results: Iterable[tuple[ConversationResult, dict[str, Any]]],
    *,
    title: str,
    source: str,
    gold: Gold | None = None,
    limit: int | None = None,
) -> dict[str, Any]:
    """Everything the page holds.

    Args:
        results: conversations, each with the record of its run.
        title: the page's title.
        source: name of the result file, as the page shows it.
        gold: gold claims; default those that the results carry (labels of the input, reviewed turns).
        limit: show only so many conversations, those with the lowest scores; figures are of all.

    Raises:
        VistaError: gold was given, and no claim of the results has the text of a gold claim, or two results
            have one id.
    """
    summary = Summary()
    by_turn: dict[int, Totals] = defaultdict(Totals)
    counts: list[Ratio] = []
    judged = GoldCount()
    runs: dict[str, dict[str, Any]] = {}
    run_of: dict[str, str] = {}
    shown: list[tuple[float, int, dict[str, Any]]] = []
    reviewed = corrected = 0
    for number, (result, run) in enumerate(results):
        score = summary.add(result)
        run_id = str(run.get("id", ""))
        if result.id in run_of:
            raise _there_twice(result.id, run_of[result.id], run_id)
        run_of[result.id] = run_id
        runs.setdefault(run_id, run)
        counts.append((score.totals.safe_claims, score.totals.claims))
        _add_by_turn(by_turn, result, score)
        reviewed += sum(t.reviewed for t in result.turns)
        corrected += sum(c.corrected is not None for t in result.turns for c in t.claims)
        theirs = result_gold(result) if gold is None else gold.get(result.id, {})
        judged.add(result, theirs)
        low = 2.0 if score.vista_score is None else score.vista_score
        shown.append((low, number, _conversation(result, score, run_id, theirs)))
        if limit is not None and len(shown) > 2 * limit:
            shown = sorted(shown, key=lambda item: item[:2])[:limit]
    if gold is not None and not judged.pairs:
        raise VistaError("no claim of the results has the conversation, turn and text of a gold claim")
    if limit is not None:
        shown = sorted(shown, key=lambda item: item[:2])[:limit]
    shown.sort(key=lambda item: item[1])
    resamples = RESAMPLES if summary.conversations <= MANY else FEW_RESAMPLES
    return {
        "title": title,
        "source": source,
        "version": __version__,
        "digest": _digest(c for _, _, c in shown),
        "labels": [
            {"name": x.value, "letter": x.letter, "meaning": MEANING[x], "safe": x in SAFE_LABELS} for x in LABELS
        ],
        "runs": list(runs.values()),
        "summary": summary.as_dict()
        | {
            "mostly_unreferenced": summary.totals.mostly_unreferenced,
            "interval": _interval(bootstrap_interval(counts, pooled_ratio, resamples=resamples)),
            "resamples": resamples,
            "reviewed_turns": reviewed,
            "corrected_claims": corrected,
        },
        "by_turn": [_turn_point(n, by_turn[n]) for n in sorted(by_turn)],
        "gold": judged.as_dict(resamples),
        "conversations": [c for _, _, c in shown],
    }


def _there_twice(name: str, first: str, second: str) -> VistaError:
    """Addresses, corrections and gold go by the conversation's id."""
    if first == second:
        return VistaError(f"conversation {show(name)} is there twice, both times as a result of run {first}")
    return VistaError(
        f"conversation {show(name)} is there twice, as a result of run {first} and of run {second}: "
        "a report holds one result of each; give each run a file of its own (vista-local compare takes two)"
    )


def _digest(conversations: Iterable[dict[str, Any]]) -> str:
    """Ids and claims of the listed conversations as a digest: the browser keeps corrections under it."""
    digest = hashlib.sha256()
    for c in conversations:
        claims = [[t["i"], [x["t"] for x in t["r"]["claims"]]] for t in c["turns"] if "r" in t]
        digest.update(json.dumps([c["id"], claims]).encode())
    return digest.hexdigest()[:16]


def pooled_ratio(counts: Sequence[Ratio]) -> float | None:
    """Sum of the parts over sum of the wholes; `None` where that is zero."""
    whole = sum(n for _, n in counts)
    return sum(n for n, _ in counts) / whole if whole else None


def _interval(interval: Interval | None) -> list[float] | None:
    return None if interval is None else [interval.low, interval.high]


def _add_by_turn(by_turn: dict[int, Totals], result: ConversationResult, score: ConversationScore) -> None:
    for number, (turn, turn_score) in enumerate(zip(result.turns, score.turns, strict=True), start=1):
        by_turn[min(number, LAST_TURN + 1)] += Totals.of_turn(turn, turn_score)


def _turn_point(number: int, totals: Totals) -> dict[str, Any]:
    return {
        "turn": f"{LAST_TURN + 1}+" if number > LAST_TURN else str(number),
        "score": totals.vista_score,
        "turns": totals.turns,
        "claims": totals.claims,
        "labels": list(totals.label_counts),
    }


class GoldCount:
    """Predictions beside gold labels, conversation by conversation.

    A claim whose label a reviewer changed counts with the model's label, so that a merged file shows how often
    reviewers agreed; one whose text they changed is no longer the model's and isn't counted.
    """

    def __init__(self) -> None:
        self.matrices: list[Confusion[str]] = []
        self.gold: list[Label] = []
        self.predicted: list[Label | None] = []
        self.confidence: list[float | None] = []
        self.unmatched_claims = self.unmatched_gold = 0

    @property
    def pairs(self) -> int:
        """Claims that have a prediction (or none for a reason) and a gold label."""
        return len(self.gold)

    def add(self, result: ConversationResult, gold: dict[int, tuple[GivenClaim, ...]]) -> None:
        """Count the claims of one conversation on those turns that have gold."""
        truths: list[Label] = []
        guesses: list[Label | None] = []
        for turn in result.turns:
            if turn.index not in gold or turn.status is TurnStatus.UNREFERENCED:
                continue
            claims = as_the_model_had_it(turn.claims)
            found = aligned([c.text for c, _ in claims], gold[turn.index])
            self.unmatched_gold += len(gold[turn.index]) - sum(g is not None for g in found)
            for (claim, label), truth in zip(claims, found, strict=True):
                if truth is None:
                    self.unmatched_claims += 1
                    continue
                sure = None if label is None else claim.probs.get(label.value)
                truths.append(truth)
                guesses.append(label)
                self.confidence.append(sure)
        if truths:
            self.matrices.append(claim_confusion(truths, guesses))
            self.gold += truths
            self.predicted += guesses

    def as_dict(self, resamples: int) -> dict[str, Any] | None:
        """Figures as JSON values; `None` without a claim that has gold."""
        if not self.matrices:
            return None
        whole = pool(self.matrices)
        accuracy = bootstrap_interval([(m.correct, m.n) for m in self.matrices], pooled_ratio, resamples=resamples)
        return {
            **whole.as_dict(),
            "conversations": len(self.matrices),
            "accuracy_interval": _interval(accuracy),
            "unmatched_claims": self.unmatched_claims,
            "unmatched_gold": self.unmatched_gold,
            "calibration": self._calibration(),
        }

    def _calibration(self) -> dict[str, Any] | None:
        # A label without a probability (an edited claim) can't be in the diagram.
        rows = [
            row
            for row in zip(self.gold, self.predicted, self.confidence, strict=True)
            if row[1] is not None and row[2] is not None
        ]
        if not rows:
            return None
        result: Calibration = calibration(
            [g for g, _, _ in rows], [p for _, p, _ in rows], [c for _, _, c in rows], BINS
        )
        return {
            "ece": result.ece,
            "n": result.n,
            "bins": [
                {"low": b.low, "high": b.high, "n": b.n, "confidence": b.confidence, "accuracy": b.accuracy}
                for b in result.bins
            ],
        }


# --- conversations --------------------------------------------------------------------------------


def _conversation(
    result: ConversationResult, score: ConversationScore, run: str, gold: dict[int, tuple[GivenClaim, ...]]
) -> dict[str, Any]:
    """One conversation. Texts are as they were read; passages are cut into sentences and what is between them."""
    scores = {t.index: s for t, s in zip(result.turns, score.turns, strict=True)}
    scored = {t.index: _turn(t, scores[t.index], gold.get(t.index)) for t in result.turns}
    data: dict[str, Any] = {"id": result.id, "run": run, "score": score.vista_score}
    if result.error is not None:
        data["error"] = result.error
    talk = result.conversation
    if talk is None:
        data["turns"] = [{"i": index, "role": "assistant", "text": None, "r": r} for index, r in scored.items()]
        return data
    # Most turns of a conversation share their passages: each is kept once.
    passages: dict[str, int] = {}
    turns = []
    for index, said in enumerate(talk.turns):
        turn: dict[str, Any] = {
            "i": index,
            "role": "user" if said.role is Role.USER else "assistant",
            "text": said.text,
        }
        if said.reference is not None:
            turn["ref"] = [passages.setdefault(p, len(passages)) for p in said.reference]
        if index in scored:
            turn["r"] = scored[index]
        turns.append(turn)
    data["turns"] = turns
    data["passages"] = [passage_pieces(p) for p in passages]
    if talk.background:
        data["background"] = list(talk.background)
    return data


def passage_pieces(passage: str) -> list[str]:
    """A passage as [gap, sentence, gap, sentence, ..., gap]; joined, they are the passage."""
    pieces, at = [], 0
    for sentence in split_sentences(passage):
        start = passage.index(sentence, at)
        pieces += [passage[at:start], sentence]
        at = start + len(sentence)
    return [*pieces, passage[at:]]


def _turn(turn: TurnResult, score: TurnScore, gold: tuple[GivenClaim, ...] | None) -> dict[str, Any]:
    truths: Iterator[Label | None] = iter(aligned([c.text for c in turn.claims], gold or ()))
    data: dict[str, Any] = {"claims": [_claim(c, next(truths)) for c in turn.claims]}
    if turn.status is TurnStatus.UNREFERENCED:
        data["unreferenced"] = True
    else:
        data |= {"score": score.vista_score, "strict": score.strict, "safe": score.safe}
    optional: dict[str, Any] = {
        "mem": [list(pair) for pair in turn.memory],
        "omitted": turn.omitted_memory,
        "apart": list(turn.unsupported_extraction),
        "notes": list(turn.notes),
        "unscored": turn.unscored,
        "reviewed": turn.reviewed,
        "windows": turn.windows if turn.windows > 1 else 0,
        "chunks": turn.chunks if turn.chunks > 1 else 0,
    }
    return data | {k: v for k, v in optional.items() if v}


def _claim(claim: ClaimResult, gold: Label | None) -> dict[str, Any]:
    data: dict[str, Any] = {"t": claim.text, "l": None if claim.label is None else _NUMBER[claim.label]}
    if claim.probs:
        data["p"] = {k: round(v, 4) for k, v in claim.probs.items()}
    if claim.unscored is not None:
        data["why"] = claim.unscored
    if claim.evidence:
        data["ev"] = [_evidence(e) for e in claim.evidence]
    if claim.corrected is not None:
        was = claim.corrected
        data["c"] = {"a": was.action, "t": was.text, "l": None if was.label is None else _NUMBER[was.label]}
    if gold is not None:
        data["g"] = _NUMBER[gold]
    return data


def _evidence(piece: Evidence) -> dict[str, Any]:
    data = {"s": piece.source, "p": round(piece.score, 4), "n": piece.sentence, "t": piece.turn, "k": piece.claim}
    return {k: v for k, v in data.items() if v is not None} | ({"stated": True} if piece.stated else {})
