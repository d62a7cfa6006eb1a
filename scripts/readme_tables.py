"""`python scripts/readme_tables.py [--check]`: the README's figures, from the committed results.

Writes the tables between the figure marks of README.md; with --check it only says whether they
are what the results give (exit code 1 if not).
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
EVALUATION = ROOT / "checkpoints" / "smollm2-135m" / "evaluation.json"
RESULTS = ROOT / "scripts" / "results"
BENCHMARKS = ROOT / "checkpoints" / "smollm2-135m" / "benchmarks.json"
BENCH = RESULTS / "bench_score.json"
EVIDENCE = RESULTS / "bench_evidence.json"
INJECTION = RESULTS / "bench_injection.json"
REPORT = RESULTS / "bench_report.json"
START, END = "<!-- figures -->", "<!-- /figures -->"

#: Asked of the default on human_dev (percent), and the teacher's own figures there.
TARGETS = {"given_claims": (83, 65, 93, 84), "end_to_end": (None, None, 86, 74)}
#: What else was asked of the default, in percent.
TARGET_WRITTEN_CONTRADICTED, TARGET_DILUTION_LOSS, TARGET_DECOMPOSITION_F1, TARGET_EVIDENCE = 60, 4, 65, 75
TEACHER = {"given_claims": (88.57, 80.72, 93.81, 86.73), "end_to_end": (None, None, 89.38, 82.30)}


def _p(value: float | None, interval: list[float] | None = None) -> str:
    if value is None:
        return "-"
    text = f"{100 * value:.1f}"
    return f"{text} ({100 * interval[0]:.1f} to {100 * interval[1]:.1f})" if interval else text


def _row(name: str, figures: dict[str, Any]) -> str:
    return (
        f"| {name} | {_p(figures.get('claim_accuracy'), figures.get('claim_accuracy_95'))} "
        f"| {_p(figures.get('macro_f1'), figures.get('macro_f1_95'))} "
        f"| {_turns(figures['strict'])} | {_turns(figures['safe'])} | {_p(figures['coverage'])} |"
    )


def _turns(figures: dict[str, Any]) -> str:
    """Accuracy with its interval, then balanced accuracy."""
    return f"{_p(figures['accuracy'], figures['accuracy_95'])}; {_p(figures['balanced_accuracy'])}"


def _plain(name: str, values: tuple[float | None, ...]) -> str:
    return f"| {name} | " + " | ".join("-" if v is None else f"{v:g}" for v in values) + " | - |"


def tables() -> str:
    """Markdown of all figures."""
    data = json.loads(EVALUATION.read_text(encoding="utf-8"))
    record = data["record"]
    lines = ["| % | claim accuracy | macro-F1 | strict turns; balanced | safe turns; balanced | coverage |"]
    lines.append("|---|---|---|---|---|---|")
    human = data["human_dev"]
    names = {
        "given_claims": "human_dev, given claims",
        "end_to_end": "human_dev, end to end",
        "diluted": "human_dev, given claims, reference among 20 foreign sentences",
    }
    for mode, name in names.items():
        if mode not in human:
            continue
        lines.append(_row(f"**{name}**", human[mode]))
        if mode in TARGETS:
            lines.append(_plain("asked for", TARGETS[mode]))
            lines.append(_plain("teacher", TEACHER[mode]))
    for key, name in (("turns_dev", "turns_dev"), ("written_dev", "written_dev"), ("long_dev", "long_dev")):
        for mode, words in (
            ("given_claims", "given claims"),
            ("end_to_end", "end to end"),
            ("diluted", "given claims, reference among 100 foreign sentences"),
        ):
            if mode in data.get(key, {}):
                lines.append(_row(f"{name}, {words}", data[key][mode]))
    lines += ["", "| F1 by label, given claims, % | " + " | ".join(human["given_claims"]["label_order"]) + " |"]
    lines.append("|---|" + "---|" * len(human["given_claims"]["label_order"]))
    for key in ("human_dev", "turns_dev", "written_dev", "long_dev"):
        if "given_claims" in data.get(key, {}):
            classes = data[key]["given_claims"]["per_class"]["classes"]
            cells = [
                f"{_p(classes[label]['f1'])} ({classes[label]['support']})"
                for label in human["given_claims"]["label_order"]
            ]
            lines.append(f"| {key} (claims) | " + " | ".join(cells) + " |")
    lines += ["", *other_targets(data)]
    lines += [
        "",
        "Decomposition against the teacher's claims (one-to-one, token F1 of at least 0.6, equal numbers; "
        f"asked for: F1 {TARGET_DECOMPOSITION_F1} on turns_dev, claims within 15 % of the teacher's number):",
        "",
    ]
    lines += ["| | F1 | precision | recall | claims found / teacher's |", "|---|---|---|---|---|"]
    for key in ("human_dev", "turns_dev", "written_dev", "long_dev"):
        for mode, words in (("end_to_end", ""), ("whole_turns", ", each turn in one piece")):
            found = data.get(key, {}).get(mode, {}).get("decomposition")
            if found:
                lines.append(
                    f"| {key}{words} | {_p(found['f1'], found['f1_95'])} | {_p(found['precision'])} "
                    f"| {_p(found['recall'])} | {found['predicted']} / {found['teacher']} |"
                )
    lines += [
        "",
        f"Measured {_when(data)} on {record['machine']['cpu']}, seed {record['seed']}. "
        "Script: `python -m training.evaluate`; "
        "output with confusion matrices: `checkpoints/smollm2-135m/evaluation.json`.",
    ]
    if BENCHMARKS.is_file():
        lines += ["", *method_lines(json.loads(BENCHMARKS.read_text(encoding="utf-8")))]
    if BENCH.is_file():
        lines += ["", bench_lines(json.loads(BENCH.read_text(encoding="utf-8")))]
    return "\n".join(lines)


def other_targets(data: dict[str, Any]) -> list[str]:
    """Figures that were asked for by themselves, each beside its target; those not measured are left out."""
    lines = []
    human, written = data["human_dev"], data.get("written_dev", {})
    if "given_claims" in written:
        f1 = written["given_claims"]["per_class"]["classes"]["CONTRADICTED"]["f1"]
        lines.append(f"- F1 of CONTRADICTED on written_dev: {_p(f1)} (asked for: {TARGET_WRITTEN_CONTRADICTED}).")
    if "diluted" in human:
        loss = human["given_claims"]["claim_accuracy"] - human["diluted"]["claim_accuracy"]
        lines.append(
            "- Claim accuracy lost on human_dev when every reference is hidden among 20 sentences of other "
            f"conversations: {_p(loss)} points (asked for: at most {TARGET_DILUTION_LOSS})."
        )
    if EVIDENCE.is_file():
        bench = json.loads(EVIDENCE.read_text(encoding="utf-8"))
        rows = bench["by_label"].values()
        gold, alike, hits = (sum(row[key] for row in rows) for key in ("gold", "labelled_alike", "hits"))
        lines.append(
            f"- Evidence on {bench['conversations']} conversations of written_dev, first piece right: "
            f"{_p(bench['hit_at_1'])} % of the {alike} claims that are "
            f"labelled as gold has them (asked for: {TARGET_EVIDENCE}; memory of gold labels), {_p(hits / gold)} % of "
            f"all {gold} VERIFIED and CONTRADICTED ones; script: `scripts/bench_evidence.py`, output: "
            "`scripts/results/bench_evidence.json`."
        )
    if INJECTION.is_file():
        bench = json.loads(INJECTION.read_text(encoding="utf-8"))
        changed, places = bench["labels_changed"], bench["labels_changed_by_place"]
        by_place = ", ".join(f"{place} {_p(found['share'])}" for place, found in places.items())
        lost = bench["decompose"]
        lines.append(
            f"- {bench['injections']} prompt injections beside clean twins: {_p(changed['share'])} % of "
            f"{changed['of']} given claims' labels change (asked for: at most {100 * bench['asked']:g}); by place: "
            f"{by_place}. Decompose loses {_lost(lost['injection in the history'])} with the injection in the history, "
            f"{_lost(lost['injection in the turn'])} with it in the turn (asked for: none); script: "
            "`scripts/bench_injection.py`, output: `scripts/results/bench_injection.json`."
        )
    if REPORT.is_file():
        bench = json.loads(REPORT.read_text(encoding="utf-8"))
        listed = bench["seconds"]["listed"]
        lines.append(
            f"- Opening a report of {bench['conversations']} conversations ({bench['turns']:,} turns, "
            f"{bench['megabytes']:.1f} MB) in a headless chromium: {listed['wall']['median']:.1f} s by the clock, "
            f"{listed['processor']['median']:.1f} s of processor time, median of {bench['runs']} (asked for: 2 s); "
            "script: `scripts/bench_report.py`, output: `scripts/results/bench_report.json`."
        )
    return lines


#: The paper's own ablation figures are of FaithDial and stand in `vista_local/benchmarks/published.py`.
METHODS = {
    "vista-given": "vista, given claims",
    "vista-given-no_memory": "- without memory",
    "factscore-given": "FActScore-style, given claims",
    "majority-given": "majority",
    "vista-own": "vista, own claims",
    "vista-own-no_memory": "- without memory",
    "vista-own-no_history": "- without history in decomposition",
    "vista-own-no_decomposition": "- without decomposition (a sentence is a claim)",
    "factscore-own": "FActScore-style, own claims",
    "judge-own": "judge (the turn is one claim)",
}


def method_lines(data: dict[str, Any]) -> list[str]:
    """Methods and ablations on the same adapters, and the verdict of parity with the teacher."""
    found = data["benchmarks"]
    measured = [b for b in ("human_dev", "turns_dev") if any(name.startswith(f"{b}-") for name in found)]
    lines = ["Methods and ablations on the same adapters, %:", ""]
    columns = [f"{b}: {c}" for b in measured for c in ("claim accuracy", "macro-F1", "strict", "safe")]
    lines += ["| | " + " | ".join(columns) + " |", "|---|" + "---|" * len(columns)]
    for key, words in METHODS.items():
        cells = []
        for benchmark in measured:
            figures = found.get(f"{benchmark}-{key}", {}).get("figures", {})
            claims = figures.get("claims", {})
            cells += [_p(claims.get("claim_accuracy")), _p(claims.get("macro_f1"))]
            cells += [_p(figures.get(rule, {}).get("accuracy")) for rule in ("strict", "safe")]
        lines.append(f"| {words} | " + " | ".join(cells) + " |")
    lines.append("")
    for name, report in data["parity"].items():
        on = "claims" if name == "given" else "safe"
        test, verdict = report[on]["non_inferiority"], report["verdict"]
        agreement = report["agreement"]
        share, p_value = agreement["labels"]["value"], report[on]["mcnemar"]["p_value"]
        lines.append(
            f"- Parity with the teacher on human_dev, {name} claims: {verdict['is']} at a margin of "
            f"{100 * test['margin']:g} points on {verdict['on']} (student minus teacher "
            f"{100 * test['difference']:+.1f}, one-sided 95 % bound {100 * test['lower']:+.1f}); McNemar's p "
            f"{p_value:.2g}; labels agree on {_p(share)} % of {agreement['claims']} claims, "
            f"kappa {agreement['kappa']:.2f}."
        )
    record = data["record"]
    lines += [
        "",
        f"Measured on {record['date'][:10]} at commit {_commit(record)}, seed {record['seed']}. Script: "
        "`scripts/run_benchmarks.py`; output: `checkpoints/smollm2-135m/benchmarks.json`.",
    ]
    return lines


def _lost(found: dict[str, Any]) -> str:
    return f"{found['lost']['number']} of {found['lost']['of']} claims"


def bench_lines(bench: dict[str, Any]) -> str:
    """Speed, with what was asked for."""
    whole, line, targets = bench["end_to_end"], bench["command_line"], bench["targets"]
    verify, per_turn = whole["verify"], whole["tokens_per_turn"]
    peak = max(whole["peak_rss_gib"], line["peak_rss_gib"])
    rate = verify["matmul_gflop_per_second"][verify["dtype"]]
    lines = [
        f"Speed on two cores, the first {whole['conversations']} conversations of human_dev end to end:",
        "",
        "| | measured | asked for |",
        "|---|---|---|",
        f"| turns/s (claims/s) | {whole['turns_per_second']:.2f} ({whole['claims_per_second']:.2f}) "
        f"| {targets['turns_per_second']} |",
        f"| peak memory, GiB | {peak:.2f} | {targets['peak_rss_gib']:g} |",
        f"| start to first result, s | {line['first_result_seconds']:.1f} | {targets['first_result_seconds']:g} |",
        f"| tokens computed a turn: decompose, verify, categorise | {per_turn['decompose']:.0f}, "
        f"{per_turn['verify']:.0f}, {per_turn['categorise']:.0f} | |",
        f"| share of the matrix-product rate ({rate:.0f} GFLOP/s in {verify['dtype']}) in verify "
        f"| {_p(verify['share_of_matmul_rate'])} % | |",
    ]
    if "subset" in bench:
        ratio, prompted = bench["subset"]["ratio"], bench["subset"]["prompted"]
        lines.append(
            f"| the prompted pipeline on the same base, {prompted['conversations']} conversations: time, tokens "
            f"| {ratio['time']:.1f} times, {ratio['tokens']:.1f} times | |"
        )
    machine = bench["record"]["machine"]
    lines += [
        "",
        f"Measured on {bench['record']['date'][:10]} at commit {_commit(bench['record'])} on {machine['cpu']}, "
        f"{machine['usable_cores']} cores. Script: `scripts/bench_score.py`; "
        "output: `scripts/results/bench_score.json`.",
    ]
    return "\n".join(lines)


def _when(data: dict[str, Any]) -> str:
    """Days and commits of all modes of an evaluation, each once."""
    modes = [m["measured"] for s in data.values() if isinstance(s, dict) for m in s.values() if _has_record(m)]
    found = dict.fromkeys(f"on {m['date'][:10]} at commit {_commit(m)}" for m in sorted(modes, key=lambda m: m["date"]))
    return ", ".join(found)


def _has_record(figures: Any) -> bool:
    return isinstance(figures, dict) and "measured" in figures


def _commit(record: dict[str, Any]) -> str:
    return f"{str(record['git_commit'])[:12]}{' with changes' if record['git_dirty'] else ''}"


def main() -> int:
    """Write or check the README."""
    path = ROOT / "README.md"
    text = path.read_text(encoding="utf-8")
    before, rest = text.split(START)
    after = rest.split(END)[1]
    new = f"{before}{START}\n{tables()}\n{END}{after}"
    if "--check" in sys.argv[1:]:
        if new != text:
            print("README.md's figures are not those of the committed results; run: python scripts/readme_tables.py")
        return int(new != text)
    path.write_text(new, encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
