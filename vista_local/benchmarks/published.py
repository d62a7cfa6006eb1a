"""Figures that the paper reports (VISTA, Lewis et al., arXiv 2510.27052), to stand beside measured ones. In %.

They are of the paper's own runs, on its own samples: a guide to size, not the same measurement. Only
what is known to be printed there is in the table; a missing figure is missing, not zero.
"""

from __future__ import annotations

from dataclasses import dataclass

from vista_local.benchmarks import mapping

SOURCE = "arXiv 2510.27052"


@dataclass(frozen=True)
class Published:
    """One line of a table of the paper: claim accuracy, macro-F1 over five labels, turn accuracy."""

    benchmark: str
    system: str
    strict: float | None = None
    safe: float | None = None
    claim_accuracy: float | None = None
    macro_f1: float | None = None
    ablate: str | None = None


PUBLISHED: tuple[Published, ...] = (
    Published(mapping.VISTA, "GPT-5", strict=92.51, claim_accuracy=81.53, macro_f1=69.09),
    Published(mapping.VISTA, "DeepSeek-V3", strict=92.51, claim_accuracy=79.73, macro_f1=67.15),
    Published(mapping.VISTA, "GPT-4o", strict=91.19, claim_accuracy=75.68, macro_f1=62.41),
    Published(mapping.VISTA, "always VERIFIED", strict=16.74, claim_accuracy=47.07, macro_f1=12.80),
    Published(mapping.VISTA, "every turn unverifiable", strict=83.26),
    Published(mapping.VISTA, "every turn hallucinated", safe=52.42),
    Published(mapping.FAITHDIAL, "DeepSeek", strict=81.70),
    Published(mapping.FAITHDIAL, "without memory", strict=81.74, ablate="memory"),
    Published(mapping.FAITHDIAL, "without history in decomposition", strict=77.24, ablate="history"),
    Published(mapping.FAITHDIAL, "zero-shot", strict=70.17, ablate="fewshot"),
    Published(mapping.BEGIN, "GPT-4o", strict=83.20),
    Published(mapping.AIS, "GPT-4o", strict=63.00),
    Published(mapping.FADE, "Llama-70B", strict=65.10),
)

#: Parts of a benchmark of the paper's under the project's own names.
PART_OF = {"human_dev": mapping.VISTA}


def published(benchmark: str) -> list[Published]:
    """The paper's lines for a benchmark, or for the one that it is a part of."""
    name = PART_OF.get(benchmark, benchmark)
    return [line for line in PUBLISHED if line.benchmark == name]
