"""The claim-list parser against what models write, and the guards on what decompose makes up."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.claims import parse_claims, repeats_earlier_line, unsupported_details
from vista_local.prompts import render_claim_list

UNHURRIED = settings(max_examples=50, deadline=None)
TWO = ("Paris is big.", "Lyon is old.")


@pytest.mark.parametrize(
    "text",
    [
        "- Paris is big.\n- Lyon is old.",
        "* Paris is big.\n* Lyon is old.",
        "• Paris is big.\n• Lyon is old.",
        "– Paris is big.\n– Lyon is old.",
        "-Paris is big.\n-Lyon is old.",
        "  - Paris is big.\n\t- Lyon is old.  ",
        "1. Paris is big.\n2. Lyon is old.",
        "1) Paris is big.\n2) Lyon is old.",
        "(1) Paris is big.\n(2) Lyon is old.",
        "1: Paris is big.\n2: Lyon is old.",
        "1.\nParis is big.\n2.\nLyon is old.",
        "Paris is big.\nLyon is old.",
        "Paris is big.\r\nLyon is old.\r\n",
        "Here are the claims:\n\n- Paris is big.\n- Lyon is old.",
        "Sure! I found two\n- Paris is big.\n- Lyon is old.",
        "Claims:\nParis is big.\nLyon is old.",
        "```\n- Paris is big.\n- Lyon is old.\n```",
        "- Paris is big.\n\n\n- Lyon is old.",
        '- "Paris is big."\n- "Lyon is old."',
        "- Paris\n  is big.\n- Lyon is old.",
        "- Paris is big.\n- Lyon\nis\nold.",
        "- Paris is big.\n- Lyon is old.\nLet me know if you need more",
        "- Paris is big.\n- Lyon is old.\n\n(End of list)",
        "- Paris is big.\n-\n- None\n- Lyon is old.\n- ...",
        "- Paris   is\tbig.\n- Lyon is old.",
    ],
)
def test_forms_of_a_list(text: str) -> None:
    parsed = parse_claims(text)
    assert parsed.claims == TWO
    assert parsed.duplicates == 0
    assert parsed.unfinished is None


def test_numbering_beyond_ten_and_a_hundred() -> None:
    claims = [f"Town {n} has {n} gates." for n in range(1, 121)]
    assert parse_claims("\n".join(f"{n}. {c}" for n, c in enumerate(claims, 1))).claims == tuple(claims)


def test_a_claim_may_begin_with_a_number() -> None:
    assert parse_claims("- 1999 was warm.\n- 3.5 million people came.").claims == (
        "1999 was warm.",
        "3.5 million people came.",
    )


def test_a_remark_after_a_blank_line_is_not_part_of_a_claim_without_full_stop() -> None:
    assert parse_claims("- Paris is big\n\nI hope this helps").claims == ("Paris is big",)


def test_a_claim_between_two_quotations_keeps_its_quotes() -> None:
    claim = '"Hamlet" is by the author of "Macbeth"'
    assert parse_claims(f"- {claim}").claims == (claim,)


@pytest.mark.parametrize(
    "text",
    ["", " \n\n", "None", "None.", "- None", "none", "N/A", "No claims.", "There are no claims.", "```\n```", "-"],
)
def test_no_claims(text: str) -> None:
    assert parse_claims(text).claims == ()


def test_duplicates_are_dropped_and_counted() -> None:
    parsed = parse_claims("- Paris is big.\n- Lyon is old.\n- paris is  BIG\n- Paris is big.")
    assert parsed.claims == TWO
    assert parsed.duplicates == 2


@pytest.mark.parametrize(
    ("text", "claims", "unfinished"),
    [
        ("- Paris is big.\n- Lyon is", ("Paris is big.",), "Lyon is"),
        ("Paris is big.\nLyon is", ("Paris is big.",), "Lyon is"),
        ("- Paris is big.\n- Lyon\nis", ("Paris is big.",), "Lyon is"),
        ("- Paris is", (), "Paris is"),
        ("- Paris is big.\n-", ("Paris is big.",), None),
        ("1. Paris is big.\n2.", ("Paris is big.",), None),
        ("- Paris is big.\n", ("Paris is big.",), None),
        ("- Paris is big.\nNote that", ("Paris is big.",), "Note that"),
        ("", (), None),
    ],
)
def test_a_cut_answer_loses_its_last_line_only(text: str, claims: tuple[str, ...], unfinished: str | None) -> None:
    parsed = parse_claims(text, finished=False)
    assert parsed.claims == claims
    assert parsed.unfinished == unfinished


CLAIM = (
    st.lists(st.text(st.characters(categories=["L", "N"]), min_size=1, max_size=8), min_size=2, max_size=6)
    .map(" ".join)
    .map(lambda text: f"The {text} end")
)


@given(st.lists(CLAIM, max_size=8, unique_by=str.casefold))
@UNHURRIED
def test_rendered_claims_are_read_back(claims: list[str]) -> None:
    parsed = parse_claims(render_claim_list(claims))
    assert parsed.claims == tuple(claims)
    assert parsed.duplicates == 0


MESSY = st.text(st.sampled_from('-*•1.()": \n\r\tab`N') | st.characters(exclude_categories=["Cs"]), max_size=60)


@given(MESSY, st.booleans())
@UNHURRIED
def test_any_text_gives_clean_claims(text: str, finished: bool) -> None:
    parsed = parse_claims(text, finished)
    assert all(any(c.isalnum() or c == "_" for c in claim) for claim in parsed.claims)
    assert all(claim == " ".join(claim.split()) for claim in parsed.claims)
    assert len({c.rstrip(".").casefold() for c in parsed.claims}) == len(parsed.claims)
    assert parsed.unfinished is None or not finished


@pytest.mark.parametrize(
    ("text", "loop"),
    [
        ("- A is b.\n- C is d.\n- A is b.\n", True),
        ("- A is b.\n- C is d.\n- a is B\n", True),
        ("1. A is b.\n2. A is b.\n", True),
        ("- A is b.\n- C is d.\n- A is b.", False),  # the line may still grow
        ("- A is b.\n- A is b c.\n", False),
        ("- A is b.\n", False),
        ("", False),
    ],
)
def test_loops_are_seen_at_the_end_of_a_line(text: str, loop: bool) -> None:
    assert repeats_earlier_line(text) is loop


@pytest.mark.parametrize(
    ("claim", "sources", "missing"),
    [
        ("The tower was built in 1889.", ["It was built in 1889."], []),
        ("The tower was built in 1887.", ["It was built in 1889."], ["1887"]),
        ("Anna lives in Rome.", ["I, Anna, live in Paris."], ["Rome"]),
        ("Anna lives in Rome.", ["I live in Paris.", "Is Rome nice, Anna?"], []),
        ("The assistant knows Anna's dogs.", ["anna has a dog"], []),
        ("The dog has three legs.", ["It has 3 legs."], []),
        ("The dog has 3 legs.", ["It has three legs."], []),
        ("The town has 1,000 people.", ["There are 1000 people"], []),
        ("The film runs 90 minutes.", ["It runs ninety minutes."], []),
        ("The user asked Mr. Brown.", ["mr. brown was asked"], []),
        ("The Anglo-Saxon king died.", ["The Anglo king and the Saxon king"], []),
        ("Elle habite à côté d'une église.", ["Elle habite tout près."], []),
        ("他 住在 巴黎", ["巴黎很大"], []),
        ("", ["anything"], []),
    ],
)
def test_details_that_occur_in_neither_turn_nor_history(claim: str, sources: list[str], missing: list[str]) -> None:
    assert unsupported_details(claim, sources) == missing


@pytest.mark.parametrize(
    ("claim", "missing"),
    [
        ("Napoleon built the mill.", ["Napoleon"]),
        ("Napoleon was paid for the mill.", ["Napoleon"]),
        ("Napoleon never lived near the mill.", ["Napoleon"]),
        ("Napoleon Berg walked to the mill.", ["Napoleon"]),
        ("Napoleon’s mill is red.", ["Napoleon’s"]),
        ("'Napoleon' is the name of the mill.", ["Napoleon'"]),
        ("Napoleon and Anna had the mill built.", ["Napoleon"]),
        ("Charles was paid for the mill.", ["Charles"]),
        ("Anna built the mill.", []),
        ("Die Mill ist rot.", []),
        ("Karls Mühle war rot.", ["Mühle"]),  # in other languages the first word is left alone
        ("Mills were built in 1912.", []),
        ("Millers had the mill built.", []),
        ("Building the mill was hard.", []),
        ("Built in 1912, the mill is red.", []),
        ("Several mills had been built.", []),
        ("People built the mill.", []),
        ("It was built by Berg.", []),
        ("It's red.", []),
        ("There is a mill.", []),
        ("Someone else built the mill.", []),
        ("Visitors had to leave the mill.", []),  # a plural needs no name
        ("Swimming is forbidden near the mill.", []),
        ("Admission is free at the mill.", []),
        ("Newly painted doors were hung in the mill.", []),
        ("Fresh flour comes from the mill.", []),
        ("Cattle need the mill.", []),
        ("Twelve was the number of the mill.", []),
        ("The mill is red.", []),
        ("Assistant likes the mill.", []),
        ("User's mill is red.", []),
    ],
)
def test_a_name_at_the_start_of_a_claim_must_occur_and_an_ordinary_word_need_not(
    claim: str, missing: list[str]
) -> None:
    assert (
        unsupported_details(claim, ["She built it in 1912, and it is red.", "Who is anna berg, with the mill?"])
        == missing
    )


def test_quotes_around_a_word_do_not_hide_it() -> None:
    assert unsupported_details("The mill 'Bella' is red.", ["A red mill: 'Bella'!"]) == []


@given(MESSY)
@UNHURRIED
def test_a_claim_taken_word_for_word_has_no_unsupported_detail(text: str) -> None:
    assert unsupported_details(text, [text]) == []
