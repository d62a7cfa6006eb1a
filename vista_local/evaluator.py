"""`Evaluator`: the whole method in one object, for Python users.

from vista_local import Evaluator

evaluator = Evaluator.from_pretrained()
for result in evaluator.score(conversations):
    print(result.id, [c.label for t in result.turns for c in t.claims])
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from vista_local.backends.base import Backend
from vista_local.config import ScoreConfig
from vista_local.errors import VistaError
from vista_local.offline import offline
from vista_local.output import run_record
from vista_local.pipeline import Pipeline
from vista_local.readers import parse_conversation
from vista_local.runner import shards
from vista_local.schema import Conversation, ConversationResult

#: The adapter set for the default base.
DEFAULT_ADAPTERS = "smollm2-135m"


def adapters_dir(name: str | Path | None = None) -> Path:
    """Folder of an adapter set: a path, or the name of a set that comes with the package.

    Raises:
        VistaError: there is none.
    """
    wanted = str(name or DEFAULT_ADAPTERS)
    package = Path(__file__).resolve().parent
    # Installed: inside the package. In a checkout: beside it.
    shipped = [package / "checkpoints", package.parent / "checkpoints"]
    for folder in [Path(wanted), *(root / wanted for root in shipped)]:
        if (folder / "verify").is_dir():
            return folder
    raise VistaError(f"{wanted}: no adapter set (a folder with decompose, verify and categorise)")


class Evaluator:
    """Scores conversations with one backend; build it with `from_pretrained`."""

    def __init__(self, backend: Backend, config: ScoreConfig | None = None, pipeline: Pipeline | None = None) -> None:
        self.backend = backend
        self.config = config or ScoreConfig()
        self.pipeline = pipeline or Pipeline(backend, self.config)

    @classmethod
    def from_pretrained(
        cls,
        adapters: str | Path | None = None,
        *,
        base: str | None = None,
        config: ScoreConfig | None = None,
        device: str | None = None,
        **backend_options: Any,
    ) -> Evaluator:
        """Load base and adapters from disk; never downloads.

        Args:
            adapters: an adapter set's folder or name; default the set of the default base.
            base: the base's folder, or a hub id that is in the local cache; default the base that
                `vista-local fetch` brings.
            config: settings; default `ScoreConfig()`.
            device: torch device; default CUDA if present, otherwise CPU.
            backend_options: passed on to `TransformersBackend`.

        Raises:
            VistaError: base or adapters are missing, damaged, or don't belong together.
        """
        from vista_local.backends.transformers_backend import TransformersBackend
        from vista_local.base import resolve_base

        with offline():
            backend = TransformersBackend(resolve_base(base), adapters_dir(adapters), device=device, **backend_options)
        return cls(backend, config)

    def guard(self) -> AbstractContextManager[None]:
        """What keeps this process off the network while it scores."""
        return offline()

    def session(self, go_on: str) -> AbstractContextManager[None]:
        """The context of a whole run; `go_on` is how to continue one that failed, for the message."""
        return self.guard()

    def notice(self) -> str | None:
        """What must be said before a run: where conversations go, if they leave this machine."""
        return None

    def usage(self) -> str | None:
        """What calls to others a run took, for people; `None` for a local model."""
        return None

    def estimate(self, conversations: Iterable[Conversation]) -> list[str]:
        """What scoring `conversations` would take, for people.

        Raises:
            VistaError: a local model has no price.
        """
        raise VistaError("only runs with a teacher can be estimated")

    def run_record(self) -> dict[str, Any]:
        """Everything that this evaluator's results depend on."""
        return run_record(self.config, self.backend.describe())

    def score(self, conversations: Iterable[Conversation | Mapping[str, Any]]) -> Iterator[ConversationResult]:
        """Score conversations, given as `Conversation` objects or in the native JSON form.

        Results come in order, as soon as their shard is done. No network connection is opened.

        Raises:
            InputError: a mapping is no conversation.
        """
        parsed = (
            c if isinstance(c, Conversation) else parse_conversation(c, f"conversation {number}", number=number)
            for number, c in enumerate(conversations, start=1)
        )
        for shard in shards(parsed, self.config.shard_size):
            with self.guard():
                results = self.pipeline.score_shard(shard)
            yield from results
