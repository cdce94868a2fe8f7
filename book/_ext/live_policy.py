"""Write each page's Content-Security-Policy: what the page has, and the place of Pyodide."""

import base64
import hashlib
import re
from collections.abc import Iterable
from pathlib import Path

INLINE = re.compile(r"<script(?![^>]*\ssrc=)([^>]*)>(.*?)</script>", re.S)
LIVE = "/live.js"


def policy(page: str, outside: Iterable[str]) -> str:
    """Return the policy of a page: its own scripts by hash; Python's where it has live cells."""
    scripts, connects, workers = ["'self'"], ["'self'"], ["'none'"]
    for attributes, text in INLINE.findall(page):
        if "application/" not in attributes:
            digest = base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
            scripts.append(f"'sha256-{digest}'")
    if LIVE in page:
        scripts += ["blob:", "'wasm-unsafe-eval'"]  # the worker is a blob, which keeps this policy
        connects += ["blob:", *outside]  # the worker asks the page whether to stop
        workers = ["blob:"]
    return "; ".join(
        (
            "default-src 'none'",
            f"script-src {' '.join(dict.fromkeys(scripts))}",
            "style-src 'self' 'unsafe-inline'",  # the theme and the editor write styles
            "img-src 'self' data:",
            "font-src 'self'",
            "media-src 'self'",
            f"connect-src {' '.join(connects)}",
            f"worker-src {' '.join(workers)}",
            "manifest-src 'self'",
            "base-uri 'none'",
            "form-action 'self'",
        )
    )


def write_policies(paths: Iterable[Path], outside: Iterable[str]) -> None:
    """Write the policy of each page into its head, once."""
    outside = list(outside)
    for path in paths:
        page = path.read_text("utf8")
        if "<head>" not in page or "Content-Security-Policy" in page:
            continue
        content = policy(page, outside)
        tag = f'<head>\n    <meta http-equiv="Content-Security-Policy" content="{content}" />'
        path.write_text(page.replace("<head>", tag, 1), encoding="utf8")
