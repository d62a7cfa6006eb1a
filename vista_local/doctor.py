"""A self-test for support requests: what is installed, what is loaded, and whether it labels."""

from __future__ import annotations

import importlib.metadata
import platform
import time

from vista_local import __version__
from vista_local.errors import VistaError

_PACKAGES = ("torch", "transformers", "peft", "safetensors", "gguf", "pydantic")


def report(base: str | None, adapters: str | None, device: str | None) -> tuple[list[tuple[str, str]], bool]:
    """Lines of (name, value) and whether everything works.

    The self-test labels a claim that its reference states and one that it refutes, and decomposes a
    turn; healthy means that both labels come back with probabilities that sum to one, and that the
    turn has a claim.
    """
    import torch

    from vista_local.evaluator import Evaluator
    from vista_local.schema import Conversation, GivenClaim, Role, Turn

    lines = [("vista-local", __version__), ("python", platform.python_version()), ("platform", platform.platform())]
    lines += [(name, importlib.metadata.version(name)) for name in _PACKAGES]
    lines += [("CPU kernels", torch.backends.cpu.get_cpu_capability()), ("threads", str(torch.get_num_threads()))]
    lines.append(("CUDA", torch.cuda.get_device_name() if torch.cuda.is_available() else "none"))
    started = time.monotonic()
    try:
        from vista_local.config import ScoreConfig

        evaluator = Evaluator.from_pretrained(adapters, base=base, config=ScoreConfig(given_claims=True), device=device)
    except VistaError as error:
        return [*lines, ("models", f"not loaded: {error}")], False
    for name, value in evaluator.backend.describe().items():
        if name == "adapters":
            lines += [(f"  {stage}", digest) for stage, digest in value.items()]
        elif name != "software":
            lines.append((name, str(value)))
    lines.append(("loaded in", f"{time.monotonic() - started:.1f} s"))
    started = time.monotonic()
    turn = Turn(
        Role.ASSISTANT,
        "The tower was finished in 1931.",
        ("The tower was finished in 1931 after two years of work.",),
        (GivenClaim("The tower was finished in 1931."), GivenClaim("The tower was finished in 1875.")),
    )
    (result,) = evaluator.score([Conversation("self-test", (turn,))])
    healthy = True
    for claim in result.turns[0].claims:
        healthy &= claim.label is not None and abs(sum(claim.probs.values()) - 1) < 1e-3
        lines.append(("self-test", f"{claim.text} -> {claim.label}, {claim.probs}"))
    own = Evaluator(evaluator.backend, ScoreConfig())
    (result,) = own.score([Conversation("self-test", (Turn(Role.ASSISTANT, turn.text, turn.reference),))])
    found = [claim.text for claim in result.turns[0].claims]
    healthy &= bool(found)
    lines.append(("self-test", f"claims of the turn: {' / '.join(found) or 'none'}"))
    lines.append(("self-test took", f"{time.monotonic() - started:.1f} s"))
    return lines, healthy
