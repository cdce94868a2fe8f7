"""The ways to get the mask of attention wrong."""

from attnbook.check.engine.text import Text

TEXT = Text(globals())

MASK_MISTAKES = TEXT.mistakes
