"""Settings of a teacher: a chat model behind an OpenAI-compatible endpoint, read from a YAML file.

Keys are named by environment variable and never stand in the file. The settings that a result
depends on are in its run record; speed, money and patience are not.
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any, Literal
from urllib.parse import urlsplit

from pydantic import BaseModel, ConfigDict, Field, field_validator

from vista_local.config import check_settings, read_settings
from vista_local.errors import InputError, VistaError
from vista_local.fewshot import Shots
from vista_local.history import ContextMode
from vista_local.offline import is_loopback

#: Request fields that the pipeline fills itself.
_OWN_FIELDS = frozenset(
    "model messages max_tokens max_completion_tokens temperature seed logprobs top_logprobs stream n".split()
)


class Prices(BaseModel):
    """Money for a million tokens, in the currency of `--max-cost`."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    input: float = Field(ge=0, allow_inf_nan=False)
    output: float = Field(ge=0, allow_inf_nan=False)

    def cost(self, prompt_tokens: int, completion_tokens: int) -> float:
        """Price of a call."""
        return (prompt_tokens * self.input + completion_tokens * self.output) / 1e6


class TeacherConfig(BaseModel):
    """One teacher. Only `base_url` and `model` are needed."""

    model_config = ConfigDict(extra="forbid", frozen=True)

    base_url: str = Field(description="address of the API up to and without /chat/completions")
    model: str = Field(min_length=1, description="name under which the endpoint knows the model")
    api_key_env: str | None = Field(None, description="environment variable that holds the key; null: no key needed")
    proxy: str | None = Field(None, description="HTTP proxy; proxies of the environment are not used")

    shots: Shots = Field("few", description="instructions with examples, or without")
    context: ContextMode = Field("recent", description="history shown to verify and categorise")
    contradiction: bool = Field(False, description="ask of every turn whether it contradicts the conversation")

    temperature: float | None = Field(0.0, ge=0, description="null: not sent, for models that refuse it")
    seed: int | None = None
    max_tokens: int = Field(2048, ge=16, description="longest claim list, reasoning included")
    label_max_tokens: int = Field(64, ge=1, description="longest label answer, reasoning included")
    max_tokens_key: Literal["max_tokens", "max_completion_tokens"] = "max_tokens"
    logprobs: int = Field(0, ge=0, le=20, description="alternatives to ask for at a label; 0: labels only")
    extra_body: dict[str, Any] = Field(default_factory=dict, description="further request fields, sent as they are")
    max_reference_tokens: int = Field(8000, ge=64, description="longer references are shown in windows (estimated)")
    max_turn_tokens: int = Field(2000, ge=32, description="longer turns are decomposed in chunks (estimated)")

    concurrency: int = Field(8, ge=1, le=256, description="calls in flight")
    requests_per_minute: int | None = Field(None, ge=1)
    tokens_per_minute: int | None = Field(None, ge=1)
    max_retries: int = Field(6, ge=0, description="of a call that failed for a passing reason")
    timeout: float = Field(120.0, gt=0, description="seconds without a sign of life")
    prices: Prices | None = None
    cache: str | None = Field(None, description="file of answers; null: teacher-answers.sqlite in the cache folder")

    @field_validator("base_url", "proxy")
    @classmethod
    def _is_url(cls, value: str | None) -> str | None:
        if value is None:
            return None
        parts = urlsplit(value)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ValueError("an address such as https://host/v1 is expected")
        if parts.username or parts.password:
            raise ValueError("keys and passwords don't belong into an address: use api_key_env")
        return value.rstrip("/")

    @field_validator("extra_body")
    @classmethod
    def _leaves_own_fields(cls, value: dict[str, Any]) -> dict[str, Any]:
        if taken := sorted(_OWN_FIELDS & value.keys()):
            raise ValueError(f"{', '.join(taken)} can't be set here: a setting of its own, or fixed by the pipeline")
        return value

    @property
    def host(self) -> str:
        """The endpoint's host."""
        return str(urlsplit(self.base_url).hostname)

    @property
    def hosts(self) -> tuple[str, ...]:
        """Every host that a call connects to or goes to."""
        return (self.host,) if self.proxy is None else (self.host, str(urlsplit(self.proxy).hostname))

    @property
    def is_local(self) -> bool:
        """Whether calls stay on this machine."""
        return all(is_loopback(host) for host in self.hosts)

    def api_key(self) -> str | None:
        """The key, from its environment variable; `None` where none is needed.

        Raises:
            VistaError: the variable is not set, or holds what can't be sent as a key; names it, never the key.
        """
        if self.api_key_env is None:
            return None
        key = os.environ.get(self.api_key_env, "").strip()
        if not key:
            raise VistaError(
                f"the environment variable {self.api_key_env} is not set; it should hold the key for {self.host}"
            )
        if strange := next((i for i, c in enumerate(key, start=1) if not "!" <= c <= "~"), None):
            raise VistaError(
                f"the environment variable {self.api_key_env}: character {strange} is none that a key can have (an "
                "accent, a space, a typographic mark): was it pasted whole and alone?"
            )
        return key

    def record(self) -> dict[str, Any]:
        """The settings that answers depend on, without those at work in `ScoreConfig`."""
        names = (
            "base_url model shots contradiction temperature seed max_tokens label_max_tokens logprobs extra_body "
            "max_reference_tokens max_turn_tokens"
        )
        return self.model_dump(mode="json", include=set(names.split()))


def load_teacher(path: Path) -> TeacherConfig:
    """Read a teacher's YAML file.

    Raises:
        InputError: the file is unreadable, a key or value is not known (names it and the nearest), or
            a secret stands in the file (never repeated in the message).
    """
    data = read_settings(path)
    if "api_key" in data:
        raise InputError(
            "setting 'api_key': keys are never read from a file; put the key into an environment variable and name "
            "that in 'api_key_env'",
            str(path),
        )
    variable = data.get("api_key_env")
    if isinstance(variable, str) and not re.fullmatch(r"[A-Za-z_][A-Za-z0-9_]*", variable):
        raise InputError("setting 'api_key_env': the name of an environment variable is expected, not a key", str(path))
    known = [*TeacherConfig.model_fields, *(f"prices.{name}" for name in Prices.model_fields)]
    return check_settings(TeacherConfig, data, str(path), known)
