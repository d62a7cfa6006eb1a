"""The loop: decompose every turn of a shard, then verify and categorise it as a wavefront.

Turn t of all conversations of the shard is labelled before turn t + 1 of any, so that batches are
full although each conversation is sequential. The pipeline knows dialogue and memory; it knows no
model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vista_local.backends.base import Backend, Row, Said, Unanswered
from vista_local.chunking import chunk_turn, windows
from vista_local.claims import Details, parse_claims, unsupported_details
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.evidence import DECIDED_LABELS, Piece, best, candidates, piece_score, pieces
from vista_local.history import DECOMPOSE_HISTORY, RECENT, HistoryLimits, recent_history
from vista_local.labels import UNVERIFIABLE_LABELS, Label
from vista_local.memory import KnowledgeStore, Selection
from vista_local.prompts import Utterance
from vista_local.schema import (
    ClaimResult,
    Conversation,
    ConversationResult,
    Role,
    Turn,
    TurnResult,
    TurnStatus,
)
from vista_local.stages import (
    ClassifyRequest,
    claim_label,
    claim_probs,
    classify_request,
    combine_categorise,
    combine_verify,
    decompose_prompt,
    undecided_categorise,
    undecided_verify,
)
from vista_local.text import counted


@dataclass
class _Job:
    """One assistant turn on its way through the stages."""

    conversation: int
    index: int
    turn: Turn
    history: list[Utterance]
    status: TurnStatus
    stored_unchecked: bool = False
    claims: list[str] = field(default_factory=list)
    unsupported: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    chunks: int = 0
    windows: list[str] = field(default_factory=list)
    selection: Selection = field(default_factory=lambda: Selection((), 0))
    p_verified: list[float] = field(default_factory=list)
    q: list[list[float] | None] = field(default_factory=list)
    evidence: list[list[tuple[Piece, float]]] = field(default_factory=list)
    unscored: str | None = None  # why the whole turn has no score
    reasons: list[str | None] = field(default_factory=list)  # why a claim has no label
    shown: list[Utterance] | None = None  # history as verify and categorise see it
    recomputed: set[int] = field(default_factory=set)  # claims that were near-ties
    said: list[bool] = field(default_factory=list)  # whether a claim's label came without probabilities


def _distributions(rows: Sequence[Row], labels: int) -> tuple[list[list[float]], bool, str | None]:
    """A claim's windows as distributions over `labels` labels.

    Returns:
        The distributions of the answered windows (all mass on a label that was only said), whether a
        label was only said, and why a window has no answer.
    """
    found: list[list[float]] = []
    said, reason = False, None
    for row in rows:
        if isinstance(row, Unanswered):
            reason = reason or row.reason
        elif isinstance(row, Said):
            said = True
            found.append([float(i == row.label) for i in range(labels)])
        else:
            found.append([math.exp(value) for value in row])
    return found, said, reason


def _out_of_memory(error: Exception) -> bool:
    """Whether memory ran out: Python's own, a GPU's or a CPU tensor's, which torch reports as RuntimeErrors."""
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return isinstance(error, RuntimeError) and "can't allocate memory" in str(error)


class Pipeline:
    """Scores shards of conversations with one backend and one configuration."""

    def __init__(
        self,
        backend: Backend,
        config: ScoreConfig | None = None,
        on_progress: Callable[[int, int], None] | None = None,
        decompose_history: HistoryLimits | None = DECOMPOSE_HISTORY,
    ) -> None:
        """`on_progress` is called with (turns, claims) that were finished since its last call.

        `decompose_history` is what stage 1 is shown; the default is what the adapters were trained
        with, `None` the whole talk.
        """
        self.on_progress = on_progress
        self.decompose_history = decompose_history
        self.backend = backend
        self.config = config or ScoreConfig()
        if self.config.oracle_memory and not self.config.given_claims:
            raise VistaError("oracle_memory needs given_claims: the store is filled from the given claims' labels")

    def score_shard(self, shard: Sequence[Conversation]) -> list[ConversationResult]:
        """Score the conversations of one shard, in order.

        Where scoring them together fails, each is scored alone; one that fails alone has its `error`
        in its result, and all of its turns are unscored.

        Raises:
            VistaError: the run as a whole can't go on: with `oracle_memory`, a given claim has no
                label; something asked for a connection; memory ran out.
        """
        try:
            return self._score_together(shard)
        except VistaError:
            raise
        except Exception as error:
            if _out_of_memory(error):
                raise VistaError(
                    f"out of memory with {counted(len(shard), 'conversation')} in the shard; a smaller --shard-size or "
                    "--token-budget needs a new output file (finished lines stay readable)"
                ) from error
            # Whatever comes out of a model's code: one conversation must not end a run over millions.
            if len(shard) == 1:
                return [self._failed(shard[0], error)]
            return [result for conversation in shard for result in self.score_shard([conversation])]

    def _failed(self, conversation: Conversation, error: Exception) -> ConversationResult:
        """The result of a conversation that can't be scored: nothing of it leaves a denominator."""
        reason = " ".join(f"{type(error).__name__}: {error}".split())[:500].encode(errors="replace").decode()
        turns = []
        for job in self._jobs(0, conversation):
            scored = job.status is TurnStatus.SCORED
            given = job.turn.claims or () if self.config.given_claims else ()
            claims = tuple(ClaimResult(c.text, None, {}, unscored=reason if scored else None) for c in given)
            turns.append(TurnResult(job.index, job.status, claims, unscored=reason if scored else None))
        kept = conversation if self.config.keep_input else None
        return ConversationResult(conversation.id, tuple(turns), error=reason, conversation=kept)

    def _score_together(self, shard: Sequence[Conversation]) -> list[ConversationResult]:
        waves = [self._jobs(number, conversation) for number, conversation in enumerate(shard)]
        every_job = [job for jobs in waves for job in jobs]
        self._find_claims(every_job)
        stores = [KnowledgeStore(c.background) for c in shard]
        results: list[list[TurnResult]] = [[] for _ in shard]
        for step in range(max((len(jobs) for jobs in waves), default=0)):
            wave = [jobs[step] for jobs in waves if step < len(jobs)]
            self._label([job for job in wave if job.status is TurnStatus.SCORED], stores)
            for job in wave:
                result = self._result(job)
                self._remember(job, result, stores[job.conversation], shard[job.conversation].id)
                results[job.conversation].append(result)
            if self.on_progress:
                self.on_progress(len(wave), sum(len(job.claims) for job in wave))
        keep = self.config.keep_input
        return [
            ConversationResult(c.id, tuple(turns), conversation=c if keep else None)
            for c, turns in zip(shard, results, strict=True)
        ]

    def _jobs(self, number: int, conversation: Conversation) -> list[_Job]:
        jobs: list[_Job] = []
        history: list[Utterance] = []
        for index, turn in enumerate(conversation.turns):
            left_alone = self.config.given_claims and turn.claims is None
            if turn.role is Role.ASSISTANT and not left_alone:
                unreferenced = turn.reference is None and self.config.memory.unreferenced != "verify"
                status = TurnStatus.UNREFERENCED if unreferenced else TurnStatus.SCORED
                trusted = unreferenced and self.config.memory.unreferenced == "trust"
                jobs.append(_Job(number, index, turn, list(history), status, trusted))
            history.append(Utterance(turn.role, turn.text))
        return jobs

    def claims_of(self, conversations: Sequence[Conversation]) -> list[list[str]]:
        """Stage 1 alone: the claims found in each conversation's turns that would be scored, in order."""
        waves = [self._jobs(number, conversation) for number, conversation in enumerate(conversations)]
        self._find_claims([job for jobs in waves for job in jobs])
        return [[claim for job in jobs for claim in job.claims] for jobs in waves]

    def _find_claims(self, jobs: Sequence[_Job]) -> None:
        """Stage 1 for all jobs at once; it needs no memory."""
        if self.config.given_claims:
            for job in jobs:
                job.claims = [c.text for c in job.turn.claims or ()]
            return
        # A skipped turn's claims would be neither labelled nor stored: none are made.
        wanted = [j for j in jobs if j.status is TurnStatus.SCORED or j.stored_unchecked]
        prompts, owners = [], []
        for job in wanted:
            chunks = chunk_turn(job.turn.text, self.backend.chunk_tokens, self.backend.count)
            if not job.turn.text.strip():
                continue
            job.chunks = len(chunks)
            earlier = list(job.history)
            for chunk in chunks:
                history = recent_history(earlier, self.decompose_history, self.backend.tail, self.backend.count)
                prompts.append(decompose_prompt(history, chunk))
                owners.append(job)
                earlier.append(Utterance(Role.ASSISTANT, chunk))
        seen: dict[int, set[str]] = {}
        details: dict[str, Details] = {}  # of each utterance, which many claims are held against
        for job, answer in zip(owners, self.backend.generate("decompose", prompts), strict=True):
            if answer.unscored is not None:
                job.unscored = job.unscored or f"decompose: {answer.unscored}"
                continue
            parsed = parse_claims(answer.text, finished=answer.cut != "length")
            if answer.cut == "repeat":
                job.notes.append("decompose: stopped at a repeated claim")
            if answer.cut == "length":
                rest = f"; unfinished claim: {parsed.unfinished}" if parsed.unfinished else ""
                job.notes.append(f"decompose: cut at the length limit{rest}")
            known = seen.setdefault(id(job), set())
            texts = [job.turn.text, *(u.text for u in job.history)]
            for text in texts:
                if text not in details:
                    details[text] = Details.of(text)
            sources = [details[text] for text in texts]
            for claim in parsed.claims:
                key = claim.rstrip(".").casefold()
                if key in known:
                    continue
                known.add(key)
                (job.unsupported if unsupported_details(claim, sources) else job.claims).append(claim)
        for job in jobs:
            if job.unscored is not None:  # the claims of some chunks only would pass for the turn's
                job.claims = []

    def _label(self, jobs: Sequence[_Job], stores: Sequence[KnowledgeStore]) -> None:
        """Stages 2 and 3 for one wave; each job's store is as its conversation's earlier turns left it."""
        jobs = [job for job in jobs if job.claims]
        for job in jobs:
            job.selection = stores[job.conversation].select(
                job.claims, self.config.memory.budget_tokens, self.backend.count
            )
            job.windows = windows(job.turn.reference or (), self.backend.max_reference_tokens, self.backend.count)
        verified = self._classify("verify", [(job, list(range(len(job.claims)))) for job in jobs])
        for job, by_claim in zip(jobs, verified, strict=True):
            for by_window in by_claim:
                rows, said, reason = _distributions(by_window, 2)
                p = combine_verify([row[0] for row in rows]) if rows else 0.0
                job.p_verified.append(p)
                job.said.append(said)
                # One window that supports the claim is enough, whatever the unanswered ones hold.
                job.reasons.append(None if reason is None or p >= 0.5 else f"verify: {reason}")
            job.q = [None] * len(job.claims)
            job.evidence = [[] for _ in job.claims]
        wanted = [
            (
                job,
                [
                    i
                    for i, p in enumerate(job.p_verified)
                    if job.reasons[i] is None and (p < 0.5 or self.config.full_probs)
                ],
            )
            for job in jobs
        ]
        wanted = [(job, claims) for job, claims in wanted if claims]
        for (job, claims), by_claim in zip(wanted, self._classify("categorise", wanted), strict=True):
            for i, by_window in zip(claims, by_claim, strict=True):
                rows, said, reason = _distributions(by_window, len(UNVERIFIABLE_LABELS))
                job.said[i] |= said
                if reason is None:
                    job.q[i] = combine_categorise(rows)
                elif job.p_verified[i] < 0.5:
                    job.reasons[i] = f"categorise: {reason}"
        if self.config.evidence:
            self._find_evidence(jobs)

    def _find_evidence(self, jobs: Sequence[_Job]) -> None:
        """Judge each candidate piece alone; claims that share a candidate share its prefix."""
        verify: list[tuple[_Job, Piece, list[int]]] = []
        for job in jobs:
            among = pieces(job.turn.reference or (), job.selection.entries)
            wanting: dict[int, list[int]] = {}
            for number, (p, q) in enumerate(zip(job.p_verified, job.q, strict=True)):
                if job.reasons[number] is None and claim_label(p, q) in DECIDED_LABELS:
                    for candidate in candidates(job.claims[number], among):
                        wanting.setdefault(candidate, []).append(number)
            verify += [(job, among[candidate], numbers) for candidate, numbers in sorted(wanting.items())]
        verified = self._judge_pieces("verify", verify)
        categorise, p_of = [], []
        for (job, piece, numbers), rows in zip(verify, verified, strict=True):
            refuting, chances = [], []
            for number, row in zip(numbers, rows, strict=True):
                label = claim_label(job.p_verified[number], job.q[number])
                found, *_ = _distributions([row], 2)
                if not found:
                    continue  # a piece that can't be judged is not named
                if label is Label.VERIFIED:
                    job.evidence[number].append((piece, piece_score(label, found[0][0], None)))
                else:
                    refuting.append(number)
                    chances.append(found[0][0])
            if refuting:
                categorise.append((job, piece, refuting))
                p_of.append(chances)
        at = UNVERIFIABLE_LABELS.index(Label.CONTRADICTED)
        for (job, piece, numbers), chances, rows in zip(
            categorise, p_of, self._judge_pieces("categorise", categorise), strict=True
        ):
            for number, p, row in zip(numbers, chances, rows, strict=True):
                for q in _distributions([row], len(UNVERIFIABLE_LABELS))[0]:
                    job.evidence[number].append((piece, piece_score(Label.CONTRADICTED, p, q[at])))

    def _judge_pieces(self, stage: str, wanted: Sequence[tuple[_Job, Piece, list[int]]]) -> Sequence[Sequence[Row]]:
        """Answers [pieces][claims] with one piece as all there is to know."""
        words = self.backend.label_words(stage)
        requests = [
            classify_request(
                stage,
                words,
                self._evidence_history(job),
                () if piece.entry is None else (piece.entry,),
                piece.text if piece.entry is None else "",
                [job.claims[i] for i in numbers],
            )
            for job, piece, numbers in wanted
        ]
        return self.backend.classify(stage, requests)

    def _classify(self, stage: str, wanted: Sequence[tuple[_Job, list[int]]]) -> list[list[list[Row]]]:
        """Answers [jobs][claims][windows] for the claims with the given numbers."""
        requests: list[ClassifyRequest] = []
        words = self.backend.label_words(stage)
        for job, claims in wanted:
            history = self._evidence_history(job)
            texts = [job.claims[i] for i in claims]
            requests.extend(
                classify_request(stage, words, history, job.selection.entries, window, texts) for window in job.windows
            )
        answers = iter(self.backend.classify(stage, requests))
        result: list[list[list[Row]]] = []
        for job, claims in wanted:
            by_window = [next(answers) for _ in job.windows]
            result.append([[w[i] for w in by_window] for i in range(len(claims))])
        self._settle_near_ties(stage, wanted, result)
        return result

    def _settle_near_ties(
        self, stage: str, wanted: Sequence[tuple[_Job, list[int]]], rows: list[list[list[Row]]]
    ) -> None:
        """Replace rows that a different batch could turn into a different label by ones computed alone.

        Args:
            rows: [jobs][claims][windows], as `_classify` has found them; changed in place.
        """
        if (margin := self.backend.tie_margin) <= 0:
            return
        words = self.backend.label_words(stage)
        requests: list[ClassifyRequest] = []
        places: list[tuple[list[Row], int]] = []
        for (job, claims), of_claims in zip(wanted, rows, strict=True):
            for number, by_window in zip(claims, of_claims, strict=True):
                if any(isinstance(row, Said | Unanswered) for row in by_window):
                    continue  # nothing to settle where there are no probabilities
                probabilities, *_ = _distributions(by_window, 0)
                if stage == "verify":
                    undecided = undecided_verify([p[0] for p in probabilities], margin)
                elif job.p_verified[number] < 0.5:
                    undecided = undecided_categorise(probabilities, margin)
                else:
                    undecided = []  # --full-probs: the label is VERIFIED already
                if undecided:
                    job.recomputed.add(number)
                history = self._evidence_history(job) if undecided else []
                for at in undecided:
                    requests.append(
                        classify_request(
                            stage, words, history, job.selection.entries, job.windows[at], [job.claims[number]]
                        )
                    )
                    places.append((by_window, at))
        for (by_window, at), answer in zip(places, self.backend.classify_alone(stage, requests), strict=True):
            by_window[at] = answer[0]

    def _evidence_history(self, job: _Job) -> list[Utterance]:
        """What verify and categorise are shown of the talk; measured once a turn, since it may be long."""
        if job.shown is None:
            limits = {"none": HistoryLimits(0, 0), "recent": RECENT, "full": None}[self.config.context]
            job.shown = recent_history(job.history, limits, self.backend.tail, self.backend.count)
        return job.shown

    def _result(self, job: _Job) -> TurnResult:
        if job.status is TurnStatus.UNREFERENCED:
            claims = tuple(ClaimResult(text, None, {}) for text in job.claims)
        else:
            claims = tuple(self._claim(job, number) for number in range(len(job.claims)))
        return TurnResult(
            index=job.index,
            status=job.status,
            claims=claims,
            unsupported_extraction=tuple(job.unsupported),
            notes=tuple(job.notes),
            windows=len(job.windows),
            chunks=job.chunks,
            omitted_memory=job.selection.omitted,
            memory=tuple((e.turn, e.claim) for e in job.selection.entries),
            unscored=job.unscored,
            recomputed=len(job.recomputed),
        )

    def _claim(self, job: _Job, number: int) -> ClaimResult:
        reason = job.reasons[number]
        if reason is not None:
            return ClaimResult(job.claims[number], None, {}, unscored=reason)
        p, q = job.p_verified[number], job.q[number]
        # A label that was only said has no probabilities, and 1 and 0 would be made up.
        probs = {} if job.said[number] else claim_probs(p, q)
        return ClaimResult(job.claims[number], claim_label(p, q), probs, evidence=best(job.evidence[number]))

    def _remember(self, job: _Job, result: TurnResult, store: KnowledgeStore, conversation_id: str) -> None:
        if job.stored_unchecked:
            store.trust_turn(job.index, job.claims)
        elif self.config.oracle_memory:
            for given in job.turn.claims or ():
                if given.label is None:
                    raise InputError(
                        f"oracle_memory needs a label on every claim; {given.text!r} has none",
                        f"conversation {conversation_id!r}, turn {job.index}",
                    )
            if job.status is TurnStatus.SCORED:
                store.add_turn(job.index, [(c.text, c.label) for c in job.turn.claims or ()])
        elif job.status is TurnStatus.SCORED:
            store.add_turn(job.index, [(c.text, c.label) for c in result.claims])
