"""Put the page together: one HTML file whose content security policy lets only its own code run.

The scripts and styles are in the folder `assets`. The modules of the page import each other, which
a file opened from disk must not do; so they are written into one script, each in a scope of its
own.
"""

from __future__ import annotations

import base64
import gzip
import hashlib
import json
import re
from collections.abc import Iterable, Mapping
from importlib import resources
from typing import Any

from grpo_core.api.runs import finite

_MODULES = (
    "dom",
    "route",
    "filter",
    "source",
    "axes",
    "plots",
    "charts",
    "groups",
    "tokens",
    "attempt",
    "group",
    "forensics",
    "setup",
    "compare",
    "main",
)
"""The modules of the page; each imports only from those before it."""
_IMPORT = re.compile(r'^import \{ ([\w, ]+) \} from "\./(\w+)\.js";$', re.MULTILINE)
_EXPORT = re.compile(r"^export ((?:async )?(?:function|const) (\w+))", re.MULTILINE)
_ASSETS = resources.files("grpo_report.html") / "assets"


def html_page(data: Mapping[str, Any], chunks: Iterable[tuple[str, str]] = ()) -> str:
    """Return the page.

    Args:
        data: what the page shows at once, as JSON data; `served` says whether it asks a server.
        chunks: the id and the packed text (`packed`) of each further piece of data.
    """
    style = _asset("uplot/uPlot.min.css") + _asset("page.css")
    library, script = _asset("uplot/uPlot.iife.min.js"), _bundle()
    policy = security_policy(served=bool(data["served"]))
    pieces = "".join(
        f'<script type="application/octet-stream" id="{name}">{text}</script>\n'
        for name, text in chunks
    )
    return (
        '<!doctype html>\n<html lang="en">\n<head>\n<meta charset="utf-8">\n'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}">\n'
        '<meta name="viewport" content="width=device-width, initial-scale=1">\n'
        '<meta name="referrer" content="no-referrer">\n<title>grpo-core</title>\n'
        f"<style>{style}</style>\n</head>\n<body>\n"
        "<noscript>This page needs JavaScript; nothing is loaded from elsewhere.</noscript>\n"
        f'<script type="application/json" id="page-data">{json_text(data)}</script>\n'
        f'<script>{library}</script>\n<script type="module">{script}</script>\n'
        f"{pieces}</body>\n</html>\n"
    )


def security_policy(*, served: bool) -> str:
    """Return the content security policy: the page's own code by its digest, and nothing else.

    Args:
        served: whether the page may ask the server that it came from.
    """
    style = _asset("uplot/uPlot.min.css") + _asset("page.css")
    scripts = " ".join(_digest(text) for text in (_asset("uplot/uPlot.iife.min.js"), _bundle()))
    connections = "'self'" if served else "'none'"
    return (
        f"default-src 'none'; script-src {scripts}; style-src {_digest(style)}; img-src data:; "
        f"connect-src {connections}; "
        "base-uri 'none'; form-action 'none'"
    )


def json_text(data: Any) -> str:
    """Return JSON that can stand in a script element: ASCII, and without a `<`."""
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"))
    return text.replace("<", r"\u003c")


def packed(data: Any) -> str:
    """Return data as JSON, compressed and in base64, which the page unpacks when it needs them."""
    text = json.dumps(finite(data), allow_nan=False, separators=(",", ":"))
    return base64.b64encode(gzip.compress(text.encode(), 6, mtime=0)).decode()


def _bundle() -> str:
    """Return the modules as one script; the last one stands outside, as it waits for data."""
    texts = ["const modules = {};"]
    for name in _MODULES:
        source = _IMPORT.sub(r"const { \1 } = modules.\2;", _asset(f"{name}.js"))
        exports = ", ".join(match[2] for match in _EXPORT.finditer(source))
        source = _EXPORT.sub(r"\1", source)
        texts.append(
            f"{{\n{source}}}"
            if name == _MODULES[-1]
            else f"modules.{name} = (() => {{\n{source}return {{ {exports} }};\n}})();"
        )
    return "\n".join(texts)


def _asset(name: str) -> str:
    text = _ASSETS.joinpath(*name.split("/")).read_text(encoding="utf-8")
    return text.replace("\r\n", "\n")  # as a checkout on Windows may have it; HTML drops the CR


def _digest(text: str) -> str:
    digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
    return f"'sha256-{digest}'"
