"""Long texts in pieces of whole sentences: chunks of a turn, windows of a reference."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from vista_local.text import split_sentences

Count = Callable[[str], int]


def split_long(sentence: str, limit: int, count: Count) -> list[str]:
    """Cut a sentence of more than `limit` tokens at word boundaries (inside words as a last resort).

    Raises:
        ValueError: `limit` is less than 1.
    """
    if limit < 1:
        raise ValueError(f"pieces of {limit} tokens: at least 1 is needed")
    if count(sentence) <= limit:
        return [sentence]
    pieces: list[str] = []
    current = ""
    for word in sentence.split():
        # One unbroken string, such as base64 or a script without spaces. It is measured only in part:
        # counting what is left of a megabyte for each piece would take quadratic time.
        while len(word) > 64 * limit or count(word) > limit:
            if current:
                pieces.append(current)
                current = ""
            size = min(len(word), 8 * limit)
            while size > 1 and count(word[:size]) > limit:
                size = max(1, size // 2)
            pieces.append(word[:size])
            word = word[size:]
            if not word:
                break
        if not word:
            continue
        joined = f"{current} {word}" if current else word
        if current and count(joined) > limit:
            pieces.append(current)
            current = word
        else:
            current = joined
    if current:
        pieces.append(current)
    return pieces


def chunk_turn(text: str, limit: int, count: Count) -> list[str]:
    """Split a turn into chunks of whole sentences of at most `limit` tokens; a short turn is one chunk.

    A sentence longer than `limit` becomes chunks of its own. Returns one chunk for an empty turn.
    """
    if count(text) <= limit:
        return [text]
    chunks: list[str] = []
    current: list[str] = []
    used = 0
    for sentence in split_sentences(text):
        for piece in split_long(sentence, limit, count):
            size = count(piece) + 1
            if current and used + size > limit:
                chunks.append("\n".join(current))
                current, used = [], 0
            current.append(piece)
            used += size
    if current:
        chunks.append("\n".join(current))
    return chunks or [text]


def windows(passages: Sequence[str], limit: int, count: Count, overlap: int = 2) -> list[str]:
    """Split a reference into windows of whole sentences of at most `limit` tokens.

    Consecutive windows share `overlap` sentences as long as they fit beside new text. A sentence
    longer than `limit` is split by tokens. A reference that fits is one window, unchanged.

    Returns:
        At least one window; `[""]` for an empty reference.
    """
    whole = "\n".join(passages)
    if count(whole) <= limit:
        return [whole]
    pieces = [p for passage in passages for s in split_sentences(passage) for p in split_long(s, limit, count)]
    sizes = [count(p) + 1 for p in pieces]
    result: list[str] = []
    start = 0
    while start < len(pieces):
        end, used = start, 0
        while end < len(pieces) and (end == start or used + sizes[end] <= limit):
            used += sizes[end]
            end += 1
        result.append("\n".join(pieces[start:end]))
        if end == len(pieces):
            break
        # Overlap only as far as the next window still gains a sentence.
        back = overlap
        while back and (end - back <= start or sum(sizes[end - back : end + 1]) > limit):
            back -= 1
        start = end - back
    return result or [""]
