"""Results in a notebook: a readable view of a conversation, and tables with one row a claim.

pandas and datasets are optional (extra `notebook`) and imported when a table is asked for.
"""

from __future__ import annotations

import html
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, overload

from vista_local.errors import MissingExtraError
from vista_local.labels import LABELS, Label
from vista_local.output import read_results
from vista_local.schema import ClaimResult, ConversationResult, Role, TurnResult, TurnStatus
from vista_local.scoring import Summary, score_conversation
from vista_local.show import printable, ratio
from vista_local.text import counted

if TYPE_CHECKING:
    import pandas
    from datasets import Dataset

#: Mid tones that stand out on light and on dark pages; the letter in them is white.
COLOUR = {
    Label.VERIFIED: "#0f7a52",
    Label.CONTRADICTED: "#c0312b",
    Label.LACKING_EVIDENCE: "#8f5f00",
    Label.OUT_OF_SCOPE: "#2b62a8",
    Label.ABSTENTION: "#6c4bb4",
}
_UNSCORED = "#5d6570"

#: Conversations that the view of `Results` lists.
LISTED = 20


def claim_rows(results: Iterable[ConversationResult]) -> Iterator[dict[str, Any]]:
    """One row for each claim: where it is, what it is, how sure the label is, and its turn's verdicts.

    Claims of unreferenced turns are rows too, with `status` "unreferenced" and no label. `p` is the probability of
    the label; `p_<label>` are `None` where categorise was not run on the claim.
    """
    for result in results:
        score = score_conversation(result)
        for turn, turn_score in zip(result.turns, score.turns, strict=True):
            for number, claim in enumerate(turn.claims):
                label = claim.label
                yield {
                    "conversation": result.id,
                    "turn": turn.index,
                    "claim": number,
                    "text": claim.text,
                    "label": None if label is None else label.value,
                    "p": None if label is None else claim.probs.get(label.value),
                    **{f"p_{x.value.lower()}": claim.probs.get(x.value) for x in LABELS},
                    "evidence": claim.evidence[0].source if claim.evidence else None,
                    "unscored": claim.unscored,
                    "corrected": claim.corrected.action if claim.corrected else None,
                    "status": turn.status.value,
                    "reviewed": turn.reviewed,
                    "turn_vista_score": turn_score.vista_score,
                    "turn_strict": turn_score.strict,
                    "turn_safe": turn_score.safe,
                    "conversation_vista_score": score.vista_score,
                }


#: Columns of the tables, in order, with their type for `datasets`.
COLUMNS: dict[str, str] = {
    "conversation": "string",
    "turn": "int64",
    "claim": "int64",
    "text": "string",
    "label": "string",
    "p": "float64",
    **{f"p_{x.value.lower()}": "float64" for x in LABELS},
    "evidence": "string",
    "unscored": "string",
    "corrected": "string",
    "status": "string",
    "reviewed": "bool",
    "turn_vista_score": "float64",
    "turn_strict": "bool",
    "turn_safe": "bool",
    "conversation_vista_score": "float64",
}


class Results(Sequence[ConversationResult]):
    """Scored conversations as a notebook shows them: a table view, `to_pandas()` and `to_dataset()`.

    Results(evaluator.score(conversations)).to_pandas()
    Results.read("results.jsonl")
    """

    def __init__(self, results: Iterable[ConversationResult]) -> None:
        self._results = tuple(results)

    @classmethod
    def read(cls, path: str | Path) -> Results:
        """The results of a file.

        Raises:
            InputError: the file can't be read, or a line is no result line; names file and line.
        """
        return cls(read_results(Path(path)))

    @overload
    def __getitem__(self, index: int) -> ConversationResult: ...

    @overload
    def __getitem__(self, index: slice) -> Results: ...

    def __getitem__(self, index: int | slice) -> ConversationResult | Results:
        return Results(self._results[index]) if isinstance(index, slice) else self._results[index]

    def __len__(self) -> int:
        return len(self._results)

    def __repr__(self) -> str:
        score = ratio(self.summary().totals.vista_score)
        return f"<Results: {counted(len(self), 'conversation')}, VISTA score {score}>"

    def summary(self) -> Summary:
        """Counts and scores of all conversations together."""
        summary = Summary()
        for result in self:
            summary.add(result)
        return summary

    def to_pandas(self) -> pandas.DataFrame:
        """A data frame with one row for each claim; see `claim_rows`.

        Raises:
            MissingExtraError: pandas is not installed.
        """
        try:
            import pandas
        except ImportError:
            raise MissingExtraError("pandas", "notebook") from None
        frame = pandas.DataFrame(list(claim_rows(self)), columns=list(COLUMNS))
        # A column without a value would else have no type, and verdicts with gaps would become objects.
        kinds = {"string": "string", "int64": "int64", "float64": "float64", "bool": "boolean"}
        return frame.astype({name: kinds[kind] for name, kind in COLUMNS.items()})

    def to_dataset(self) -> Dataset:
        """A `datasets.Dataset` with one row for each claim; see `claim_rows`.

        Raises:
            MissingExtraError: datasets is not installed.
        """
        try:
            from datasets import Dataset, Features, Value
        except ImportError:
            raise MissingExtraError("datasets", "notebook") from None
        rows = list(claim_rows(self))
        features = Features({name: Value(kind) for name, kind in COLUMNS.items()})
        return Dataset.from_dict({name: [row[name] for row in rows] for name in COLUMNS}, features=features)

    def _repr_html_(self) -> str:
        totals = self.summary().totals
        rows = "".join(_list_row(result) for result in self._results[:LISTED])
        rest = len(self) - LISTED
        more = f"<p>… and {rest} more</p>" if rest > 0 else ""
        head = (
            f"<p><b>VISTA score {ratio(totals.vista_score)}</b> · {len(self)} conversations · "
            f"{totals.turns} assistant turns · {totals.claims} claims · strict turns {ratio(totals.strict_rate)} · "
            f"safe turns {ratio(totals.safe_rate)} · coverage {ratio(totals.coverage)}</p>"
        )
        table = "<table><thead><tr><th>conversation</th><th>VISTA score</th><th>claims</th></tr></thead>"
        return f"<div>{head}{table}<tbody>{rows}</tbody></table>{more}</div>"


def _list_row(result: ConversationResult) -> str:
    score = score_conversation(result)
    counts = " ".join(f"{_badge(label)}&nbsp;{n}" for label, n in score.totals.labels.items() if n)
    return (
        f'<tr><td style="text-align:left">{_text(result.id)}</td><td>{ratio(score.vista_score)}</td>'
        f'<td style="text-align:left">{counts or _text(result.error or "no claims")}</td></tr>'
    )


def conversation_html(result: ConversationResult) -> str:
    """A conversation with its claims as HTML for a notebook: no script, no style sheet, all text escaped."""
    parts = [f"<p><b>{_text(result.id)}</b> · VISTA score {ratio(score_conversation(result).vista_score)}</p>"]
    if result.error is not None:
        parts.append(f"<p>not scored: {_text(result.error)}</p>")
    turns = {t.index: t for t in result.turns}
    if result.conversation is None:
        parts += [f"<p>turn {t.index}</p>{_claims(t)}" for t in result.turns]
    else:
        for index, said in enumerate(result.conversation.turns):
            user = said.role is Role.USER
            parts.append(
                f'<p dir="auto" style="white-space:pre-wrap;margin:.8em 0 .2em;{"opacity:.75" if user else ""}">'
                f"<b>{'User' if user else 'Assistant'}:</b> {_text(said.text)}</p>"
            )
            if index in turns:
                parts.append(_claims(turns[index]))
    return f'<div style="max-width:60em;text-align:left">{"".join(parts)}</div>'


def _claims(turn: TurnResult) -> str:
    if turn.status is TurnStatus.UNREFERENCED:
        return "<p><i>unreferenced: not scored</i></p>"
    reason = f"<p><i>unscored: {_text(turn.unscored)}</i></p>" if turn.unscored else ""
    items = "".join(f'<li style="list-style:none;margin:.15em 0">{_claim(c)}</li>' for c in turn.claims)
    return f'{reason}<ul style="margin:0;padding-left:1.2em">{items}</ul>'


def _claim(claim: ClaimResult) -> str:
    if claim.label is None:
        return f"{_badge(None)} {_text(claim.text)} <small>({_text(claim.unscored or 'not labelled')})</small>"
    share = claim.probs.get(claim.label.value)
    sure = "" if share is None else f", {100 * share:.0f} %"
    mark = "" if claim.corrected is None else ", corrected"
    return f"{_badge(claim.label)} {_text(claim.text)} <small>({claim.label.value}{sure}{mark})</small>"


def _badge(label: Label | None) -> str:
    colour, letter = (_UNSCORED, "–") if label is None else (COLOUR[label], label.letter)
    name = "unscored" if label is None else label.value
    style = f"background:{colour};color:#fff;border-radius:4px;padding:0 .4em;font-weight:700"
    return f'<span title="{name}" style="{style}">{letter}</span>'


def _text(text: str) -> str:
    return html.escape(printable(text))
