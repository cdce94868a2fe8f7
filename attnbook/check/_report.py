"""The report, for the checks that still look for it here."""

from attnbook.check.report import CheckFailed, Report

__all__ = ["CheckFailed", "Report"]
