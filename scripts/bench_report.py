"""How long the report takes: writing it, and opening it in a headless chromium, 500 conversations of 5 turns.

    python scripts/bench_report.py

Needs the extra `browser` and chromium. Times are wall-clock seconds and processor seconds of the page's process;
"listed" is until the list and the overview are drawn,
"opened" until the first conversation is, "filtered" until the list shows one label only.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

from playwright.sync_api import Page, sync_playwright
from sample_results import sample_lines

from training.record import ROOT, record
from vista_local.files import whole_file
from vista_local.merge import read_with_run
from vista_local.report.data import report_data
from vista_local.report.page import render_page


def measure(page_file: Path, runs: int) -> dict[str, dict[str, list[float]]]:
    """Seconds of each step, wall-clock and of the page's main thread; a fresh browser context each time."""
    only = "button[aria-label='Only Abstention']"
    steps: dict[str, Callable[[Page], object]] = {
        "listed": lambda page: (page.goto(page_file.as_uri()), page.wait_for_selector("html[data-ready]")),
        "opened": lambda page: (page.keyboard.press("Enter"), page.wait_for_selector(".talk")),
        "filtered": lambda page: (page.click(only), page.wait_for_selector(f"{only}[aria-pressed=true]")),
    }
    seconds: dict[str, dict[str, list[float]]] = {name: {"wall": [], "processor": []} for name in steps}
    program = os.environ.get("CHROMIUM") or shutil.which("chromium")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=os.geteuid() != 0)
        for _ in range(runs):
            page = browser.new_context(viewport={"width": 1440, "height": 900}).new_page()
            for name, act in steps.items():
                before = 0.0 if name == "listed" else _thread_seconds(page)  # a new document starts at zero
                started = time.perf_counter()
                act(page)
                # Two frames: what was changed has been drawn.
                page.evaluate("() => new Promise((go) => requestAnimationFrame(() => requestAnimationFrame(go)))")
                seconds[name]["wall"].append(time.perf_counter() - started)
                seconds[name]["processor"].append(_thread_seconds(page) - before)
            page.context.close()
        browser.close()
    return seconds


def _thread_seconds(page: Page) -> float:
    """Processor time of the page's process since it began: unlike wall-clock, the same on a busy machine."""
    session = page.context.new_cdp_session(page)
    session.send("Performance.enable", {"timeDomain": "threadTicks"})
    metrics = {m["name"]: m["value"] for m in session.send("Performance.getMetrics")["metrics"]}
    session.detach()
    return float(metrics["ProcessTime"])


def main() -> None:
    """Measure and write the figures."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--output", type=Path, default=ROOT / "scripts" / "results" / "bench_report.json")
    parser.add_argument("--conversations", type=int, default=500)
    parser.add_argument("--turns", type=int, default=5)
    parser.add_argument("--runs", type=int, default=5)
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        results, page_file = Path(folder) / "out.jsonl", Path(folder) / "report.html"
        lines = sample_lines(args.conversations, args.turns)
        results.write_text("".join(line + "\n" for line in lines), encoding="utf-8")
        started = time.perf_counter()
        data = report_data(read_with_run(results), title="Benchmark", source=results.name)
        page_file.write_text(render_page(data), encoding="utf-8")
        written = time.perf_counter() - started
        seconds = measure(page_file, args.runs)
        figures = {
            "record": record(),
            "conversations": data["summary"]["conversations"],
            "turns": data["summary"]["scored_turns"],
            "claims": data["summary"]["claims"],
            "megabytes": round(page_file.stat().st_size / 1e6, 2),
            "runs": args.runs,
            "seconds": {"written": round(written, 2)}
            | {
                step: {
                    kind: {"median": round(statistics.median(values), 3), "largest": round(max(values), 3)}
                    for kind, values in kinds.items()
                }
                for step, kinds in seconds.items()
            },
        }
    with whole_file(args.output) as stream:
        stream.write(json.dumps(figures, indent=2) + "\n")
    print(json.dumps(figures, indent=2))


if __name__ == "__main__":
    main()
