"""What a collected trace says of its making, and the check that everything which reads traces begins with."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from vista_local.errors import InputError
from vista_local.fewshot import FEWSHOT_VERSION
from vista_local.prompts import PROMPT_VERSION

#: Form of the `trace` fields.
FORM = "vista-local-trace/1"


def trace_versions() -> dict[str, str]:
    """Versions of the prompts: the teacher's instructions and examples, and the messages that both sides share."""
    return {"fewshot_version": FEWSHOT_VERSION, "prompt_version": PROMPT_VERSION}


def check_trace(record: Mapping[str, Any], where: str) -> None:
    """Refuse a trace of other prompts; a conversation without `trace` is none, and passes.

    Raises:
        InputError: the trace is of another form, or was made with other prompts.
    """
    trace = record.get("trace")
    if trace is None:
        return
    if not isinstance(trace, Mapping) or trace.get("form") != FORM:
        found = trace.get("form") if isinstance(trace, Mapping) else trace
        raise InputError(f"trace form {found!r}; accepted: {FORM}", where)
    for name, current in trace_versions().items():
        if trace.get(name) != current:
            raise InputError(
                f"a trace of {name} {trace.get(name)!r}, this version of vista-local has {current!r}: labels of other "
                "prompts don't mix; collect again into another file",
                where,
            )
