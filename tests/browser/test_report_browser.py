"""The report in a real browser: read, filter, correct, export, merge; and text that tries to act."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from report_samples import LAKE, MILL, C, V, claim, write_results
from typer.testing import CliRunner

from vista_local.cli import app
from vista_local.corrections import gold_conversations
from vista_local.labels import LABELS
from vista_local.output import read_results
from vista_local.schema import (
    ClaimResult,
    Conversation,
    ConversationResult,
    GivenClaim,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)

pytestmark = pytest.mark.browser

Open = Callable[..., Any]


def rows(page: Any) -> list[str]:
    return [x.strip().removesuffix("✓reviewed") for x in page.locator(".row-id").all_text_contents()]


def texts(page: Any) -> list[str]:
    return page.locator(".claim-text").all_text_contents()


def test_the_overview_shows_figures_and_charts(opened: Open) -> None:
    page = opened(MILL, LAKE)
    assert page.locator("h1").inner_text() == "Mills"
    assert page.locator(".stat.main dd").inner_text() == "71.4 %"
    counts = page.locator(".label-row .label-count").all_text_contents()
    assert counts == ["3", "1", "0", "1", "1", "1"], "the five labels and the unscored claim"
    assert page.locator("figure svg[role=img]").count() == 2
    assert "could not be labelled" in page.locator("#view .notice").first.inner_text()
    page.locator(".look").first.click()
    assert page.locator(".claim.selected .claim-text").inner_text() == "The mill is red."
    assert "t=1&k=1" in page.url


def test_gold_brings_calibration_and_the_matrix(opened: Open) -> None:
    page = opened(
        MILL, LAKE, gold={"mill": {1: (GivenClaim("The mill is red.", V), GivenClaim("The mill is old.", V))}}
    )
    assert "Reliability diagram" in page.locator("section:has(#gold-title) svg").get_attribute("aria-label")
    page.locator(".matrix td:not(.same) button").first.click()
    assert page.locator(".claim.wanted .claim-text").all_text_contents() == ["The mill is red."]
    assert "gold" in page.locator(".claim.wanted").inner_text()


def test_filters_and_orders(opened: Open) -> None:
    page = opened(MILL, LAKE)
    assert rows(page) == ["mill", "lake"], "the lowest score first"
    page.select_option("#sort", "high")
    assert rows(page) == ["lake", "mill"]
    page.click("button[aria-label='Only Contradicted']")
    assert rows(page) == ["mill"]
    page.click("#clear")
    page.fill("#search", "DEPTH")
    page.wait_for_selector(".row[aria-setsize='1']")
    assert rows(page) == ["lake"]
    page.fill("#search", "nowhere")
    page.wait_for_selector(".rows .empty")
    page.get_by_role("button", name="Clear the filters").click()
    page.fill("#p-high", "58")
    page.keyboard.press("Tab")
    assert rows(page) == ["lake"], "the least sure claim of mill has 60 %"
    page.fill("#p-high", "65")
    page.keyboard.press("Tab")
    assert rows(page) == ["lake", "mill"]


def test_a_conversation_shows_claims_evidence_and_memory(opened: Open) -> None:
    page = opened(MILL, LAKE, fragment="#c=mill&t=1&k=0")
    assert page.locator("mark.ev.on").inner_text().startswith("The mill is old.")
    assert page.locator("#claim-1-0 > .badge").inner_text().startswith("V")
    assert "93 %" in page.locator("#claim-1-0").inner_text()
    assert page.locator("#turn-1 .bubble").inner_text() == "It is old and red. The miller likes rain."
    memory = page.locator("#turn-3 .memory li").all_inner_texts()
    assert [m.split(".")[0] for m in memory] == ["The hill is high", "The mill is old", "The miller likes rain"]
    assert "background" in memory[0] and "turn 2" in memory[1] and "stated in turn 2" in memory[2]
    page.click("#claim-3-0 .claim-text")
    assert "Established in turn 2" in page.locator("#claim-3-0 .evidence").inner_text()
    assert page.locator("#turn-3 mark.on").inner_text().startswith("The mill is old.")
    assert page.url.endswith("#c=mill&t=3&k=0")
    text = page.locator("#turns").inner_text()
    for piece in (
        "unscored: too long",
        "The mill has 4 wings.",
        "stopped at a repeated claim",
        "2 older entries",
        "not scored",
    ):
        assert piece in text


def test_the_keyboard_reaches_everything(opened: Open) -> None:
    page = opened(MILL, LAKE)
    press = page.keyboard.press
    press("j")
    press("Enter")
    assert page.locator(".talk h1").inner_text() == "lake"
    press("p")
    page.wait_for_selector(".talk h1:text-is('mill')")
    press("j")
    press("j")
    assert page.locator(".claim.selected").get_attribute("id") == "claim-1-1"
    press("k")
    assert page.locator(".claim.selected").get_attribute("id") == "claim-1-0"
    press("2")
    assert page.locator("#claim-1-0 .label-word").inner_text() == "Contradicted"
    press("u")
    assert page.locator("#claim-1-0 .label-word").inner_text() == "Verified"
    press("f")
    assert "marked as fine" in page.locator("#turn-1 .turn-head").inner_text()
    press("?")
    assert page.locator("#help").is_visible()
    press("Escape")
    assert not page.locator("#help").is_visible()
    press("/")
    page.keyboard.type("lake")
    press("Enter")
    page.wait_for_selector(".talk h1:text-is('lake')")
    press("o")
    page.wait_for_selector(".overview")


def test_correct_export_merge_and_open_again(opened: Open, tmp_path: Path) -> None:
    page = opened(MILL, LAKE, fragment="#c=mill&t=1&k=0")
    press = page.keyboard.press
    press("e")
    page.fill(".editor textarea", "The mill is very old.")
    press("Control+Enter")
    press("j")
    press("3")
    press("j")
    press("s")
    page.fill(".editor textarea", "The miller likes rain.\nThe miller likes snow.")
    page.get_by_role("button", name="Save").click()
    page.click("#turn-1 .add")
    page.fill(".editor textarea", "The mill stands.")
    page.select_option(".editor select", "0")
    page.get_by_role("button", name="Save").click()
    expected = [
        "The mill is very old.",
        "The mill is red.",
        "The miller likes rain.",
        "The miller likes snow.",
        "The mill stands.",
    ]
    assert texts(page)[:5] == expected
    assert page.locator("#talk-figures .big").inner_text() == "71 %", "5 of 7 claims are safe"
    page.click("#claim-3-0 .claim-text")
    press("d")
    assert page.locator("#turn-3 .gone del").inner_text() == "The mill, as said, is old."
    assert page.locator(".claim.selected .claim-text").inner_text() == "The mill is loud.", "the next one is selected"
    press("5")
    page.goto(page.url.split("#")[0] + "#c=lake")
    page.wait_for_selector(".talk h1:text-is('lake')")
    page.click(".fine")
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert "3 reviewed turns" in page.locator("#export").inner_text(), "kept in the browser"
    with page.expect_download() as download:
        page.click("#export")
    corrections = tmp_path / "corrections.jsonl"
    download.value.save_as(corrections)
    out, merged = write_results(tmp_path / "out.jsonl"), tmp_path / "merged.jsonl"
    result = CliRunner().invoke(app, ["merge", str(out), str(corrections), "-o", str(merged)])
    assert result.exit_code == 0, result.output
    assert "labels 2, edits 1, splits 1, added 1, deleted 1" in " ".join(result.stderr.split())
    mill, lake = read_results(merged)
    assert [c.text for c in mill.turns[0].claims] == expected
    assert [c.label for c in mill.turns[1].claims] == [LABELS[4]]
    assert lake.turns[0].reviewed and lake.turns[0].claims == LAKE.turns[0].claims
    assert (
        [c.id for c in gold_conversations(corrections)]
        == [c.id for c in gold_conversations(merged)]
        == ["mill", "lake"]
    )
    assert gold_conversations(corrections) == gold_conversations(merged)
    page = opened(mill, lake, fragment="#c=mill&t=1&k=1", run={"id": "merged"})
    assert "model:" in page.locator("#claim-1-1").inner_text()
    assert "reviewed earlier" in page.locator("#turn-1 .turn-head").inner_text()


def with_claims(*claims: ClaimResult, name: str = "mill") -> ConversationResult:
    """MILL with other claims on its first turn."""
    return replace(MILL, id=name, turns=(replace(MILL.turns[0], claims=claims), *MILL.turns[1:]))


def test_corrections_of_one_corpus_never_appear_on_another(opened: Open) -> None:
    """Both have the name, the run and the number of claims in common; reports of files share one storage."""
    page = opened(MILL, fragment="#c=mill&t=1&k=1")
    page.keyboard.press("5")
    assert "1 reviewed turn" in page.locator("#export").inner_text()
    page = opened(with_claims(claim("The sea is wide.", V), claim("The sea is red.", C), claim("It rains.", V)))
    assert page.locator("#export").inner_text() == "Export corrections"
    page = opened(MILL)
    assert "1 reviewed turn" in page.locator("#export").inner_text(), "they wait for their own results"
    assert not page.locator("#left-out").is_visible()


def test_a_remembered_correction_that_does_not_fit_is_left_out_and_said(opened: Open) -> None:
    page = opened(MILL, LAKE, fragment="#c=mill&t=1&k=1")
    page.keyboard.press("5")
    page.goto(page.url.split("#")[0] + "#c=lake")
    page.wait_for_selector(".talk h1:text-is('lake')")
    page.click(".fine")
    old, red, rain = MILL.turns[0].claims
    page = opened(with_claims(old, replace(red, label=V), rain), LAKE, fragment="#c=mill")
    assert "1 reviewed turn" in page.locator("#export").inner_text(), "lake's is kept"
    assert page.locator("#claim-1-1 .label-word").inner_text() == "Verified"
    assert page.locator("#left-out").inner_text() == (
        "1 remembered correction did not fit these results and was left out."
    )


def test_undo_restores_and_nothing_is_exported(opened: Open) -> None:
    page = opened(MILL, fragment="#c=mill&t=1&k=1")
    page.keyboard.press("d")
    assert texts(page)[:2] == ["The mill is old.", "The miller likes rain."]
    page.get_by_role("button", name="Restore").click()
    assert texts(page)[:3] == ["The mill is old.", "The mill is red.", "The miller likes rain."]
    assert page.locator("#export").inner_text() == "Export corrections"
    page.keyboard.press("x")
    assert "Nothing is corrected yet" in page.locator(".toast").inner_text()
    page.locator("#turn-3 .fine").click()
    assert "every claim" in page.locator(".toast").inner_text(), "a turn with an unlabelled claim isn't fine"


def test_a_browser_that_keeps_nothing_says_so(opened: Open, page: Any) -> None:
    page.add_init_script("Object.defineProperty(window, 'localStorage', { get() { throw new Error('refused'); } });")
    opened(MILL, fragment="#c=mill&t=1&k=1")
    assert not page.locator("#not-kept").is_visible()
    page.keyboard.press("1")
    assert page.locator("#claim-1-1 .label-word").inner_text() == "Verified"
    assert page.locator("#not-kept").is_visible()


def test_dark_mode_follows_the_system_and_the_button(opened: Open, page: Any) -> None:
    def paper() -> str:
        return str(page.evaluate("getComputedStyle(document.body).backgroundColor"))

    opened(MILL)
    light = paper()
    page.emulate_media(color_scheme="dark")
    dark = paper()
    assert light != dark
    page.click("#theme")
    assert paper() == light, "light was asked for"
    page.click("#theme")
    page.emulate_media(color_scheme="light")
    assert paper() == dark, "dark was asked for"
    page.reload()
    page.wait_for_selector("html[data-ready]")
    assert paper() == dark, "and is remembered"


#: Texts whose contrast with the nearest painted background is under 4.5 (WCAG 2.2, 1.4.3), with the ratio.
CONTRAST = """() => {
  const parse = (c) => { const m = c.match(/[\\d.]+/g).map(Number); return m.length < 4 ? [...m, 1] : m; };
  const part = (v) => (v / 255 <= .03928 ? v / 255 / 12.92 : ((v / 255 + .055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => .2126 * part(r) + .7152 * part(g) + .0722 * part(b);
  const skipped = ".sr, :disabled, dialog, option, svg, .gone";
  const bad = [];
  const walker = document.createTreeWalker(document.getElementById("app"), NodeFilter.SHOW_TEXT);
  for (let node = walker.nextNode(); node; node = walker.nextNode()) {
    const element = node.parentElement;
    if (!node.data.trim() || element.closest(skipped) || !element.checkVisibility()) continue;
    let back = null;
    for (let e = element; e && !back; e = e.parentElement) {
      const c = getComputedStyle(e).backgroundColor;
      if (c.startsWith("rgb") && parse(c)[3] > .99) back = parse(c);
    }
    const both = [luminance(parse(getComputedStyle(element).color)), luminance(back || [255, 255, 255])];
    const ratio = (Math.max(...both) + .05) / (Math.min(...both) + .05);
    if (ratio < 4.5) bad.push(`${node.data.trim().slice(0, 40)}: ${ratio.toFixed(2)}`);
  }
  return bad;
}"""


@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_text_has_enough_contrast(opened: Open, page: Any, scheme: str) -> None:
    page.emulate_media(color_scheme=scheme)
    opened(MILL, LAKE, gold={"mill": {1: (GivenClaim("The mill is red.", V), GivenClaim("The mill is old.", V))}})
    assert page.evaluate(CONTRAST) == []
    page.goto(page.url.split("#")[0] + "#c=mill&t=1&k=1")
    page.wait_for_selector(".claim.selected")
    page.keyboard.press("3")
    assert page.evaluate(CONTRAST) == []


def test_every_control_has_a_name_and_colour_is_never_alone(opened: Open) -> None:
    page = opened(MILL, LAKE, fragment="#c=mill&t=1&k=1")
    nameless = page.evaluate(
        """() => [...document.querySelectorAll("button, input, select, a, [role]:not([role=status])")]
          .filter((e) => e.checkVisibility() && !e.getAttribute("aria-label") && !e.getAttribute("aria-labelledby"))
          .filter((e) => !e.textContent.trim()).map((e) => e.outerHTML)"""
    )
    assert nameless == []
    for badge in page.locator(".badge").all_text_contents():
        assert badge[0] in "VCLOA–?" and len(badge) >= 1


def test_on_paper_the_conversation_stands_alone(opened: Open, page: Any) -> None:
    opened(MILL, fragment="#c=mill")
    page.emulate_media(media="print")
    assert not page.locator(".side").is_visible() and not page.locator(".top").is_visible()
    assert page.locator("#turn-5").is_visible()
    assert page.pdf()[:5] == b"%PDF-"


def test_a_narrow_screen_shows_one_thing_at_a_time(opened: Open, page: Any) -> None:
    page.set_viewport_size({"width": 390, "height": 800})
    opened(MILL, LAKE)
    assert page.locator(".side").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390
    page.locator(".row").first.click()
    page.wait_for_selector(".talk")
    assert not page.locator(".side").is_visible()
    assert page.evaluate("document.documentElement.scrollWidth") <= 390


def test_empty_states(opened: Open) -> None:
    silent = ConversationResult(
        "hello",
        (TurnResult(1, TurnStatus.SCORED),),
        conversation=Conversation("hello", (Turn(Role.USER, "Hi"), Turn(Role.ASSISTANT, "Hello!", ()))),
    )
    failed = ConversationResult("broken", (), "out of memory")
    page = opened(silent, failed)
    assert page.locator(".stat.main dd").inner_text() == "–"
    assert "No turn has a claim." in page.locator(".overview").inner_text()
    page.goto(page.url.split("#")[0] + "#c=hello")
    page.wait_for_selector(".talk")
    assert "This turn makes no claim." in page.locator("#turn-1").inner_text()
    page.goto(page.url.split("#")[0] + "#c=broken")
    page.wait_for_selector(".notice.bad")
    assert "out of memory" in page.locator(".notice.bad").inner_text()
    page.goto(page.url.split("#")[0] + "#c=nobody")
    page.wait_for_selector(".overview")


def test_results_without_their_conversation(opened: Open) -> None:
    page = opened(replace(MILL, conversation=None), fragment="#c=mill&t=1&k=1")
    assert "--compact" in page.locator("#view .notice").inner_text()
    page.keyboard.press("1")
    with page.expect_download() as download:
        page.keyboard.press("x")
    line = json.loads(Path(download.value.path()).read_text(encoding="utf-8"))
    assert "input" not in line and line["turns"][0]["claims"][1]["label"] == "VERIFIED"


HOSTILE = (
    "</script><script>window.hacked = 1</script><img src=x onerror='window.hacked = 1'>"
    "<a href='javascript:window.hacked=1'>link</a> javascript:window.hacked=1 {{7*7}} ${7*7} <!-- "
    "\u202egnp.exe\u202c \u200f\u061c shalom שלום lone \ud83d half \x00\x1b[31m\r\n\ufeff e\u0301 👩‍👩‍👧 end"
)


def hostile(text: str) -> ConversationResult:
    said = (Turn(Role.USER, text), Turn(Role.ASSISTANT, text, (text,)))
    turn = TurnResult(1, TurnStatus.SCORED, (claim(text, V), claim("plain", V)), (text,), (text,), memory=((-1, 0),))
    return ConversationResult(text, (turn,), None, Conversation(text, said, (text,)))


def test_hostile_text_is_shown_as_text(opened: Open, tmp_path: Path) -> None:
    result = hostile(HOSTILE)
    page = opened(result, LAKE)
    page.fill("#search", "hacked")
    page.wait_for_selector(".row[aria-setsize='1']")
    page.keyboard.press("Enter")
    page.wait_for_selector("#claim-1-0")
    page.click("#claim-1-1 .claim-text")
    page.keyboard.press("2")
    assert page.evaluate("window.hacked") is None
    assert page.locator("#view img, #view a[href^='javascript'], #view script").count() == 0
    shown = page.locator("#turn-1 .bubble").inner_text()
    for piece in (
        "<script>window.hacked = 1</script>",
        "<img src=x",
        "javascript:window.hacked=1",
        "${7*7}",
        "👩‍👩‍👧",
        "שלום",
    ):
        assert piece in shown
    marks = page.locator("#turn-1 .bubble .unseen").all_text_contents()
    assert marks == ["U+202E", "U+202C", "U+200F", "U+061C", "U+D83D", "U+0000", "U+001B", "U+FEFF"]
    with page.expect_download() as download:
        page.keyboard.press("x")
    corrections = tmp_path / "corrections.jsonl"
    download.value.save_as(corrections)
    out, merged = write_results(tmp_path / "out.jsonl", result), tmp_path / "merged.jsonl"
    done = CliRunner().invoke(app, ["merge", str(out), str(corrections), "-o", str(merged)])
    assert done.exit_code == 0, done.output
    (back,) = read_results(merged)
    assert back.turns[0].claims[0].text == HOSTILE and back.turns[0].claims[1].label is LABELS[1]


def test_a_megabyte_of_text_is_opened_in_pieces(opened: Open) -> None:
    text = "All of this is one long sentence without an end " * 22_000
    page = opened(hostile(text[:1_050_000]), LAKE)
    page.locator(".row").first.click()
    page.wait_for_selector("#turn-1 .bubble .more")
    assert len(page.locator("#turn-1 .bubble").inner_text()) < 20_000
    page.locator("#turn-1 .bubble .more").click()
    assert len(page.locator("#turn-1 .bubble").inner_text()) > 200_000
    page.locator("#turn-1 .passage .more").click()
    assert len(page.locator("#turn-1 .passage").inner_text()) > 1_000_000


def test_ids_of_any_kind_have_an_address(opened: Open) -> None:
    odd = replace(LAKE, id="a/b?c=d&e#f %\n\ud83d é")
    page = opened(MILL, odd)
    page.locator(".row").nth(1).click()
    page.wait_for_selector(".talk")
    page.reload()
    page.wait_for_selector(".talk")
    assert page.locator(".talk h1").inner_text().startswith("a/b?c=d&e#f %")


def test_five_hundred_conversations_are_all_there_but_not_all_drawn(opened: Open) -> None:
    many = [replace(LAKE, id=f"lake {i}") for i in range(500)]
    page = opened(*many)
    assert page.locator(".list-status").inner_text() == "500 conversations"
    assert page.locator(".row").count() < 60
    page.evaluate("document.getElementById('rows').scrollTop = 1e9")
    page.wait_for_selector(".row-id:text-is('lake 499')")
