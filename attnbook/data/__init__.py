"""Data sets that need no network: `digits`, in the package, and `text`, in Python itself."""

from attnbook.data.digits import Digits, digits
from attnbook.data.text import text

__all__ = ["Digits", "digits", "text"]
