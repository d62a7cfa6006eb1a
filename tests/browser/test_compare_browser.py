"""The comparison in a real browser."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import LAKE, MILL, A, L, S, V, claim

from vista_local.compare import compare_data, compare_results
from vista_local.report.page import render_page
from vista_local.schema import GivenClaim

pytestmark = pytest.mark.browser

OTHER = replace(
    MILL,
    turns=(
        replace(
            MILL.turns[0],
            claims=(
                claim("The mill is old.", L, 0.5),
                claim("The mill is red.", S),
                claim("The miller likes rain.", S),
            ),
        ),
        *MILL.turns[1:],
    ),
)
GOLD = {"mill": {1: (GivenClaim("The mill is old.", V), GivenClaim("The mill is red.", S))}}


def test_changed_claims_are_listed_filtered_and_explained(page: Any, tmp_path: Path) -> None:
    hostile = replace(LAKE, id="<img src=x onerror=alert(1)>")
    changed = replace(hostile, turns=(replace(LAKE.turns[0], claims=(claim("The lake is deep.", A),)),))
    data = compare_data(
        compare_results((MILL, hostile), (OTHER, changed), GOLD), title="t", names=("<b>a</b>", "b"), resamples=20
    )
    path = tmp_path / "compare.html"
    path.write_text(render_page(data, "compare"), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    claims = page.locator(".example-claim")
    assert claims.all_text_contents() == ["The mill is old.", "The mill is red.", "The lake is deep."]
    assert (
        "<b>a</b>" in page.locator(".who-is-who").inner_text() and page.locator("main img, .who-is-who b").count() == 0
    )
    assert "1 claim only in A" in page.locator(".notice").inner_text()
    assert "A alone has 1 right and B alone 1" in page.locator(".verdict-line").inner_text()
    assert "Claim accuracy" in page.locator(".versus").inner_text()
    page.select_option("#kind", "b")
    assert claims.all_text_contents() == ["The mill is red."]
    assert "as in gold" in page.locator(".duel .right").inner_text()
    page.locator(".example summary").click()
    page.wait_for_selector(".context")
    assert "It is white." in page.locator(".context").inner_text()
    page.get_by_role("button", name="Clear").click()
    page.locator(".matrix td:not(.same) button").first.click()
    assert claims.all_text_contents() == ["The mill is old."]
    page.get_by_role("button", name="Clear").click()
    page.keyboard.press("/")
    page.keyboard.type("lake")
    assert claims.all_text_contents() == ["The lake is deep."]


def test_equal_files_say_so(page: Any, tmp_path: Path) -> None:
    data = compare_data(compare_results((MILL,), (MILL,)), title="t", names=("a", "b"), resamples=20)
    path = tmp_path / "compare.html"
    path.write_text(render_page(data, "compare"), encoding="utf-8")
    page.goto(path.as_uri())
    page.wait_for_selector("html[data-ready]")
    assert "every common claim the same label" in page.locator(".examples").inner_text()
    assert "--gold" in page.locator(".verdict-line").inner_text()
