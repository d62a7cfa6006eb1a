"""The loop with a scripted backend that reads its prompts: what is judged by what, in which order.

The script verifies a claim that stands word for word in the reference or the known facts, calls it
CONTRADICTED if "not <claim>" stands there, and otherwise goes by the words love (out of scope) and
unsure (abstention). A reply's claims are separated by " | ".
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Literal

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from vista_local.backends.base import Generation
from vista_local.backends.scripted import ScriptedBackend
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.labels import LABELS, Label
from vista_local.pipeline import Pipeline
from vista_local.prompts import Prompt, render_claim_list
from vista_local.readers import parse_conversation
from vista_local.schema import Conversation, ConversationResult, TurnResult, TurnStatus
from vista_local.stages import ClassifyRequest

UNHURRIED = settings(max_examples=50, deadline=None)
V, C, L, S, A = LABELS
CERTAIN = {
    C: [0.97, 0.01, 0.01, 0.01],
    L: [0.01, 0.97, 0.01, 0.01],
    S: [0.01, 0.01, 0.97, 0.01],
    A: [0.01] * 3 + [0.97],
}


def part(prompt: Prompt, heading: str) -> str:
    """What stands under a heading of a prompt."""
    blocks = prompt.user.split("\n\n")
    return next((b.partition("\n")[2] for b in blocks if b.startswith(heading)), "")


def decompose(prompt: Prompt) -> str:
    return render_claim_list([c for c in part(prompt, "Reply:").split(" | ") if c.strip()])


def judge(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
    evidence = f"{part(prompt, 'Known facts:')}\n{part(prompt, 'Reference:')}"
    if stage == "verify":
        known = claim in evidence and f"not {claim}" not in evidence
        return [0.9, 0.1] if known else [0.2, 0.8]
    if f"not {claim}" in evidence:
        return CERTAIN[C]
    return CERTAIN[S if "love" in claim else A if "unsure" in claim else L]


class Recorder(ScriptedBackend):
    """Keeps what it was asked."""

    def __init__(self, decompose: Any = decompose, classify: Any = judge, **options: Any) -> None:
        super().__init__(decompose, classify, **options)
        self.replies: list[Prompt] = []
        self.batches: list[tuple[str, list[ClassifyRequest]]] = []
        self.cuts: dict[str, Literal["length", "repeat"]] = {}

    def generate(self, stage: str, prompts: Sequence[Prompt]) -> list[Generation]:
        self.replies.extend(prompts)
        answers = super().generate(stage, prompts)
        return [Generation(a.text, self.cuts.get(part(p, "Reply:"))) for a, p in zip(answers, prompts, strict=True)]

    def classify(self, stage: str, requests: Sequence[ClassifyRequest]) -> list[list[list[float]]]:
        self.batches.append((stage, list(requests)))
        return super().classify(stage, requests)

    def asked(self, stage: str, claim: str) -> list[Prompt]:
        """The prefixes under which a claim was put to a stage."""
        return [r.prefix for s, requests in self.batches if s == stage for r in requests if claim in r.branches]


def settings_of(unreferenced: str = "skip", budget: int = 512, **options: Any) -> ScoreConfig:
    return ScoreConfig.model_validate({"memory": {"unreferenced": unreferenced, "budget_tokens": budget}, **options})


def conversation(*turns: Any, id: str = "c", **fields: Any) -> Conversation:
    """Turns are the user's texts, or (assistant's text, reference), or whole objects."""
    native = [
        {"role": "user", "text": t}
        if isinstance(t, str)
        else {"role": "assistant", "text": t[0], "reference": t[1]}
        if isinstance(t, tuple)
        else t
        for t in turns
    ]
    return parse_conversation({"id": id, "turns": native, **fields})


def assistant(text: str, **fields: Any) -> dict[str, Any]:
    return {"role": "assistant", "text": text, **fields}


def score(
    *conversations: Conversation, backend: ScriptedBackend | None = None, config: ScoreConfig | None = None
) -> list[ConversationResult]:
    return Pipeline(backend or Recorder(), config).score_shard(conversations)


def turns_of(c: Conversation, backend: ScriptedBackend | None = None, config: ScoreConfig | None = None) -> Any:
    return score(c, backend=backend, config=config)[0].turns


def labels(turn: TurnResult) -> list[Label | None]:
    return [c.label for c in turn.claims]


# --- one turn


def test_a_turn_gets_its_claims_labels_and_probabilities() -> None:
    reply = "Paris is big | Lyon is old | people love Nice | the assistant is unsure | Metz is far"
    (turn,) = turns_of(conversation("Hi", (reply, "Paris is big. not Lyon is old.")))
    assert (turn.index, turn.status, turn.windows, turn.chunks) == (1, TurnStatus.SCORED, 1, 1)
    assert [c.text for c in turn.claims] == reply.split(" | ")
    assert labels(turn) == [V, C, S, A, L]
    assert turn.claims[0].probs == {"VERIFIED": 0.9, "UNVERIFIABLE": 0.1}
    assert turn.claims[1].probs == pytest.approx({V: 0.2, C: 0.776, L: 0.008, S: 0.008, A: 0.008})


def test_categorise_sees_unverifiable_claims_only() -> None:
    backend = Recorder()
    turns_of(conversation(("Paris is big | Lyon is old", "Paris is big."), ("Paris is big", "Paris is big.")), backend)
    assert [r.branches for stage, rs in backend.batches if stage == "categorise" for r in rs] == [("Lyon is old",)]


def test_full_probs_categorises_every_claim_and_changes_no_label() -> None:
    c = conversation(("Paris is big | people love Nice", "Paris is big."))
    backend = Recorder()
    (full,) = turns_of(c, backend, settings_of(full_probs=True))
    assert labels(full) == labels(turns_of(c)[0]) == [V, S]
    assert [r.branches for s, rs in backend.batches if s == "categorise" for r in rs] == [
        ("Paris is big", "people love Nice")
    ]
    assert full.claims[0].probs == pytest.approx({V: 0.9, C: 0.001, L: 0.097, S: 0.001, A: 0.001})
    assert all(math.isclose(sum(claim.probs.values()), 1, abs_tol=1e-5) for claim in full.claims)


@pytest.mark.parametrize("text", ["", " \n", "|"])
def test_a_turn_without_claims_is_scored(text: str) -> None:
    backend = Recorder(decompose=lambda prompt: "None")
    (turn,) = turns_of(conversation("Hi", (text, "Paris is big.")), backend)
    assert (turn.status, turn.claims, turn.windows) == (TurnStatus.SCORED, (), 0)
    assert turn.chunks == bool(text.strip())
    assert [r for _, requests in backend.batches for r in requests] == []


def test_no_turns_of_the_assistant() -> None:
    assert turns_of(conversation("Hi", "Anybody?")) == ()
    assert Pipeline(Recorder()).score_shard([]) == []


# --- history

TALK = ("one", ("two", None), "three", ("four", None), "five", ("six", None))


@pytest.mark.parametrize(
    ("context", "shown"),
    [
        ("none", []),
        ("recent", ["Assistant: four", "User: five"]),
        ("full", ["User: one", "Assistant: two", "User: three", "Assistant: four", "User: five"]),
    ],
)
def test_history_of_verify_and_categorise(context: str, shown: list[str]) -> None:
    backend = Recorder()
    turns_of(conversation(*TALK), backend, settings_of(context=context))
    for stage in ("verify", "categorise"):
        (prompt,) = backend.asked(stage, "six")
        assert part(prompt, "Earlier talk (no evidence):").splitlines() == shown


def test_recent_history_is_the_default_and_has_at_most_a_hundred_tokens() -> None:
    backend = Recorder()
    long = " ".join(f"w{i}" for i in range(150))
    turns_of(conversation("one", ("two", None), long, ("four", None)), backend)
    (prompt,) = backend.asked("verify", "four")
    assert part(prompt, "Earlier talk (no evidence):") == "User: " + " ".join(f"w{i}" for i in range(50, 150))


def test_full_history_is_not_cut() -> None:
    backend = Recorder()
    long = " ".join(f"w{i}" for i in range(150))
    turns_of(conversation(long, ("four", None)), backend, settings_of(context="full"))
    assert part(backend.asked("verify", "four")[0], "Earlier talk") == f"User: {long}"


@pytest.mark.parametrize("context", ["none", "recent", "full"])
def test_decompose_sees_history_under_every_context(context: str) -> None:
    backend = Recorder()
    turns_of(conversation(*TALK), backend, settings_of(context=context))
    shown = {part(p, "Reply:"): part(p, "Conversation:") for p in backend.replies}
    assert shown["six"].splitlines()[-2:] == ["Assistant: four", "User: five"]
    assert shown["two"] == "User: one"


# --- references

JUDGED = [{"reference": None}, {"reference": []}, {"reference": ""}]
UNREFERENCED: list[dict[str, Any]] = [{}, {"reference": "N/A"}, {"reference": " n/a "}]


@pytest.mark.parametrize("mode", ["skip", "trust", "verify"])
@pytest.mark.parametrize("reference", JUDGED)
def test_an_empty_reference_means_judged_by_the_store_alone(reference: dict[str, Any], mode: str) -> None:
    backend = Recorder()
    c = conversation(("Paris is big", "Paris is big."), "And?", assistant("Paris is big | Lyon is old", **reference))
    _, second = turns_of(c, backend, settings_of(mode))
    assert second.status is TurnStatus.SCORED
    assert labels(second) == [V, L]
    assert second.memory == ((0, 0),)
    assert part(backend.asked("verify", "Lyon is old")[0], "Reference:") == "(none)"


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_skipped(reference: dict[str, Any]) -> None:
    backend = Recorder()
    c = conversation(assistant("Lyon is old", **reference), "So?", ("Lyon is old", None))
    first, second = turns_of(c, backend)
    assert (first.status, first.claims, first.windows, first.chunks) == (TurnStatus.UNREFERENCED, (), 0, 0)
    assert [part(p, "Reply:") for p in backend.replies] == ["Lyon is old"]
    assert "User: So?" in backend.replies[0].user
    assert second.memory == ()
    assert labels(second) == [L]


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_trusted(reference: dict[str, Any]) -> None:
    backend = Recorder()
    c = conversation(assistant("Lyon is old | people love Nice", **reference), "So?", ("Lyon is old", None))
    first, second = turns_of(c, backend, settings_of("trust"))
    assert first.status is TurnStatus.UNREFERENCED
    assert [(k.text, k.label, k.probs, k.unscored) for k in first.claims] == [
        ("Lyon is old", None, {}, None),
        ("people love Nice", None, {}, None),
    ]
    assert second.memory == ((0, 0), (0, 1))
    assert labels(second) == [V]
    assert backend.asked("verify", "people love Nice") == []


@pytest.mark.parametrize("reference", UNREFERENCED)
def test_unreferenced_turns_are_verified_like_empty_references(reference: dict[str, Any]) -> None:
    c = conversation(assistant("Lyon is old", **reference), "So?", assistant("people love Nice", **reference))
    first, second = turns_of(c, None, settings_of("verify"))
    assert first.status is second.status is TurnStatus.SCORED
    assert (labels(first), labels(second)) == ([L], [S])


# --- memory


def test_claims_of_one_turn_never_support_each_other() -> None:
    def anything_known_suffices(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
        if stage == "categorise":
            return CERTAIN[L]
        return [0.9, 0.1] if part(prompt, "Known facts:") or claim in part(prompt, "Reference:") else [0.1, 0.9]

    reply = "Paris is big | Lyon is old"
    backend = Recorder(classify=anything_known_suffices)
    first, second = turns_of(conversation((reply, "Paris is big"), (reply, None)), backend)
    assert (labels(first), first.memory) == ([V, L], ())
    assert (labels(second), second.memory) == ([V, V], ((0, 0),))


@pytest.mark.parametrize("context", ["none", "recent", "full"])
@pytest.mark.parametrize("mode", ["skip", "trust", "verify"])
def test_user_statements_are_not_facts(context: str, mode: str) -> None:
    backend = Recorder()
    c = conversation("Paris is big", ("Paris is big", None), "Paris is big", ("Paris is big", None))
    for turn in turns_of(c, backend, settings_of(mode, context=context)):
        assert (labels(turn), turn.memory) == ([L], ())
    assert all("Known facts" not in p.user for p in backend.asked("verify", "Paris is big"))


def test_only_verified_and_out_of_scope_claims_are_remembered_and_told_apart() -> None:
    backend = Recorder()
    reply = "Paris is big | Lyon is old | people love Nice | the assistant is unsure | Metz is far"
    c = conversation((reply, "Paris is big. not Lyon is old."), "And?", ("Brest is wet", None))
    _, second = turns_of(c, backend)
    assert second.memory == ((0, 0), (0, 2))
    known = part(backend.asked("verify", "Brest is wet")[0], "Known facts:")
    assert known == "- Paris is big\n- (stated) people love Nice"


def test_the_store_grows_over_turns_without_duplicates() -> None:
    c = conversation(
        ("Paris is big", "Paris is big"), ("Paris is big | Lyon is old", "Lyon is old"), ("Lyon is old", None)
    )
    *_, third = turns_of(c)
    assert third.memory == ((0, 0), (1, 1))
    assert labels(third) == [V]


def test_background_facts_support_from_the_first_turn_on() -> None:
    (turn,) = turns_of(conversation(("Paris is big", None), background=["Paris is big"]))
    assert (labels(turn), turn.memory) == ([V], ((-1, 0),))


def test_conversations_of_a_shard_share_no_memory() -> None:
    known = conversation(("Paris is big", "Paris is big"), ("Paris is big", None), id="a")
    other = conversation(("Lyon is old", "Lyon is old"), ("Paris is big", None), id="b")
    first, second = score(known, other)
    assert labels(first.turns[1]) == [V]
    assert labels(second.turns[1]) == [L]


def test_past_the_budget_the_best_entries_are_shown_and_the_rest_counted() -> None:
    facts = [f"Town{i} has {i} gates" for i in range(8)]  # four words and three for the line
    c = conversation((" | ".join(facts), ". ".join(facts)), ("Town2 has 2 gates", None))
    _, turn = turns_of(c, None, settings_of(budget=21))
    assert turn.memory == ((0, 2), (0, 6), (0, 7))
    assert turn.omitted_memory == 5
    assert labels(turn) == [V]
    _, unlimited = turns_of(c)
    assert (len(unlimited.memory), unlimited.omitted_memory) == (8, 0)


# --- windows and chunks


def by_reference(verify: dict[str, float], categorise: dict[str, list[float]]) -> Any:
    """Probabilities by the word that a window holds."""

    def classify(stage: str, prompt: Prompt, claim: str) -> Sequence[float]:
        window = part(prompt, "Reference:")
        if stage == "verify":
            p = max((p for word, p in verify.items() if word in window), default=0.1)
            return [p, 1 - p]
        return next((q for word, q in categorise.items() if word in window), CERTAIN[L])

    return classify


LONG = [
    "alpha stands here now. filler fills some room. beta stands here now. filler takes more room. gamma ends it all."
]


def windowed(verify: dict[str, float], categorise: dict[str, list[float]]) -> TurnResult:
    backend = Recorder(classify=by_reference(verify, categorise), max_reference_tokens=5)
    (turn,) = turns_of(conversation(("Paris is big", LONG)), backend)
    assert turn.windows == 5
    return turn


@pytest.mark.parametrize("word", ["alpha", "beta", "gamma"])
def test_support_in_one_window_suffices(word: str) -> None:
    turn = windowed({word: 0.7}, {})
    assert labels(turn) == [V]
    assert turn.claims[0].probs == {"VERIFIED": 0.7, "UNVERIFIABLE": 0.3}


@pytest.mark.parametrize(
    ("categorise", "label"),
    [
        ({"beta": [0.61, 0.39, 0, 0]}, C),
        ({"beta": [0.59, 0.41, 0, 0]}, L),
        ({word: [0.59, 0, 0.41, 0] for word in ("alpha", "beta", "gamma", "filler")}, S),
    ],
)
def test_contradiction_needs_one_clear_window(categorise: dict[str, list[float]], label: Label) -> None:
    turn = windowed({}, categorise)
    assert labels(turn) == [label]
    assert (turn.claims[0].probs[C] > 0) == (label is C)


def test_instructions_store_and_history_repeat_in_every_window() -> None:
    backend = Recorder(max_reference_tokens=5)
    turns_of(conversation(("Lyon is old", "Lyon is old"), "And?", ("Paris is big", LONG)), backend)
    prompts = backend.asked("verify", "Paris is big")
    assert len(prompts) == 5
    assert {(p.system, part(p, "Known facts:"), part(p, "Earlier talk").splitlines()[-1]) for p in prompts} == {
        (prompts[0].system, "- Lyon is old", "User: And?")
    }


def test_windows_of_several_turns_are_not_mixed_up() -> None:
    backend = Recorder(max_reference_tokens=5)
    a = conversation(("Paris is big | Metz is far", ["Nice is warm today. Paris is big. Brest is wet often."]), id="a")
    b = conversation(("Lyon is old | Paris is big", ["Nice is warm today. Brest is wet often. Lyon is old."]), id="b")
    first, second = score(a, b, backend=backend)
    assert labels(first.turns[0]) == [V, L]
    assert labels(second.turns[0]) == [V, L]


def test_a_long_turn_is_decomposed_in_chunks_with_the_earlier_ones_as_history() -> None:
    backend = Recorder(chunk_tokens=5)
    reply = "Paris is big. Lyon is old. Nice is warm. Paris is big."
    (turn,) = turns_of(conversation("Tell me", (reply, "Paris is big.")), backend)
    assert [part(p, "Reply:") for p in backend.replies] == [
        "Paris is big.", "Lyon is old.", "Nice is warm.", "Paris is big.",
    ]  # fmt: skip
    assert part(backend.replies[0], "Conversation:") == "User: Tell me"
    assert part(backend.replies[2], "Conversation:").splitlines() == [
        "User: Tell me",
        "Assistant: Paris is big.",
        "Assistant: Lyon is old.",
    ]
    assert turn.chunks == 4
    assert [c.text for c in turn.claims] == ["Paris is big.", "Lyon is old.", "Nice is warm."]


@given(st.lists(st.integers(1, 30), min_size=1, max_size=8), st.integers(4, 20), st.integers(4, 20))
@UNHURRIED
def test_every_word_of_turn_and_reference_reaches_the_model(lengths: list[int], chunk: int, window: int) -> None:
    sentences = [" ".join(f"w{s}x{i}" for i in range(n)) + "." for s, n in enumerate(lengths)]
    text = " ".join(sentences)
    backend = Recorder(decompose=lambda p: "- a claim", chunk_tokens=chunk, max_reference_tokens=window)
    (turn,) = turns_of(conversation((text, text)), backend)
    replies = [part(p, "Reply:") for p in backend.replies]
    references = [part(p, "Reference:") for p in backend.asked("verify", "a claim")]
    assert [w for r in replies for w in r.split()] == text.split()
    assert set(" ".join(references).split()) == set(text.split())
    assert max(len(r.split()) for r in replies) <= chunk
    assert max(len(r.split()) for r in references) <= window
    assert (turn.chunks, turn.windows) == (len(replies), len(references))


# --- order


def test_turn_t_of_every_conversation_is_labelled_before_turn_t_plus_one() -> None:
    shard = [
        conversation(*[(f"claim {name} {t}", None) for t in range(length)], id=name)
        for name, length in (("a", 3), ("b", 1), ("c", 2))
    ]
    backend = Recorder()
    results = score(*shard, backend=backend)
    assert backend.calls[0] == ("decompose", 6)
    assert [s for s, _ in backend.calls].count("decompose") == 1
    assert [[r.branches[0] for r in rs] for stage, rs in backend.batches if stage == "verify"] == [
        ["claim a 0", "claim b 0", "claim c 0"],
        ["claim a 1", "claim c 1"],
        ["claim a 2"],
    ]
    assert [r.id for r in results] == ["a", "b", "c"]
    assert [[t.claims[0].text for t in r.turns] for r in results] == [
        ["claim a 0", "claim a 1", "claim a 2"],
        ["claim b 0"],
        ["claim c 0", "claim c 1"],
    ]


FACTS = ["Paris is big", "Lyon is old", "people love Nice", "the assistant is unsure"]
TURN = st.fixed_dictionaries(
    {"role": st.just("assistant"), "text": st.lists(st.sampled_from(FACTS), max_size=4).map(" | ".join)},
    optional={"reference": st.none() | st.sampled_from([*FACTS, "not Lyon is old", "N/A"])},
)
TALKS = st.lists(st.lists(TURN | st.sampled_from(FACTS), min_size=1, max_size=4), min_size=1, max_size=4)


@given(TALKS, st.sampled_from(["skip", "trust", "verify"]), st.sampled_from(["none", "recent", "full"]))
@UNHURRIED
def test_a_conversation_is_scored_the_same_in_any_company(talks: list[list[Any]], mode: str, context: str) -> None:
    conversations = [conversation(*talk, id=str(n)) for n, talk in enumerate(talks)]
    config = settings_of(mode, context=context)
    assert score(*conversations, config=config) == [score(c, config=config)[0] for c in conversations]


def test_progress_counts_turns_and_claims() -> None:
    seen: list[tuple[int, int]] = []
    shard = [conversation(("x | y", None), ("z", None), id="a"), conversation(("u", None), id="b")]
    Pipeline(Recorder(), on_progress=lambda turns, claims: seen.append((turns, claims))).score_shard(shard)
    assert seen == [(2, 3), (1, 1)]


# --- given claims

GIVEN = [{"claim": "Lyon is old", "label": "VERIFIED"}, {"claim": "Paris is big", "label": "CONTRADICTED"}]


def test_given_claims_are_labelled_in_order_whatever_labels_they_carry() -> None:
    backend = Recorder()
    c = conversation("Hi", assistant("Ignored text", reference="Paris is big", claims=GIVEN))
    (turn,) = turns_of(c, backend, settings_of(given_claims=True))
    assert [(k.text, k.label) for k in turn.claims] == [("Lyon is old", L), ("Paris is big", V)]
    assert backend.replies == []
    assert turn.chunks == 0


def test_given_claims_are_kept_as_they_are() -> None:
    c = conversation(assistant("x", reference=None, claims=["Rome in 1999", "Rome in 1999"]))
    (turn,) = turns_of(c, None, settings_of(given_claims=True))
    assert [k.text for k in turn.claims] == ["Rome in 1999", "Rome in 1999"]
    assert turn.unsupported_extraction == ()


def test_without_given_claims_the_inputs_claims_are_not_read() -> None:
    (turn,) = turns_of(conversation(assistant("Metz is far", reference=None, claims=GIVEN)))
    assert [k.text for k in turn.claims] == ["Metz is far"]


def test_a_turn_without_claims_key_is_left_alone_and_an_empty_list_is_a_turn_without_claims() -> None:
    c = conversation(
        assistant("Paris is big", reference="Paris is big"),
        assistant("Hello", reference="Paris is big", claims=[]),
        assistant("x", reference=None, claims=["Paris is big"]),
    )
    backend = Recorder()
    empty, last = turns_of(c, backend, settings_of(given_claims=True))
    assert (empty.index, empty.status, empty.claims) == (1, TurnStatus.SCORED, ())
    assert (last.index, labels(last), last.memory) == (2, [L], ())
    assert "Assistant: Paris is big" in backend.asked("verify", "Paris is big")[0].user


def test_the_store_holds_predicted_labels_of_given_claims() -> None:
    c = conversation(
        assistant("x", reference="Paris is big", claims=GIVEN), assistant("y", reference=None, claims=["Metz is far"])
    )
    assert turns_of(c, None, settings_of(given_claims=True))[1].memory == ((0, 1),)


def test_oracle_memory_holds_the_inputs_labels_and_leaves_predictions_alone() -> None:
    c = conversation(
        assistant("x", reference="Paris is big", claims=GIVEN), assistant("y", reference=None, claims=[GIVEN[0]])
    )
    first, second = turns_of(c, None, settings_of(given_claims=True, oracle_memory=True))
    assert labels(first) == [L, V]
    assert (second.memory, labels(second)) == (((0, 0),), [V])


def test_oracle_memory_needs_given_claims_with_labels() -> None:
    with pytest.raises(VistaError, match="given_claims"):
        Pipeline(Recorder(), settings_of(oracle_memory=True))
    c = conversation(assistant("x", reference="Paris", claims=["Paris is big"]), id="talk 7")
    with pytest.raises(InputError, match=r"'talk 7', turn 0: .*'Paris is big' has none"):
        turns_of(c, None, settings_of(given_claims=True, oracle_memory=True))


def test_given_claims_of_unreferenced_turns_follow_the_option() -> None:
    c = conversation(assistant("x", claims=["Lyon is old"]), assistant("y", reference=None, claims=["Lyon is old"]))
    for mode, stored in (("skip", ()), ("trust", ((0, 0),))):
        first, second = turns_of(c, None, settings_of(mode, given_claims=True))
        assert (first.status, labels(first)) == (TurnStatus.UNREFERENCED, [None])
        assert second.memory == stored


# --- guards on decomposition


def test_details_made_up_by_decompose_are_kept_apart() -> None:
    answer = "- Paris is big.\n- Paris has 900 gates.\n- The mayor is Anna Berg.\n- Paris lies in France."
    backend = Recorder(decompose=lambda prompt: answer)
    c = conversation("Is it in France?", ("Yes. Paris is big.", answer), "And?", ("Paris.", None))
    first, second = turns_of(c, backend)
    assert [k.text for k in first.claims] == ["Paris is big.", "Paris lies in France."]
    assert first.unsupported_extraction == ("Paris has 900 gates.", "The mayor is Anna Berg.")
    assert backend.asked("verify", "Paris has 900 gates.") == []
    assert second.memory == ((1, 0), (1, 1))


def test_a_repeated_claim_and_an_unfinished_last_line_are_reported() -> None:
    backend = Recorder(decompose=lambda prompt: {"Loop": "- it is\n- it was\n- it is\n", "Long": "- it is\n- it w"}.get(
        part(prompt, "Reply:"), "- it is\n"
    ))  # fmt: skip
    backend.cuts = {"Loop": "repeat", "Long": "length", "Just": "length"}
    loop, long, just, fine = turns_of(
        conversation(("Loop", None), ("Long", None), ("Just", None), ("Fine", None)), backend
    )
    assert [c.text for c in loop.claims] == ["it is", "it was"]
    assert loop.notes == ("decompose: stopped at a repeated claim",)
    assert [c.text for c in long.claims] == ["it is"]
    assert long.notes == ("decompose: cut at the length limit; unfinished claim: it w",)
    assert [c.text for c in just.claims] == ["it is"]
    assert just.notes == ("decompose: cut at the length limit",)
    assert fine.notes == ()
