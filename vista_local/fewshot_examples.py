"""Worked examples of the prompted pipeline: all invented, places and people included.

Names that exist nowhere keep a model from answering out of its own knowledge. What each example
shows is in `shows`; it is documentation and never reaches a model. A change here changes what a
teacher sees: raise `FEWSHOT_VERSION` in `vista_local.fewshot`.
"""

from __future__ import annotations

from dataclasses import dataclass

from vista_local.labels import UNVERIFIABLE, Label
from vista_local.prompts import StoreLine, Utterance
from vista_local.schema import Role


@dataclass(frozen=True)
class DecomposeExample:
    """A reply with the claims that it makes."""

    shows: str
    history: tuple[Utterance, ...]
    reply: str
    claims: tuple[str, ...]


@dataclass(frozen=True)
class EvidenceExample:
    """A claim with its evidence, and the word to answer with (verify's two, or categorise's four)."""

    shows: str
    history: tuple[Utterance, ...]
    store: tuple[StoreLine, ...]
    reference: str
    claim: str
    answer: str


def _user(text: str) -> Utterance:
    return Utterance(Role.USER, text)


def _assistant(text: str) -> Utterance:
    return Utterance(Role.ASSISTANT, text)


DECOMPOSE_EXAMPLES: tuple[DecomposeExample, ...] = (
    DecomposeExample(
        shows="presuppositions: of a surprise (with the gap in knowledge) and of a question",
        history=(_user("We drove out to Tarnhollow. Pity that its glass museum opens on Sundays and no other day."),),
        reply=(
            "I had no idea that the museum is shut six days a week! "
            "Did you get to see the furnace that Odile Marsh built there in 1911?"
        ),
        claims=(
            "The glass museum in Tarnhollow is shut six days a week.",
            "The assistant did not know that the glass museum in Tarnhollow is shut six days a week.",
            "Odile Marsh built a furnace at the glass museum in Tarnhollow.",
            "Odile Marsh built the furnace at the glass museum in Tarnhollow in 1911.",
        ),
    ),
    DecomposeExample(
        shows="coreference and ellipsis: a bare yes, pronouns, one idea a line",
        history=(_user("Was it Tomas Verrell who wrote the opera The Salt Road?"),),
        reply="Yes, and he conducted its premiere himself, in Leiden in 1974. His sister sang the title role.",
        claims=(
            "Tomas Verrell wrote the opera The Salt Road.",
            "Tomas Verrell conducted the premiere of The Salt Road.",
            "The premiere of The Salt Road was in Leiden.",
            "The premiere of The Salt Road was in 1974.",
            "Tomas Verrell's sister sang the title role of The Salt Road.",
        ),
    ),
    DecomposeExample(
        shows="personal statements: habit, taste, opinion, recommendation",
        history=(_user("Do you ever cook with saffron?"),),
        reply=(
            "I do, mostly in rice. No spice is dearer to me, though I find the price absurd. "
            "You should try it on pears!"
        ),
        claims=(
            "The assistant cooks with saffron.",
            "The assistant uses saffron mostly in rice.",
            "Saffron is the assistant's favourite spice.",
            "The assistant finds the price of saffron absurd.",
            "The assistant recommends trying saffron on pears.",
        ),
    ),
    DecomposeExample(
        shows="abstention beside an answer",
        history=(_user("How deep is Lake Imber? And who was the first to dive to its bottom?"),),
        reply=(
            "It goes down to 212 metres close to the northern shore. "
            "As for the first diver, I'm afraid I can't tell you."
        ),
        claims=(
            "Lake Imber is 212 metres deep.",
            "The deepest part of Lake Imber is close to the northern shore.",
            "The assistant cannot say who was the first to dive to the bottom of Lake Imber.",
        ),
    ),
    DecomposeExample(
        shows="an empty list: courtesy and an open question",
        history=(_user("Great, with that I can finish the leaflet."),),
        reply="Glad to hear it! Shall we go through anything else?",
        claims=(),
    ),
    DecomposeExample(
        shows="a list, a relative clause, a person without a name, and an odd statement kept as it is",
        history=(
            _user("Who painted the mural in the station hall?"),
            _assistant("A schoolteacher from the next village."),
            _user("did she make anything else?"),
        ),
        reply=(
            "posters, stage sets and two short films, one of which, Harbour Light, won a prize in Ostrava. "
            "it was the first silent film with a spoken prologue"
        ),
        claims=(
            "The schoolteacher made posters.",
            "The schoolteacher made stage sets.",
            "The schoolteacher made two short films.",
            "Harbour Light is one of the schoolteacher's short films.",
            "Harbour Light won a prize in Ostrava.",
            "Harbour Light was the first silent film with a spoken prologue.",
        ),
    ),
)


_YES, _NO = Label.VERIFIED.value, UNVERIFIABLE

VERIFY_EXAMPLES: tuple[EvidenceExample, ...] = (
    EvidenceExample(
        shows="support by one step; the talk says which lighthouse the reference means",
        history=(_user("What became of the Dunmore Light?"),),
        store=(),
        reference=(
            "Ewan Pryde, the last person to keep the lighthouse, left in 1969, when an automatic lamp was fitted. "
            "The beam carries 22 nautical miles."
        ),
        claim="The Dunmore Light has had no keeper since 1969.",
        answer=_YES,
    ),
    EvidenceExample(
        shows="near miss: strength (one of the largest is not the largest)",
        history=(),
        store=(),
        reference=(
            "Some 300 pairs of storm petrels breed on Skerra, which makes it one of the largest colonies on this coast."
        ),
        claim="Skerra has the largest colony of storm petrels on this coast.",
        answer=_NO,
    ),
    EvidenceExample(
        shows="support from memory, beside a reference that is silent",
        history=(_assistant("Later she turned to furniture."), _user("And how did she learn to carve stone?")),
        store=(StoreLine("Mirela Oduya was born in Split."), StoreLine("Mirela Oduya trained as a stonemason.")),
        reference="Oduya's chairs were shown in Trieste in 2003. She has taught drawing since.",
        claim="Mirela Oduya learned the trade of a stonemason.",
        answer=_YES,
    ),
    EvidenceExample(
        shows="history is no evidence: only the user said so",
        history=(_user("Our guide counted 21 arches on the Corran Viaduct. Is that right?"),),
        store=(StoreLine("The Corran Viaduct is made of brick."),),
        reference="The Corran Viaduct takes a single track across the Lyne valley. Trains have crossed it since 1876.",
        claim="The Corran Viaduct has 21 arches.",
        answer=_NO,
    ),
    EvidenceExample(
        shows="a personal statement that follows from an earlier one",
        history=(_user("Aren't you away from home a lot?"),),
        store=(StoreLine("The assistant lives with two greyhounds.", stated=True),),
        reference="",
        claim="The assistant has dogs.",
        answer=_YES,
    ),
    EvidenceExample(
        shows="somebody else's opinion in the reference is no support for the assistant's own",
        history=(),
        store=(),
        reference="Visitors have called the Lantern Row Market charming. It is held on Fridays.",
        claim="The assistant finds the Lantern Row Market charming.",
        answer=_NO,
    ),
)


CATEGORISE_EXAMPLES: tuple[EvidenceExample, ...] = (
    EvidenceExample(
        shows="swapped entity in a role with a single holder",
        history=(_user("I saw Winter Ferry last night. Who made it?"),),
        store=(),
        reference="Winter Ferry, from a script by Paul Strandmoe, was directed by Ilse Brandt and came out in 1983.",
        claim="Winter Ferry was directed by Karin Holt.",
        answer=Label.CONTRADICTED.value,
    ),
    EvidenceExample(
        shows="swapped entity in a role that several can hold",
        history=(_user("Who is in Winter Ferry?"),),
        store=(StoreLine("Winter Ferry was directed by Ilse Brandt."),),
        reference="In Winter Ferry, Ana Sjolund plays the captain of a ship that is stuck in the ice.",
        claim="Karin Holt plays in Winter Ferry.",
        answer=Label.LACKING_EVIDENCE.value,
    ),
    EvidenceExample(
        shows="near miss: a date that memory refutes",
        history=(),
        store=(
            StoreLine("The clock tower of Orsova Mill was finished in 1852."),
            StoreLine("The clock tower of Orsova Mill is well worth the climb.", stated=True),
        ),
        reference="",
        claim="The clock tower of Orsova Mill was finished in 1825.",
        answer=Label.CONTRADICTED.value,
    ),
    EvidenceExample(
        shows="recommendation and taste",
        history=(_user("Anything to do near Penhallow?"),),
        store=(),
        reference="The cliff path at Penhallow is eleven kilometres long and passes two disused tin mines.",
        claim="The cliff path at Penhallow is a wonderful walk.",
        answer=Label.OUT_OF_SCOPE.value,
    ),
    EvidenceExample(
        shows="personal experience, which no reference could settle",
        history=(_user("You seem to know a lot about wine."),),
        store=(StoreLine("Brenner grapes are picked in October."),),
        reference="Brenner is a white grape that ripens late. It is grown on south-facing slopes.",
        claim="The assistant picked grapes every autumn as a student.",
        answer=Label.OUT_OF_SCOPE.value,
    ),
    EvidenceExample(
        shows="abstention, although the reference has the answer",
        history=(_user("How many locks are there on the Ellern Canal?"),),
        store=(),
        reference="Between its two basins the Ellern Canal climbs 41 metres by way of 17 locks.",
        claim="The assistant does not know how many locks the Ellern Canal has.",
        answer=Label.ABSTENTION.value,
    ),
    EvidenceExample(
        shows="declining to answer",
        history=(_user("Which of the two builders in our village should I sue?"),),
        store=(),
        reference="",
        claim="The assistant cannot advise the user on whom to sue.",
        answer=Label.ABSTENTION.value,
    ),
    EvidenceExample(
        shows="a general description is a factual assertion, and the user's word is no evidence for it",
        history=(_user("Everybody I know has Oswick cheese in the fridge."),),
        store=(StoreLine("Oswick is a goat's cheese."),),
        reference="Oswick is washed in cider twice a week and matures for nine weeks.",
        claim="Oswick is popular all over the country.",
        answer=Label.LACKING_EVIDENCE.value,
    ),
)
