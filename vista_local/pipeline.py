"""The loop: decompose every turn of a shard, then verify and categorise it as a wavefront.

Turn t of all conversations of the shard is labelled before turn t + 1 of any, so that batches are
full although each conversation is sequential. The pipeline knows dialogue and memory; it knows no
model.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

from vista_local.backends.base import Backend
from vista_local.chunking import chunk_turn, windows
from vista_local.claims import parse_claims, unsupported_details
from vista_local.config import ScoreConfig
from vista_local.errors import InputError, VistaError
from vista_local.evidence import DECIDED_LABELS, Piece, best, candidates, piece_score, pieces
from vista_local.history import DECOMPOSE_HISTORY, RECENT, recent_history
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
)


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


class Pipeline:
    """Scores shards of conversations with one backend and one configuration."""

    def __init__(
        self,
        backend: Backend,
        config: ScoreConfig | None = None,
        on_progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """`on_progress` is called with (turns, claims) that were finished since its last call."""
        self.on_progress = on_progress
        self.backend = backend
        self.config = config or ScoreConfig()
        if self.config.oracle_memory and not self.config.given_claims:
            raise VistaError("oracle_memory needs given_claims: the store is filled from the given claims' labels")

    def score_shard(self, shard: Sequence[Conversation]) -> list[ConversationResult]:
        """Score the conversations of one shard, in order.

        Raises:
            InputError: with `oracle_memory`, a given claim has no label.
        """
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
            for number, chunk in enumerate(chunks):
                earlier = job.history + [Utterance(Role.ASSISTANT, c) for c in chunks[:number]]
                history = recent_history(earlier, DECOMPOSE_HISTORY, self.backend.tail, self.backend.count)
                prompts.append(decompose_prompt(history, chunk))
                owners.append(job)
        seen: dict[int, set[str]] = {}
        for job, answer in zip(owners, self.backend.generate("decompose", prompts), strict=True):
            parsed = parse_claims(answer.text, finished=answer.cut != "length")
            if answer.cut == "repeat":
                job.notes.append("decompose: stopped at a repeated claim")
            if answer.cut == "length":
                rest = f"; unfinished claim: {parsed.unfinished}" if parsed.unfinished else ""
                job.notes.append(f"decompose: cut at the length limit{rest}")
            known = seen.setdefault(id(job), set())
            sources = [job.turn.text, *(u.text for u in job.history)]
            for claim in parsed.claims:
                key = claim.rstrip(".").casefold()
                if key in known:
                    continue
                known.add(key)
                (job.unsupported if unsupported_details(claim, sources) else job.claims).append(claim)

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
            job.p_verified = [combine_verify([math.exp(w[0]) for w in by_window]) for by_window in by_claim]
            job.q = [None] * len(job.claims)
            job.evidence = [[] for _ in job.claims]
        wanted = [(job, [i for i, p in enumerate(job.p_verified) if p < 0.5 or self.config.full_probs]) for job in jobs]
        wanted = [(job, claims) for job, claims in wanted if claims]
        for (job, claims), by_claim in zip(wanted, self._classify("categorise", wanted), strict=True):
            for i, by_window in zip(claims, by_claim, strict=True):
                job.q[i] = combine_categorise([[math.exp(v) for v in w] for w in by_window])
        if self.config.evidence:
            self._find_evidence(jobs)

    def _find_evidence(self, jobs: Sequence[_Job]) -> None:
        """Judge each candidate piece alone; claims that share a candidate share its prefix."""
        verify: list[tuple[_Job, Piece, list[int]]] = []
        for job in jobs:
            among = pieces(job.turn.reference or (), job.selection.entries)
            wanting: dict[int, list[int]] = {}
            for number, (p, q) in enumerate(zip(job.p_verified, job.q, strict=True)):
                if claim_label(p, q) in DECIDED_LABELS:
                    for candidate in candidates(job.claims[number], among):
                        wanting.setdefault(candidate, []).append(number)
            verify += [(job, among[candidate], numbers) for candidate, numbers in sorted(wanting.items())]
        verified = self._judge_pieces("verify", verify)
        categorise, p_of = [], []
        for (job, piece, numbers), rows in zip(verify, verified, strict=True):
            refuting, chances = [], []
            for number, row in zip(numbers, rows, strict=True):
                label = claim_label(job.p_verified[number], job.q[number])
                if label is Label.VERIFIED:
                    job.evidence[number].append((piece, piece_score(label, math.exp(row[0]), None)))
                else:
                    refuting.append(number)
                    chances.append(math.exp(row[0]))
            if refuting:
                categorise.append((job, piece, refuting))
                p_of.append(chances)
        at = UNVERIFIABLE_LABELS.index(Label.CONTRADICTED)
        for (job, piece, numbers), chances, rows in zip(
            categorise, p_of, self._judge_pieces("categorise", categorise), strict=True
        ):
            for number, p, row in zip(numbers, chances, rows, strict=True):
                score = piece_score(Label.CONTRADICTED, p, math.exp(row[at]))
                job.evidence[number].append((piece, score))

    def _judge_pieces(self, stage: str, wanted: Sequence[tuple[_Job, Piece, list[int]]]) -> list[list[list[float]]]:
        """Log-probabilities [pieces][claims][labels] with one piece as all there is to know."""
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

    def _classify(self, stage: str, wanted: Sequence[tuple[_Job, list[int]]]) -> list[list[list[list[float]]]]:
        """Log-probabilities [jobs][claims][windows][labels] of the claims with the given numbers."""
        requests: list[ClassifyRequest] = []
        words = self.backend.label_words(stage)
        for job, claims in wanted:
            history = self._evidence_history(job)
            texts = [job.claims[i] for i in claims]
            requests.extend(
                classify_request(stage, words, history, job.selection.entries, window, texts) for window in job.windows
            )
        answers = iter(self.backend.classify(stage, requests))
        result = []
        for job, claims in wanted:
            by_window = [next(answers) for _ in job.windows]
            result.append([[w[i] for w in by_window] for i in range(len(claims))])
        return result

    def _evidence_history(self, job: _Job) -> list[Utterance]:
        if self.config.context == "none":
            return []
        limits = RECENT if self.config.context == "recent" else None
        return recent_history(job.history, limits, self.backend.tail, self.backend.count)

    def _result(self, job: _Job) -> TurnResult:
        if job.status is TurnStatus.UNREFERENCED:
            claims = tuple(ClaimResult(text, None, {}) for text in job.claims)
        else:
            claims = tuple(
                ClaimResult(text, claim_label(p, q), claim_probs(p, q), evidence=best(found))
                for text, p, q, found in zip(job.claims, job.p_verified, job.q, job.evidence, strict=True)
            )
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
        )

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
