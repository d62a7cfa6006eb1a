"""A page from its data: template, styles, scripts and JSON in one file that opens no connection.

The data stand in a `<script type="application/json">`, where no text of a conversation can end the element or run;
the scripts put every text in as text. The page's content security policy allows the two inline blocks by their
hashes and nothing else: no other script or style, no request.
"""

from __future__ import annotations

import base64
import hashlib
import html
import json
from collections.abc import Mapping
from functools import cache
from importlib.resources import files
from typing import Any, Literal

from vista_local.corrections import escape_surrogates

Kind = Literal["report", "compare"]

_STYLES: dict[Kind, tuple[str, ...]] = {
    "report": ("base.css", "report.css", "print.css"),
    "compare": ("base.css", "compare.css", "print.css"),
}
_SCRIPTS: dict[Kind, tuple[str, ...]] = {
    "report": (
        "common.js",
        "charts.js",
        "corrections.js",
        "overview.js",
        "list.js",
        "conversation.js",
        "editing.js",
        "report.js",
    ),
    "compare": ("common.js", "charts.js", "compare.js"),
}


@cache
def _assets(names: tuple[str, ...]) -> str:
    folder = files("vista_local.report") / "assets"
    return "\n".join((folder / name).read_text(encoding="utf-8") for name in names)


def _script(kind: Kind) -> str:
    # One strict scope: the files share names with each other, and with nothing else.
    return f'(() => {{\n"use strict";\n{_assets(_SCRIPTS[kind])}\n}})();'


def embedded(data: Mapping[str, Any]) -> str:
    """JSON that may stand in a script element: no `<`, so that no text in it can end the element."""
    text = json.dumps(data, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    for character in "<>&\u2028\u2029":
        text = text.replace(character, f"\\u{ord(character):04x}")
    return escape_surrogates(text)


def _hash(block: str) -> str:
    return "'sha256-" + base64.b64encode(hashlib.sha256(block.encode()).digest()).decode() + "'"


def render_page(data: Mapping[str, Any], kind: Kind = "report") -> str:
    """The page as text, to be written in UTF-8.

    Args:
        data: `report_data` or `compare_data`; `title` is the page's title.
        kind: which page.
    """
    style, script = _assets(_STYLES[kind]), _script(kind)
    policy = "; ".join(
        (
            "default-src 'none'",
            f"script-src {_hash(script)}",
            f"style-src {_hash(style)}",
            "img-src data:",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    title = html.escape(escape_surrogates(str(data["title"])))
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="color-scheme" content="light dark">\n<meta name="referrer" content="no-referrer">\n'
        f"<title>{title}</title>\n<style>{style}</style>\n</head>\n"
        '<body>\n<div id="app"><p class="loading">Opening …</p></div>\n'
        "<noscript><p>This page needs JavaScript. It opens no connection; everything is in this file.</p></noscript>\n"
        f'<script type="application/json" id="data">{embedded(data)}</script>\n'
        f"<script>{script}</script>\n</body>\n</html>\n"
    )
