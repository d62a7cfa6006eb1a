"""What the tiny model of conftest.py is made of; in a module of its own because two folders have a conftest."""

from __future__ import annotations

SPECIAL_TOKENS = ("<|endoftext|>", "<|im_start|>", "<|im_end|>")

#: The default base's form: system, user and assistant messages between special tokens.
CHATML = (
    "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\n' + message['content'] + '<|im_end|>\n' }}"
    "{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\n' }}{% endif %}"
)

#: Longest sequence, in tokens.
LIMIT = 1024
