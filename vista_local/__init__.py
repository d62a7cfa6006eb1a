"""Score the factuality of conversations offline (VISTA, arXiv 2510.27052, on local LoRA adapters)."""

__version__ = "0.1.0"

__all__ = ["Evaluator", "Results", "__version__"]


def __getattr__(name: str) -> object:
    # torch and transformers take seconds to import; `vista-local --help` must not.
    if name == "Evaluator":
        from vista_local.evaluator import Evaluator

        return Evaluator
    if name == "Results":
        from vista_local.notebook import Results

        return Results
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
