"""Result lines without a model: the project's written conversations through the pipeline with a scripted backend.

For screenshots, benchmarks and browser tests of the report. Labels are the written ones, a seeded share of them
exchanged for one that is easily confused with it; probabilities follow the share of a claim's words that the
evidence has. They say nothing about any model.

    python scripts/sample_results.py sample.jsonl --conversations 500 --turns 5
"""

from __future__ import annotations

import argparse
import hashlib
import random
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from vista_local.backends.scripted import ScriptedBackend
from vista_local.config import ScoreConfig
from vista_local.files import whole_file
from vista_local.labels import UNVERIFIABLE_LABELS, Label
from vista_local.output import result_line, run_record
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt
from vista_local.readers import open_conversations
from vista_local.schema import Conversation, Role, Turn
from vista_local.text import words

WRITTEN = Path(__file__).resolve().parents[1] / "training" / "data" / "written"

#: What each label is exchanged for.
_CONFUSED = {
    Label.VERIFIED: Label.LACKING_EVIDENCE,
    Label.CONTRADICTED: Label.VERIFIED,
    Label.LACKING_EVIDENCE: Label.VERIFIED,
    Label.OUT_OF_SCOPE: Label.LACKING_EVIDENCE,
    Label.ABSTENTION: Label.OUT_OF_SCOPE,
}


def written_conversations(count: int, turns: int | None = None) -> list[Conversation]:
    """`count` conversations with labelled claims, of `turns` assistant turns each (`None`: as they are).

    There are fewer written ones: they are repeated under new ids, and with `turns` joined end to end.
    """
    base = [c for name in ("dev.jsonl", "train.jsonl") for c in open_conversations(WRITTEN / name)]
    if turns is None:
        return [
            replace(base[i % len(base)], id=f"{base[i % len(base)].id}{_suffix(i, len(base))}") for i in range(count)
        ]
    made = []
    at = 0
    for number in range(count):
        joined: list[Turn] = []
        while sum(t.role is Role.ASSISTANT for t in joined) < turns:
            joined += base[at % len(base)].turns
            at += 1
        while sum(t.role is Role.ASSISTANT for t in joined) > turns:
            joined.pop()
        made.append(Conversation(f"sample-{number:04d}", tuple(joined)))
    return made


def _suffix(i: int, n: int) -> str:
    return f"-{i // n}" if i >= n else ""


def _sample_backend(conversations: Sequence[Conversation], share: float, seed: int) -> ScriptedBackend:
    truth = {c.text: c.label for x in conversations for t in x.turns for c in t.claims or () if c.label is not None}

    def chance(claim: str) -> random.Random:
        return random.Random(hashlib.sha256(f"{seed}{claim}".encode()).digest())

    def classify(stage: str, prefix: Prompt, claim: str) -> list[float]:
        rng = chance(claim)
        label = truth[claim]
        unsure = rng.random() < share
        if unsure:
            label = _CONFUSED[label]
        known = set(words(prefix.user))
        asked = words(claim)
        found = sum(w in known for w in asked) / max(1, len(asked))
        sure = (0.35 if unsure else 0.62) + 0.37 * found * rng.random() ** 0.3
        if stage == "verify":
            p = sure if label is Label.VERIFIED else (0.45 if unsure else 0.3) * rng.random()
            return [min(0.995, max(0.52, p) if label is Label.VERIFIED and found > 0.3 else p * found), 0.0]
        if label is Label.VERIFIED:
            label = Label.LACKING_EVIDENCE
        weights = [0.02 + 0.25 * rng.random() * (1 - sure) for _ in UNVERIFIABLE_LABELS]
        weights[UNVERIFIABLE_LABELS.index(label)] = sure
        return [w / sum(weights) for w in weights]

    def whole(stage: str, prefix: Prompt, claim: str) -> list[float]:
        found = classify(stage, prefix, claim)
        return [found[0], 1 - found[0]] if stage == "verify" else found

    return ScriptedBackend(lambda prompt: "", whole)


def sample_lines(
    count: int, turns: int | None = None, share: float = 0.16, seed: int = 17, evidence: bool = True
) -> list[str]:
    """Result lines of `written_conversations(count, turns)`.

    Args:
        share: part of the claims whose label is exchanged.
        seed: of the exchange.
        evidence: whether claims carry the text that decides them.
    """
    conversations = written_conversations(count, turns)
    config = ScoreConfig(given_claims=True, evidence=evidence)
    backend = _sample_backend(conversations, share, seed)
    run = run_record(config, backend.describe() | {"conversations": "training/data/written", "seed": seed})
    return [result_line(r, run) for r in Pipeline(backend, config).score_shard(conversations)]


def main() -> None:
    """Write the lines to a file."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("output", type=Path)
    parser.add_argument("--conversations", type=int, default=55)
    parser.add_argument("--turns", type=int, default=None, help="assistant turns of each; default: as written")
    parser.add_argument("--share", type=float, default=0.16, help="part of the labels that is exchanged")
    parser.add_argument("--seed", type=int, default=17)
    args = parser.parse_args()
    with whole_file(args.output) as stream:
        stream.writelines(line + "\n" for line in sample_lines(args.conversations, args.turns, args.share, args.seed))


if __name__ == "__main__":
    main()
