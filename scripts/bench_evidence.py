"""How often the first piece of evidence is a gold one: hit@1 on conversations with gold evidence.

    python scripts/bench_evidence.py [--data training/data/written/dev.jsonl]

Claims are given, with the gold labels in memory (so that the store holds what the gold evidence
refers to). Counted are gold VERIFIED and CONTRADICTED claims that the adapters label alike: a claim
labelled otherwise names no evidence for the gold label, and is counted apart.
"""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import Any

from training.record import ROOT, record
from vista_local.config import ScoreConfig
from vista_local.evaluator import Evaluator
from vista_local.evidence import DECIDED_LABELS
from vista_local.labels import parse_label
from vista_local.readers import parse_conversation
from vista_local.schema import ConversationResult
from vista_local.text import split_sentences


def passage_of_sentence(reference: list[str] | None) -> list[int]:
    """For each sentence number of a result, the number (from 1) of the reference item it stands in."""
    items = [item for item in reference or [] if item.strip()]
    return [number for number, item in enumerate(items, start=1) for _ in split_sentences(item)]


def gold_key(evidence: Any, passages: list[int], assistant_turns: list[int]) -> str | int | None:
    """A result's piece in the data's notation: a sentence number from 1, or "mT.K"."""
    if evidence.source == "reference":
        return passages[evidence.sentence]
    if evidence.source == "memory":
        return f"m{assistant_turns.index(evidence.turn) + 1}.{evidence.claim + 1}"
    return None


def count(conversations: list[dict[str, Any]], results: list[ConversationResult]) -> dict[str, dict[str, int]]:
    """Gold claims, claims labelled alike, and hits at the first place, by label."""
    counts = {label.value: {"gold": 0, "labelled_alike": 0, "hits": 0} for label in sorted(DECIDED_LABELS)}
    for conversation, result in zip(conversations, results, strict=True):
        assistant = [i for i, t in enumerate(conversation["turns"]) if t["role"] == "assistant"]
        for turn in result.turns:
            given = conversation["turns"][turn.index]
            passages = passage_of_sentence(given.get("reference"))
            for claim, gold in zip(turn.claims, given["claims"], strict=True):
                label = parse_label(gold["label"])
                if label not in DECIDED_LABELS or not gold.get("evidence"):
                    continue
                row = counts[label.value]
                row["gold"] += 1
                if claim.label is label:
                    row["labelled_alike"] += 1
                    first = gold_key(claim.evidence[0], passages, assistant) if claim.evidence else None
                    row["hits"] += first in gold["evidence"]
    return counts


def main() -> None:
    """Measure, print and write the result."""
    parser = argparse.ArgumentParser(description="Hit@1 of evidence on conversations with gold evidence.")
    parser.add_argument("--data", type=Path, default=ROOT / "training" / "data" / "written" / "dev.jsonl")
    parser.add_argument("--limit", type=int, help="only the first N conversations")
    parser.add_argument("--adapters", help="adapter set: folder or name; default: the default model's")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=ROOT / "scripts" / "results" / "bench_evidence.json")
    options = parser.parse_args()
    conversations = [json.loads(line) for line in options.data.read_text(encoding="utf-8").split("\n") if line.strip()]
    conversations = conversations[: options.limit]
    config = ScoreConfig(given_claims=True, oracle_memory=True, evidence=True)
    evaluator = Evaluator.from_pretrained(options.adapters, config=config, threads=options.threads)
    results = list(evaluator.score([parse_conversation(c, c["id"]) for c in conversations]))
    counts = count(conversations, results)
    alike, hits = (sum(row[key] for row in counts.values()) for key in ("labelled_alike", "hits"))
    report = {
        "record": record(),
        "data": options.data.name,
        "conversations": len(conversations),
        "by_label": counts,
        "hit_at_1": round(hits / alike, 4) if alike else None,
        "run": evaluator.run_record(),
    }
    options.out.parent.mkdir(parents=True, exist_ok=True)
    options.out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    print(json.dumps({k: report[k] for k in ("by_label", "hit_at_1")}, indent=2))


if __name__ == "__main__":
    main()
