"""The prompted pipeline: the same loop as the student's, with a teacher behind it.

Conversations of a shard run side by side, each through `Pipeline` on its own, so that a trace knows
which call belongs to which turn. `TeacherEvaluator` puts endpoint, limits, cache and pipeline together.
"""

from __future__ import annotations

import threading
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from pathlib import Path

from vista_local.answer_cache import AnswerCache
from vista_local.backends.openai_backend import Exchange, OpenAIBackend
from vista_local.base import cache_dir
from vista_local.config import ScoreConfig
from vista_local.dryrun import Estimator
from vista_local.endpoint import Completer, Endpoint, EndpointError
from vista_local.errors import VistaError
from vista_local.evaluator import Evaluator
from vista_local.fewshot import ContradictionAnswer, parse_contradiction_answer
from vista_local.limits import Budget, BudgetError, Stop
from vista_local.offline import offline
from vista_local.pipeline import Pipeline
from vista_local.prompts import Utterance, decompose_user
from vista_local.runner import shards
from vista_local.schema import Conversation, ConversationResult, TurnResult
from vista_local.teacher import TeacherConfig, load_teacher


@dataclass(frozen=True)
class TurnTrace:
    """The calls that made one turn's result, in order; `contradiction` is the optional pass's verdict."""

    exchanges: tuple[Exchange, ...]
    contradiction: ContradictionAnswer | None = None


@dataclass(frozen=True)
class Scored:
    """A conversation's result with a trace for each of its turns."""

    result: ConversationResult
    traces: tuple[TurnTrace, ...]


class _Recorder:
    """Sorts the calls of one conversation by turn.

    A conversation alone in its shard is decomposed in one batch, in the order of its turns, and then
    labelled turn by turn; the pipeline reports after each.
    """

    def __init__(self) -> None:
        self.decompose: list[Exchange] = []
        self.labels: list[list[Exchange]] = [[]]

    def log(self, exchanges: Sequence[Exchange]) -> None:
        for exchange in exchanges:
            (self.decompose if exchange.stage == "decompose" else self.labels[-1]).append(exchange)

    def turn_done(self) -> None:
        self.labels.append([])

    def by_turn(self, turns: Sequence[TurnResult]) -> list[tuple[Exchange, ...]]:
        """Calls of each turn; a decomposed turn has as many decompose calls as chunks."""
        decompose = iter(self.decompose)
        # A conversation that failed half way has fewer lists than turns.
        labels = self.labels + [[] for _ in turns]
        return [
            (*(next(decompose) for _ in range(turn.chunks)), *of_turn)
            for turn, of_turn in zip(turns, labels, strict=False)
        ]


class PromptedPipeline(Pipeline):
    """Scores shards with a teacher.

    Raises:
        VistaError: a setting asks for probabilities that prompting doesn't give.
    """

    def __init__(self, backend: OpenAIBackend, config: ScoreConfig, stop: Stop | None = None) -> None:
        # A teacher has room for the whole talk, which the method gives to decomposition.
        super().__init__(backend, config, decompose_history=None)
        if config.evidence:
            raise VistaError("evidence needs the adapters' probabilities; a teacher gives labels: leave it out")
        if config.full_probs and not backend.config.logprobs:
            raise VistaError("full_probs needs probabilities: set `logprobs` in the teacher's file, if it gives them")
        self.teacher = backend
        self._stop = stop or Stop()
        self._lock = threading.Lock()

    def score_shard(self, shard: Sequence[Conversation]) -> list[ConversationResult]:
        """See `Pipeline`.

        Raises:
            VistaError: the endpoint can't be used, or money has run out.
        """
        return [scored.result for scored in self.score_traced(shard)]

    def score_traced(self, conversations: Sequence[Conversation]) -> Iterator[Scored]:
        """Score conversations side by side; in order, each as soon as it and those before it are done.

        Raises:
            VistaError: the endpoint can't be used, or money has run out.
        """
        with ThreadPoolExecutor(self.teacher.config.concurrency, thread_name_prefix="conversation") as pool:
            futures = [pool.submit(self._score_one, conversation) for conversation in conversations]
            try:
                for future in futures:
                    yield future.result()
            except BaseException as error:
                # The others are ended as well, wherever they wait; no further call is sent.
                self._stop.set(error if isinstance(error, VistaError) else VistaError("stopped"))
                pool.shutdown(wait=False, cancel_futures=True)
                raise

    def _score_one(self, conversation: Conversation) -> Scored:
        self._stop.check()
        recorder = _Recorder()
        backend = self.teacher.logging_to(recorder.log)

        def turn_done(turns: int, claims: int) -> None:
            recorder.turn_done()
            if self.on_progress is not None:
                with self._lock:
                    self.on_progress(turns, claims)

        inner = Pipeline(backend, self.config, turn_done, self.decompose_history)
        (result,) = inner.score_shard([conversation])
        traces = [TurnTrace(calls) for calls in recorder.by_turn(result.turns)]
        if self.teacher.config.contradiction:
            return self._with_contradictions(conversation, result, traces)
        return Scored(result, tuple(traces))

    def _with_contradictions(
        self, conversation: Conversation, result: ConversationResult, traces: Sequence[TurnTrace]
    ) -> Scored:
        """Put each turn and the talk before it to the contradiction pass; its verdict becomes a note."""
        talk = [Utterance(turn.role, turn.text) for turn in conversation.turns]
        asked = [n for n, turn in enumerate(result.turns) if talk[turn.index].text.strip()]
        users = [decompose_user(talk[: result.turns[n].index], talk[result.turns[n].index].text) for n in asked]
        turns, new = list(result.turns), list(traces)
        for n, exchange in zip(asked, self.teacher.ask("contradiction", users), strict=True):
            verdict = None if exchange.unscored is not None else parse_contradiction_answer(exchange.answer)
            new[n] = TurnTrace((*traces[n].exchanges, exchange), verdict)
            turns[n] = replace(turns[n], notes=(*turns[n].notes, _contradiction_note(verdict, exchange)))
        return Scored(replace(result, turns=tuple(turns)), tuple(new))


def _contradiction_note(verdict: ContradictionAnswer | None, exchange: Exchange) -> str:
    if verdict is None:
        return f"contradiction: unscored: {exchange.unscored}"
    if not verdict.contradicts:
        return "contradiction: no"
    where = "; ".join(f"{c.reply!r} <> {c.earlier!r}" for c in verdict.where)
    return f"contradiction: yes{': ' + where if where else ''}"


class TeacherEvaluator(Evaluator):
    """An `Evaluator` whose model is a teacher.

    Args:
        teacher: the teacher, or its YAML file.
        config: settings; by default those that `settings` gives.
        allow_remote: whether conversations may be sent to another machine.
        max_cost: most money that this run may spend, in the currency of the teacher's prices.
        dry_run: count calls instead of making them.

    Raises:
        VistaError: the endpoint is not on this machine and `allow_remote` is not set, a key is missing,
            or settings don't fit a teacher.
    """

    def __init__(
        self,
        teacher: TeacherConfig | Path,
        config: ScoreConfig | None = None,
        *,
        allow_remote: bool = False,
        max_cost: float | None = None,
        dry_run: bool = False,
    ) -> None:
        self.teacher = load_teacher(teacher) if isinstance(teacher, Path) else teacher
        if not self.teacher.is_local and not allow_remote and not dry_run:
            raise VistaError(
                f"{self.teacher.base_url} is not this machine: every conversation would be sent there; "
                "add --allow-remote if that is allowed"
            )
        self.stop = Stop()
        self.cache = AnswerCache(cache_path(self.teacher))
        self.budget = Budget(max_cost)
        self.estimator = Estimator(self.teacher, self.cache) if dry_run else None
        self.endpoint = None if dry_run else Endpoint(self.teacher, self.cache, self.budget, self.stop)
        completer: Completer | None = self.estimator or self.endpoint
        assert completer is not None
        backend = self._teacher_backend = OpenAIBackend(completer, self.teacher, stop=self.stop)
        settings = config or ScoreConfig(context=self.teacher.context)
        self.prompted = PromptedPipeline(backend, settings, self.stop)
        super().__init__(backend, settings, self.prompted)

    def guard(self) -> AbstractContextManager[None]:
        """The socket guard, with a hole for the endpoint's host unless that is this machine."""
        return offline() if self.teacher.is_local or self.estimator is not None else offline(self.teacher.hosts)

    def notice(self) -> str | None:
        """See `Evaluator`."""
        if self.teacher.is_local or self.estimator is not None:
            return None
        return f"conversations are sent to {self.teacher.host}; connections to other hosts are refused"

    def usage(self) -> str | None:
        """See `Evaluator`."""
        if self.endpoint is None:
            return "nothing was sent"
        used = self.endpoint.usage
        line = (
            f"{used.calls} calls ({used.retries} tries again), {used.cached} answers from the cache, "
            f"{used.prompt_tokens} tokens in, {used.completion_tokens} out"
        )
        return line if self.teacher.prices is None else f"{line}, cost {self.budget.spent:.4f}"

    def estimate(self, conversations: Iterable[Conversation]) -> list[str]:
        """See `Evaluator`; needs `dry_run`."""
        if self.estimator is None:
            return super().estimate(conversations)
        for shard in shards(conversations, self.config.shard_size):
            with self.guard():
                self.pipeline.score_shard(shard)
        return self.estimator.lines()

    @contextmanager
    def session(self, go_on: str) -> Iterator[None]:
        """Guard, and clean up afterwards; an error that ends the run says how to go on.

        Args:
            go_on: how to continue, for the message.

        Raises:
            VistaError: in the place of `BudgetError` and `EndpointError`.
        """
        try:
            with self.guard():
                yield
        except (BudgetError, EndpointError) as error:
            kept = f"finished conversations and all answers are kept ({self.cache.path})"
            larger = " and a larger --max-cost" if isinstance(error, BudgetError) else ""
            raise VistaError(f"{error}; {kept}: go on with {go_on}{larger}") from error
        finally:
            self.close()

    def close(self) -> None:
        """Wait for calls in flight and release connections and cache."""
        self._teacher_backend.close()
        if self.endpoint is not None:
            self.endpoint.close()
        self.cache.close()


def cache_path(teacher: TeacherConfig) -> Path:
    """The file of a teacher's answers."""
    return Path(teacher.cache).expanduser() if teacher.cache else cache_dir() / "teacher-answers.sqlite"
