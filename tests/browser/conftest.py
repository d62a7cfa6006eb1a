"""A headless chromium for tests marked `browser`; without it, or its extra, they are skipped with a reason."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from report_samples import RUN

from vista_local.report.data import report_data
from vista_local.report.page import render_page
from vista_local.schema import ConversationResult

CHROMIUM = ("chromium", "chromium-browser", "google-chrome", "chrome")


@pytest.fixture(scope="module")  # not session: playwright keeps an event loop running while it is open
def browser() -> Iterator[Any]:
    """The installed chromium, driven by playwright (which brings none of its own here)."""
    sync = pytest.importorskip("playwright.sync_api", reason="needs the extra: browser")
    program = os.environ.get("CHROMIUM") or next(filter(None, map(shutil.which, CHROMIUM)), None)
    if program is None:
        pytest.skip("needs chromium (apt-get install chromium), or its path in CHROMIUM")
    with sync.sync_playwright() as playwright:
        # Chromium's sandbox refuses to run as root, as in a container.
        sandbox = os.name != "posix" or os.geteuid() != 0
        running = playwright.chromium.launch(executable_path=program, chromium_sandbox=sandbox)
        yield running
        running.close()


@pytest.fixture
def page(browser: Any) -> Iterator[Any]:
    """A page of its own, wide enough for both columns. Errors in its scripts, and requests, fail the test."""
    context = browser.new_context(viewport={"width": 1440, "height": 900}, color_scheme="light", accept_downloads=True)
    context.set_default_timeout(60_000)  # a busy machine isn't a failure
    tab = context.new_page()
    faults: list[str] = []
    tab.on("pageerror", lambda error: faults.append(str(error)))
    tab.on("console", lambda message: faults.append(message.text) if message.type == "error" else None)
    tab.on(
        "request",
        lambda request: faults.append(request.url) if not request.url.startswith(("file:", "blob:", "data:")) else None,
    )
    tab.on("dialog", lambda dialog: faults.append(f"dialog: {dialog.message}"))
    yield tab
    context.close()
    assert faults == []


@pytest.fixture
def opened(page: Any, tmp_path: Path) -> Callable[..., Any]:
    """Writes a report of results and opens it; the address's fragment may be given."""

    def call(*results: ConversationResult, fragment: str = "", run: dict[str, Any] = RUN, **options: Any) -> Any:
        data = report_data(((r, run) for r in results), title="Mills", source="out.jsonl", **options)
        path = tmp_path / f"report-{len(list(tmp_path.iterdir()))}.html"  # a new address: the page is really loaded
        path.write_text(render_page(data), encoding="utf-8")
        page.goto(path.as_uri() + fragment)
        page.wait_for_selector("html[data-ready]")
        return page

    return call
