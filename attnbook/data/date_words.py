"""How five languages write a date: words and styles, as data.

In a style, ``d`` and ``dd`` are the day without and with a leading zero, ``nth`` the day as an
ordinal, ``m`` and ``mm`` the month as a number, ``month`` and ``mon`` its name and abbreviation,
``yyyy`` and ``yy`` the year with four digits and with its last two.
"""

from dataclasses import dataclass


@dataclass(frozen=True)
class DateWords:
    """The words and styles of one language.

    Attributes
    ----------
    weekdays : str
        Seven words, from Monday to Sunday.
    months, abbreviations : str
        Twelve words each, from January to December.
    ordinals : dict
        What follows the number of a day, such as {1: "st"}; 0 is for the days not listed.
    styles : tuple of str
        Formats with the fields above.
    """

    weekdays: str
    months: str
    abbreviations: str
    ordinals: dict[int, str]
    styles: tuple[str, ...]


ENGLISH = DateWords(
    weekdays="Monday Tuesday Wednesday Thursday Friday Saturday Sunday",
    months=(
        "January February March April May June July August September October November December"
    ),
    abbreviations="Jan Feb Mar Apr May Jun Jul Aug Sep Oct Nov Dec",
    ordinals={
        0: "th",
        **dict.fromkeys((1, 21, 31), "st"),
        **dict.fromkeys((2, 22), "nd"),
        **dict.fromkeys((3, 23), "rd"),
    },
    styles=(
        "{weekday}, {d} {month} {yyyy}",
        "{weekday}, {month} {d}, {yyyy}",
        "{month} {nth}, {yyyy}",
        "{mon} {d}, {yyyy}",
        "{d} {mon} {yy}",
        "{nth} of {month} {yyyy}",
        "{dd}/{mm}/{yyyy}",
        "{yyyy}/{mm}/{dd}",
    ),
)

GERMAN = DateWords(
    weekdays="Montag Dienstag Mittwoch Donnerstag Freitag Samstag Sonntag",
    months="Januar Februar März April Mai Juni Juli August September Oktober November Dezember",
    abbreviations="Jan. Feb. März Apr. Mai Juni Juli Aug. Sept. Okt. Nov. Dez.",
    ordinals={0: "."},
    styles=(
        "{weekday}, {nth} {month} {yyyy}",
        "{weekday}, den {nth} {month} {yyyy}",
        "{nth} {month} {yyyy}",
        "{nth} {mon} {yyyy}",
        "{weekday}, {dd}.{mm}.{yyyy}",
        "{d}.{m}.{yyyy}",
        "{dd}.{mm}.{yy}",
    ),
)

FRENCH = DateWords(
    weekdays="lundi mardi mercredi jeudi vendredi samedi dimanche",
    months=("janvier février mars avril mai juin juillet août septembre octobre novembre décembre"),
    abbreviations="janv. févr. mars avr. mai juin juill. août sept. oct. nov. déc.",
    ordinals={0: "", 1: "er"},
    styles=(
        "{weekday} {nth} {month} {yyyy}",
        "le {nth} {month} {yyyy}",
        "{nth} {month} {yyyy}",
        "{nth} {mon} {yyyy}",
        "{dd}/{mm}/{yyyy}",
        "{dd}/{mm}/{yy}",
    ),
)

SPANISH = DateWords(
    weekdays="lunes martes miércoles jueves viernes sábado domingo",
    months=(
        "enero febrero marzo abril mayo junio julio agosto septiembre octubre noviembre diciembre"
    ),
    abbreviations="ene feb mar abr may jun jul ago sep oct nov dic",
    ordinals={0: ""},
    styles=(
        "{weekday}, {d} de {month} de {yyyy}",
        "{d} de {month} de {yyyy}",
        "{d} {mon} {yyyy}",
        "{d}/{m}/{yyyy}",
        "{dd}/{mm}/{yy}",
    ),
)

ITALIAN = DateWords(
    weekdays="lunedì martedì mercoledì giovedì venerdì sabato domenica",
    months=(
        "gennaio febbraio marzo aprile maggio giugno "
        "luglio agosto settembre ottobre novembre dicembre"
    ),
    abbreviations="gen feb mar apr mag giu lug ago set ott nov dic",
    ordinals={0: "", 1: "º"},
    styles=(
        "{weekday} {nth} {month} {yyyy}",
        "{nth} {month} {yyyy}",
        "{d} {mon} {yyyy}",
        "{d}/{m}/{yyyy}",
        "{d}.{m}.{yy}",
    ),
)

LANGUAGES = {"de": GERMAN, "en": ENGLISH, "es": SPANISH, "fr": FRENCH, "it": ITALIAN}
