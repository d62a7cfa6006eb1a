"""The corpus's inputs that are binary or huge: made when they are needed, the rest are files beside this one."""

from __future__ import annotations

import codecs
import gzip
import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

USER = {"role": "user", "text": "Is the bridge open?"}
OPEN = "The bridge is open."
MEGABYTE = 1 << 20


def record(text: str = OPEN, reference: Any = OPEN, id: str = "good", **fields: Any) -> dict[str, Any]:
    """A conversation of a question and one answer."""
    return {"id": id, "turns": [USER, {"role": "assistant", "text": text, "reference": reference}], **fields}


def line(*records: Any) -> str:
    return "".join(json.dumps(r, ensure_ascii=False) + "\n" for r in records)


def packed(data: bytes) -> bytes:
    return gzip.compress(data, mtime=0)


def damaged(data: bytes) -> bytes:
    whole = bytearray(packed(data))
    whole[-8] ^= 0xFF  # the checksum
    return bytes(whole)


GOOD, MANY = line(record()), line(*(record(id=str(n)) for n in range(500)))
NOISE = random.Random(17).randbytes(5_000)

#: Content by file name.
BUILDERS: dict[str, Callable[[], bytes]] = {
    "empty.jsonl": lambda: b"",
    "byte_order_mark.jsonl": lambda: codecs.BOM_UTF8 + GOOD.encode(),
    "byte_order_mark_alone.jsonl": lambda: codecs.BOM_UTF8,
    "utf16_little.jsonl": lambda: codecs.BOM_UTF16_LE + MANY.encode("utf-16-le"),
    "utf16_big.jsonl": lambda: codecs.BOM_UTF16_BE + GOOD.encode("utf-16-be"),
    "utf16_odd_length.jsonl": lambda: codecs.BOM_UTF16_LE + GOOD.encode("utf-16-le") + b"x",
    "utf16_without_mark.jsonl": lambda: GOOD.encode("utf-16-le"),
    "utf32.jsonl": lambda: codecs.BOM_UTF32_LE + GOOD.encode("utf-32-le"),
    "latin1.jsonl": lambda: GOOD.encode() + line(record(id="b", text="Café.")).encode("latin-1"),
    "surrogates_as_bytes.jsonl": lambda: GOOD.encode() + b'{"id": "\xed\xa0\x80"}\n',
    "windows_line_ends.jsonl": lambda: line(record(), record(id="b")).replace("\n", "\r\n").encode(),
    "old_mac_line_ends.jsonl": lambda: line(record(), record(id="b")).replace("\n", "\r").encode(),
    "zeros.jsonl": lambda: bytes(10_000),
    "noise.jsonl": lambda: NOISE,
    "picture.png": lambda: b"\x89PNG\r\n\x1a\n" + NOISE,
    "archive.zip": lambda: b"PK\x03\x04" + NOISE,
    "good.gz": lambda: packed(GOOD.encode()),
    "good_gzip_named.jsonl": lambda: packed(MANY.encode()),
    "cut.gz": lambda: packed(MANY.encode())[:-40],
    "cut_in_the_header.gz": lambda: packed(GOOD.encode())[:5],
    "damaged.gz": lambda: damaged(MANY.encode()),
    "tail_behind.gz": lambda: packed(GOOD.encode()) + b"tail",
    "of_nothing.gz": lambda: packed(b""),
    "twice_packed.gz": lambda: packed(packed(GOOD.encode())),
    "bomb.gz": lambda: packed(b" " * (32 * MEGABYTE)),
    "nested_deeply.jsonl": lambda: b'{"turns": ' + b"[" * 200_000,
    "nested_in_a_field.jsonl": lambda: (line(record())[:-2] + ', "x": ' + "[" * 99_999 + "]" * 99_999 + "}\n").encode(),
    "number_of_5000_digits.jsonl": lambda: b'{"id": ' + b"9" * 5_000 + b"}\n",
    "turns_300.jsonl": lambda: line({"id": "long", "turns": record()["turns"] * 150}).encode(),
    "megabyte_reply.jsonl": lambda: line(record(text="The bridge is open today. " * 40_000)).encode(),
    "megabyte_question.jsonl": lambda: line(
        {"id": "q", "turns": [{"role": "user", "text": "word " * 200_000}, *record()["turns"][1:]]}
    ).encode(),
    "megabyte_word.jsonl": lambda: line(record(text="x" * MEGABYTE)).encode(),
    "many_initials.jsonl": lambda: line(record(text="a. " * 100_000)).encode(),
    "megabyte_of_dots.jsonl": lambda: line(record(text="." * MEGABYTE + "x")).encode(),
    "megabyte_reference.jsonl": lambda: line(record(reference="The road is closed today. " * 40_000)).encode(),
    "megabyte_of_spaces.jsonl": lambda: line(record(text=OPEN + " " * MEGABYTE + OPEN)).encode(),
    "megabyte_id.jsonl": lambda: line(record(id="x" * MEGABYTE)).encode(),
    "megabyte_role.jsonl": lambda: line({"id": "a", "turns": [{"role": "x" * MEGABYTE, "text": "x"}]}).encode(),
    "megabyte_first_line.jsonl": lambda: b"x" * MEGABYTE,
    "many_empty_passages.jsonl": lambda: line(record(reference=[""] * 50_000)).encode(),
    "fields_1000_unknown.jsonl": lambda: line(record(**{f"field{n}": 0 for n in range(1_000)})).encode(),
    "settings_binary.yaml": lambda: b"\xff\xfe\x00" + NOISE,
    "settings_bomb.yaml": lambda: (
        "a0: &a0 [x, x]\n" + "".join(f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]\n" for n in range(1, 30))
    ).encode(),
}  # fmt: skip


def path_of(name: str, folder: Path) -> Path:
    """The file of the corpus with this name, made in `folder` where it is one of the built ones."""
    committed = Path(__file__).with_name(name)
    if name not in BUILDERS:
        return committed
    built = folder / name
    built.write_bytes(BUILDERS[name]())
    return built
