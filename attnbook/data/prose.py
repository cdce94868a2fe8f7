"""English prose that every CPython carries."""

import unicodedata

_ASCII = str.maketrans(
    {"‘": "'", "’": "'", "“": '"', "”": '"', "–": "-", "—": "-", "…": "...", "ß": "ss"}
)


def text() -> str:
    """Return the Python language reference as one string of about 370,000 characters.

    The string consists of the topics that ``help("for")`` and similar calls print: technical prose
    and grammar in lines of about 72 characters, in alphabetical order. A paragraph that several
    topics share appears only once, so that held-out text is new.

    Returns
    -------
    str
        Only printable ASCII and newlines, so at most 96 different characters. Typographic quotes,
        dashes and dots become plain ones; other characters lose their accent or are left out.

    Raises
    ------
    ImportError
        If this Python lacks the module `pydoc_data`, as Pyodide does until it is loaded.

    Notes
    -----
    The text differs between versions of Python, so name the version, ``sys.version``, with every
    number that you compute from it.
    Licence: PSF License Version 2, copyright Python Software Foundation.
    Cost: the first call imports a file of about 0.8 MB.

    Examples
    --------
    >>> print(text()[:70])
    The "assert" statement
    **********************
    <BLANKLINE>
    Assert statements are a
    """
    try:
        from pydoc_data.topics import topics
    except ImportError as error:
        raise ImportError(
            "attnbook.data.text needs pydoc_data of Python's standard library, which this Python "
            'lacks; Pyodide has it after loadPackage("pydoc_data")'
        ) from error
    paragraphs = "\n\n".join(topics[name].strip("\n") for name in sorted(topics)).split("\n\n")
    return _to_ascii("\n\n".join(dict.fromkeys(paragraphs)) + "\n")


def _to_ascii(prose: str) -> str:
    """Return `prose` in printable ASCII and newlines."""
    letters = unicodedata.normalize("NFKD", prose.translate(_ASCII).expandtabs())
    return "".join(x for x in letters if x == "\n" or " " <= x <= "~")
