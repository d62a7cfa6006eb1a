"""Backends know models and adapters; they know no dialogue."""

from vista_local.backends.base import Backend, Generation
from vista_local.backends.scripted import ScriptedBackend

__all__ = ["Backend", "Generation", "ScriptedBackend"]
