"""The README's screenshots of the report, from a result file or, without one, from `sample_results`.

    python scripts/make_screenshots.py vista_local/report/screenshots [RESULTS.jsonl]

Needs the extra `browser` and chromium.
"""

from __future__ import annotations

import argparse
import os
import shutil
import tempfile
from pathlib import Path

from playwright.sync_api import sync_playwright
from sample_results import sample_lines

from vista_local.merge import read_with_run
from vista_local.report.data import report_data
from vista_local.report.page import render_page


def main() -> None:
    """Write overview.png and conversation.png."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folder", type=Path)
    parser.add_argument("results", type=Path, nargs="?")
    parser.add_argument("--title", default="Written conversations, scripted labels")
    parser.add_argument("--claim", default="c=written-r-19&t=3&k=1", help="address of the claim to show")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder, sync_playwright() as playwright:
        results = args.results or Path(folder) / "results.jsonl"
        if args.results is None:
            results.write_text("".join(line + "\n" for line in sample_lines(55)), encoding="utf-8")
        page_file = Path(folder) / "report.html"
        data = report_data(read_with_run(results), title=args.title, source=results.name)
        page_file.write_text(render_page(data), encoding="utf-8")
        program = os.environ.get("CHROMIUM") or shutil.which("chromium")
        browser = playwright.chromium.launch(executable_path=program, chromium_sandbox=os.geteuid() != 0)
        for name, scheme, fragment in (("overview", "light", ""), ("conversation", "dark", "#" + args.claim)):
            page = browser.new_page(viewport={"width": 1360, "height": 850}, color_scheme=scheme)
            page.goto(page_file.as_uri() + fragment)
            page.wait_for_selector("html[data-ready]")
            page.screenshot(path=args.folder / f"{name}.png")
        browser.close()


if __name__ == "__main__":
    main()
