"""Checks of one function each: a file has the name of its check."""
