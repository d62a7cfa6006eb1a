"""A scored conversation on a terminal: claims under their turns, letter and colour by label, evidence."""

from __future__ import annotations

from rich.text import Text

from vista_local.labels import Label
from vista_local.schema import ClaimResult, Conversation, ConversationResult, Evidence, Role, TurnResult, TurnStatus
from vista_local.scoring import score_conversation
from vista_local.text import split_sentences

#: Colours beside the letters; never the only sign.
STYLE = {
    Label.VERIFIED: "green",
    Label.CONTRADICTED: "bold red",
    Label.LACKING_EVIDENCE: "yellow",
    Label.OUT_OF_SCOPE: "cyan",
    Label.ABSTENTION: "blue",
}


def render(result: ConversationResult) -> Text:
    """The conversation as styled text; without its input (`--compact`) the claims alone.

    Control characters of the text under test are shown as escapes, so that it can't write to the
    terminal by itself.
    """
    text = Text()
    score = score_conversation(result)
    text.append(f"{printable(result.id)}  VISTA score {ratio(score.vista_score)}\n", style="bold")
    if result.error is not None:
        text.append(f"not scored: {printable(result.error)}\n", style="bold red")
    turns = {t.index: t for t in result.turns}
    if result.conversation is None:
        for turn in result.turns:
            text.append(f"turn {turn.index}\n", style="bold")
            _add_turn(text, turn, result)
        return text
    for index, said in enumerate(result.conversation.turns):
        speaker = "User" if said.role is Role.USER else "Assistant"
        text.append(f"\n{speaker}: ", style="bold")
        text.append(printable(said.text) + "\n")
        if index in turns:
            _add_turn(text, turns[index], result)
    return text


def _add_turn(text: Text, turn: TurnResult, result: ConversationResult) -> None:
    if turn.status is TurnStatus.UNREFERENCED:
        text.append("   (unreferenced: not scored)\n", style="dim")
    if turn.unscored is not None:
        text.append(f"   (unscored: {printable(turn.unscored)})\n", style="bold red")
    for claim in turn.claims:
        _add_claim(text, claim, turn, result)
    for extracted in turn.unsupported_extraction:
        text.append(f"   ?  {printable(extracted)}  (not in the turn: kept apart)\n", style="dim")
    for note in turn.notes:
        text.append(f"      note: {printable(note)}\n", style="dim")


def _add_claim(text: Text, claim: ClaimResult, turn: TurnResult, result: ConversationResult) -> None:
    if claim.label is None:
        reason = claim.unscored or "not labelled"
        text.append(f"   -  {printable(claim.text)}  ({printable(reason)})\n", style="dim")
        return
    share = claim.probs.get(claim.label.value)
    sure = "" if share is None else f"  {100 * share:.0f} %"
    text.append(f"   {claim.label.letter}  {printable(claim.text)}", style=STYLE[claim.label])
    text.append(f"  {claim.label.value}{sure}\n", style="dim")
    for piece in claim.evidence[:1]:
        text.append(f"      {_evidence(piece, turn, result)}\n", style="dim")


def _evidence(piece: Evidence, turn: TurnResult, result: ConversationResult) -> str:
    if piece.source == "reference":
        return (
            f"reference, sentence {piece.sentence}{_quoted(_sentence(result.conversation, turn.index, piece.sentence))}"
        )
    if piece.source == "background":
        known = result.conversation.background if result.conversation else ()
        fact = known[piece.claim] if piece.claim is not None and piece.claim < len(known) else None
        return f"background fact {piece.claim}{_quoted(fact)}"
    kind = "said, not verified, in" if piece.stated else "established in"
    claims = next((t.claims for t in result.turns if t.index == piece.turn), ())
    earlier = claims[piece.claim].text if piece.claim is not None and piece.claim < len(claims) else None
    return f"{kind} turn {piece.turn}, claim {piece.claim}{_quoted(earlier)}"


def _sentence(conversation: Conversation | None, turn: int, number: int | None) -> str | None:
    if conversation is None or number is None:
        return None
    sentences = [s for passage in conversation.turns[turn].reference or () for s in split_sentences(passage)]
    return sentences[number] if number < len(sentences) else None


def _quoted(text: str | None) -> str:
    return "" if text is None else f": {printable(text)}"


def ratio(value: float | None) -> str:
    """A ratio in per cent, "-" where it has no value."""
    return "-" if value is None else f"{100 * value:.1f} %"


def printable(text: str) -> str:
    """Escapes instead of control and direction characters, line breaks and tabs apart."""
    return "".join(c if c in "\n\t" or c.isprintable() or c == "\u00a0" else f"\\u{ord(c):04x}" for c in text)
