"""The claim metric for the `evaluate` library: `evaluate.load(vista_local.vista_metric.PATH)`, without a connection."""

from pathlib import Path

#: What `evaluate.load` takes: a local path is never looked up on the hub.
PATH = str(Path(__file__).with_name("vista_metric.py"))

__all__ = ["PATH"]
