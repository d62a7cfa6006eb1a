"""Twenty long answers with tables, code and citations over long references, made from parts written for them.

The same number always gives the same answer. References hold 2,000 to 6,000 tokens of the default
base (about 1.35 tokens a word); some of the answer's sentences stand in them word for word, others
differ in a detail, others are nowhere.
"""

from __future__ import annotations

import random
from dataclasses import dataclass
from itertools import islice

ANSWERS = 20

_SUBJECTS = (
    "the Halden pump station|the Ormsay cable|the Tarn archive|the Nimbus scheduler|the Varde tidal gauge|"
    "the Corvo index|the Lindow kiln|the Brisk parser|the Greta glasshouse|the Kestrel relay|the Morrow ledger|"
    "the Sable compiler|the Fenwick weir|the Aster survey|the Quill format|the Dunmore signal box|the Isla registry|"
    "the Pell battery|the Rook classifier|the Thorne bridge"
).split("|")
_PARTS = (
    "intake valve|control unit|north segment|reserve tank|write buffer|outer seal|lookup table|main shaft|service log|"
    "calibration set|inlet filter|backup channel|upper gate|token stream|sensor array|retry queue"
).split("|")
_VERBS = "handles|records|limits|feeds|replaces|checks|delays|protects".split("|")
_PLACES = "Lindow|Ormsay|Halden|Castell|Brae|Norrvik|Pell Harbour|East Tarn".split("|")
_UNITS = "millimetres|kilowatts|requests a second|litres|bar|megabytes|degrees|metres".split("|")
_FORMS = (
    "{S}'s {p} {v} up to {n} {u}.",
    "In {y}, engineers from {l} moved the {p} of {s}, which took {k} days.",
    "The {p} {v} the {q}; without it, {s} stops after {k} minutes.",
    "Dr. A. Moreau measured {n} {u} at the {p} on 3 May {y} (see Fig. {k}).",
    "{S} was inspected in {y}, and {k} of its {m} joints were renewed.",
    "Since {y} the {q} of {s} is kept in {l}, approx. {k} km from the {p}.",
    '"The {p} is the weak point," says the report of {y}, "and it fails once in {n} runs."',
    "According to the {y} manual, the {p} must not exceed {n}.{k} {u}, i.e. the limit of the {q}.",
)


@dataclass(frozen=True)
class LongAnswer:
    """An answer, its reference, and sentences of the answer that stand in the reference (at its ends, too)."""

    question: str
    text: str
    reference: tuple[str, ...]
    supported: tuple[str, ...]


class _Writer:
    def __init__(self, number: int) -> None:
        self.draw = random.Random(1000 + number)
        self.subject = _SUBJECTS[number % len(_SUBJECTS)]

    def sentence(self) -> str:
        pick = self.draw.choice
        name = self.subject
        return pick(_FORMS).format(
            s=name, S=name[0].upper() + name[1:], p=pick(_PARTS), q=pick(_PARTS), v=pick(_VERBS), l=pick(_PLACES),
            u=pick(_UNITS), y=self.draw.randint(1890, 2024), n=self.draw.randint(12, 9_800),
            k=self.draw.randint(2, 60), m=self.draw.randint(61, 400),
        )  # fmt: skip

    def passage(self, sentences: int) -> str:
        return " ".join(self.sentence() for _ in range(sentences))

    def table(self, rows: int) -> str:
        head = "| part | limit | unit | checked |\n|:-----|------:|:----:|---------|\n"
        return head + "\n".join(
            f"| {self.draw.choice(_PARTS)} | {self.draw.randint(1, 999)}.{self.draw.randint(0, 9)} "
            f"| {self.draw.choice(_UNITS)} | {self.draw.randint(1990, 2024)}-0{self.draw.randint(1, 9)} |"
            for _ in range(rows)
        )

    def code(self) -> str:
        part = self.draw.choice(_PARTS).replace(" ", "_")
        limit = self.draw.randint(10, 500)
        blocks = (
            f"```python\ndef check_{part}(value: float) -> bool:\n    # refuse what the manual refuses\n"
            f"    if value > {limit}:\n        raise ValueError(f'{{value}} > {limit}')\n    return value >= 0\n```",
            f"```yaml\n{part}:\n  limit: {limit}\n  retry: [1, 2, 5]\n  # seconds\n  timeout: {limit // 10}.5\n```",
            f"```sql\nSELECT part, max(reading)\nFROM {part}_log\nWHERE reading > {limit}\nGROUP BY part;\n```",
            f"```\n$ inspect --part {part} --limit {limit}\nok: 0 faults, {limit} readings\n```",
        )
        return self.draw.choice(blocks)


def long_answer(number: int) -> LongAnswer:
    """Answer number 0 to 19."""
    writer = _Writer(number)
    draw = writer.draw
    sizes = (1_550, 2_000, 2_600, 3_200, 4_200)
    goal = sizes[number % len(sizes)]
    passages: list[str] = []
    while sum(len(p.split()) for p in passages) < goal:
        passages.append(writer.passage(draw.randint(3, 12)))
    first, last = writer.sentence(), writer.sentence()
    middle = [writer.sentence() for _ in range(4)]
    passages[0] = f"{first} {passages[0]}"
    for n, sentence in enumerate(middle, start=1):
        at = n * len(passages) // 5
        passages[at] = f"{passages[at]} {sentence}"
    passages[-1] = f"{passages[-1]} {last}"
    supported = (first, *middle, last)
    cited = [f"{s[:-1]} [{n}]." if n % 2 and s.endswith(".") else s for n, s in enumerate(supported)]
    altered = [sentence.replace("1", "7").replace("2", "3") for sentence in islice(supported, 2)]
    new = [writer.sentence() for _ in range(5)]
    text = "\n\n".join(
        [
            f"# About {writer.subject}",
            " ".join(cited[:3]),
            "## Limits",
            writer.table(draw.randint(3, 7)),
            "\n".join(f"{n}. {sentence}" for n, sentence in enumerate([*altered, *new[:2]], start=1)),
            writer.code(),
            "> " + cited[3],
            "\n".join(f"- **{draw.choice(_PARTS)}**: {sentence}" for sentence in [*cited[4:], *new[2:]]),
            "I can't say what it will cost, sorry.",
            '[1]: https://example.org/report?id=7&page=2 "Report"\n[3]: <https://example.org/a_(b)>',
        ]
    )
    return LongAnswer(f"What do I need to know about {writer.subject}?", text, tuple(passages), supported)
