"""Where files of this machine alone are kept: fetched weights, and what was found out here."""

import os
import sys
from pathlib import Path


def cache() -> Path:
    """Return the folder of all such files: ``ATTNBOOK_CACHE``, or one of the user's own."""
    if given := os.environ.get("ATTNBOOK_CACHE"):
        return Path(given)
    if sys.platform == "win32":
        base = os.environ.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local"
    elif sys.platform == "darwin":
        base = Path.home() / "Library" / "Caches"
    else:
        base = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(base) / "attnbook"
