"""What is said to the learner, in English or another language: gettext's catalogues in `languages/`, whose keys are the English texts
themselves.

An English text that changes has no translation until its catalogue has the new one; tests/lab/test_learn_languages.py says so. Code, names,
cases and figures are in no catalogue."""

from __future__ import annotations

import ast
import gettext
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from functools import cache
from pathlib import Path

from markupsafe import Markup

FOLDER = Path(__file__).parent / "languages"
ENGLISH = "en"
NAMES = {ENGLISH: "English", "zh": "中文"}  # as their readers write them
_NOW: ContextVar[str] = ContextVar("language", default=ENGLISH)


def languages() -> tuple[str, ...]:
    """English, and those that have a catalogue."""
    return (ENGLISH, *sorted(p.stem for p in FOLDER.glob("*.po")))


class Catalogue(gettext.NullTranslations):
    """A .po file, each of its texts in one line. Raises ValueError with the line for another form."""

    def __init__(self, path: Path) -> None:
        super().__init__()
        self.texts: dict[str, str] = {}
        key = None
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1):
            word, _, text = line.partition(" ")
            if word == "msgid":
                key = ast.literal_eval(text)
                if key in self.texts:
                    raise ValueError(f"{path.name}:{number}: this text stands twice")
            elif word == "msgstr" and key is not None:
                self.texts[key], key = ast.literal_eval(text), None
            elif line and not line.startswith("#"):
                raise ValueError(f"{path.name}:{number}: a line is msgid or msgstr with its whole text, or a comment")

    def gettext(self, message: str) -> str:
        return self.texts.get(message) or super().gettext(message)


@cache
def catalogue(language: str) -> gettext.NullTranslations:
    """Raises ValueError for a language that has none."""
    if language not in languages():
        raise ValueError(f"no language {language!r}; there are {', '.join(languages())}")
    if language == ENGLISH:
        return gettext.NullTranslations()
    return Catalogue(FOLDER / f"{language}.po")


@contextmanager
def speaking(language: str) -> Iterator[None]:
    """What is said within is said in this language. Raises ValueError for one that does not exist."""
    catalogue(language)
    before = _NOW.set(language)
    try:
        yield
    finally:
        _NOW.reset(before)


def spoken() -> str:
    return _NOW.get()


def _(text: str, /, **about: object) -> str:
    """The text in the language that is spoken, its `{names}` replaced; as it is where nothing stands for it."""
    found = catalogue(_NOW.get()).gettext(text) if text else ""  # that of "" is the catalogue's head
    return found.format(**about) if about else found


def html(text: str, /, **about: object) -> Markup:
    """The same for a text that is HTML, into which values are put escaped."""
    return Markup(_(text)).format(**about)
