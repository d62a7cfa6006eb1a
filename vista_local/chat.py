"""Prompts to token ids, in the base's own chat template, with content encoded as plain text.

The template is rendered once around sentinels and cut there: its own pieces may hold special
tokens, what comes between never does. So a chat that contains "<|im_end|>" can't end its message.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from vista_local.errors import VistaError
from vista_local.labels import UNVERIFIABLE, UNVERIFIABLE_LABELS, Label
from vista_local.prompts import Prompt
from vista_local.text import tail_words

_SYSTEM, _USER = "\u2402SYSTEM\u2403", "\u2402USER\u2403"

#: Words tried for each answer, best first; the first that is one token in the base's tokenizer wins.
LABEL_WORD_CANDIDATES: dict[str, tuple[str, ...]] = {
    Label.VERIFIED.value: ("Yes", "yes"),
    UNVERIFIABLE: ("No", "no"),
    Label.CONTRADICTED.value: ("False", "false", "Conflict", "A"),
    Label.LACKING_EVIDENCE.value: ("Missing", "Unknown", "missing", "unknown", "B"),
    Label.OUT_OF_SCOPE.value: ("Personal", "personal", "Opinion", "C"),
    Label.ABSTENTION.value: ("Cannot", "cannot", "Declined", "D"),
}

#: Answers of each classifying stage, in the order of its label-word list.
STAGE_LABELS: dict[str, tuple[str, ...]] = {
    "verify": (Label.VERIFIED.value, UNVERIFIABLE),
    "categorise": tuple(label.value for label in UNVERIFIABLE_LABELS),
}


def _control_tokens(tokenizer: Any) -> re.Pattern[str] | None:
    """Matches added tokens that steer a model and are not marked as special; None if there are none.

    `split_special_tokens` spells out special tokens only, and Qwen3's `<think>` and `<tool_call>`, for
    one, are none. Added tokens without brackets (runs of spaces or line breaks) are text.
    """
    added = set(tokenizer.get_added_vocab()) - set(tokenizer.all_special_tokens)
    steering = sorted(t for t in added if len(t) > 2 and t[0] in "<[" and t[-1] in ">]")
    return re.compile("|".join(map(re.escape, steering))) if steering else None


class ChatEncoder:
    """Encodes prompts for one tokenizer.

    Raises:
        VistaError: the tokenizer has no chat template, or its template drops the user's text.
    """

    def __init__(self, tokenizer: Any) -> None:
        if not getattr(tokenizer, "chat_template", None):
            raise VistaError("the base model's tokenizer has no chat template; use an instruction-tuned base")
        self.tokenizer = tokenizer
        self._hooks = _control_tokens(tokenizer)
        #: Whether the template knows a thinking mode, which is always off here.
        self.thinks = "enable_thinking" in str(tokenizer.chat_template)
        user = {"role": "user", "content": _USER}
        try:
            text = self._render([{"role": "system", "content": _SYSTEM}, user])
            self.system_in_user = _SYSTEM not in text
        except Exception:  # templates without a system role raise an error of their own
            self.system_in_user = True
        if self.system_in_user:
            text = self._render([user])
        if text.count(_USER) != 1:
            raise VistaError("the base model's chat template does not render a user message once")
        head, tail = text.split(_USER)
        pieces = [head] if self.system_in_user else head.split(_SYSTEM)
        self._open, self._middle = pieces[0], "" if self.system_in_user else pieces[1]
        self.before_system = self._special(self._open)
        self.before_user = self._special(self._middle) if self._middle else []
        self.after_user = self._special(tail)
        if not self.after_user:
            raise VistaError("the base model's chat template has no generation prompt")

    def _render(self, messages: list[dict[str, str]]) -> str:
        # Bases with a thinking mode (Qwen3) answer at once with it off; others ignore the argument.
        return str(
            self.tokenizer.apply_chat_template(
                messages, tokenize=False, add_generation_prompt=True, enable_thinking=False
            )
        )

    def _special(self, text: str) -> list[int]:
        return list(self.tokenizer(text, add_special_tokens=False).input_ids)

    def plain(self, text: str) -> list[int]:
        """Token ids of `text` as plain text: special tokens in it are spelled out."""
        return [
            token
            for piece in self._unhooked(text)
            for token in self.tokenizer(piece, add_special_tokens=False, split_special_tokens=True).input_ids
        ]

    def _unhooked(self, text: str) -> list[str]:
        """`text` cut inside every control token that the tokenizer would recognise in it."""
        pieces, start = [], 0
        while self._hooks is not None and (match := self._hooks.search(text, start)):
            pieces.append(text[start : match.start() + 1])
            start = match.start() + 1
        return [*pieces, text[start:]]

    def prefix(self, prompt: Prompt) -> list[int]:
        """Token ids up to the end of the user's text, the message still open."""
        if self.system_in_user:
            return self.before_system + self.plain(f"{prompt.system}\n\n{prompt.user}")
        return self.before_system + self.plain(prompt.system) + self.before_user + self.plain(prompt.user)

    def branch(self, text: str) -> list[int]:
        """Token ids of a claim that continues a prefix, up to the answer position."""
        return self.plain(" " + " ".join(text.split())) + self.after_user

    def whole(self, prompt: Prompt) -> list[int]:
        """Token ids of a complete prompt, up to the answer position."""
        return self.prefix(prompt) + self.after_user

    def count(self, text: str) -> int:
        """Number of tokens of `text`."""
        return len(self.plain(text))

    def tail(self, text: str, limit: int) -> str:
        """The last words of `text` that fit into `limit` tokens, behind an ellipsis where cut."""
        return tail_words(text, limit, self.count)

    def label_words(self, stage: str) -> dict[str, str]:
        """The answer words of a classifying stage for this tokenizer: label name to word.

        Raises:
            VistaError: no candidate is a single token, or two labels would share one.
        """
        chosen: dict[str, str] = {}
        for label in STAGE_LABELS[stage]:
            candidates = LABEL_WORD_CANDIDATES[label]
            word = next((w for w in candidates if len(self.plain(w)) == 1 and w not in chosen.values()), None)
            if word is None:
                raise VistaError(f"no label word for {label} is a single token of this base: tried {candidates}")
            chosen[label] = word
        self.label_ids(list(chosen.values()))
        return chosen

    def label_ids(self, words: Sequence[str]) -> list[int]:
        """Token ids of label words, checked to be one distinct token each.

        Raises:
            VistaError: a word is not one token, or two words begin alike.
        """
        ids = [self.plain(word) for word in words]
        for word, tokens in zip(words, ids, strict=True):
            if len(tokens) != 1:
                raise VistaError(f"label word {word!r} is {len(tokens)} tokens of this base, not one")
        flat = [tokens[0] for tokens in ids]
        if len(set(flat)) != len(flat):
            raise VistaError(f"two label words share a token of this base: {list(words)}")
        return flat
