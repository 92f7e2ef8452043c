# SPDX-License-Identifier: Apache-2.0
r"""The letters of the text form: words, commas, quotes, escapes.

A blank separates words, `'...'` and `"..."` protect blanks and commas, a backslash takes the next
character as it is. Quotes are removed once per level, and only if they enclose the whole value.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from typing import NamedTuple

from intarsia.errors import Place, TargetError

_QUOTES = "'\""
_PROTECTING = re.compile(r"['\"\\]")
_QUOTED = r"""\\.|'(?:[^'\\]++|\\.)*+'|"(?:[^"\\]++|\\.)*+\""""
_WORD = re.compile(rf"""(?:[^\s'"\\]++|{_QUOTED})++|(?P<loose>['"\\])""", re.DOTALL)
_COMMA = re.compile(rf"""(?:{_QUOTED})|(?P<comma>,)|(?P<loose>['"\\])""", re.DOTALL)
_NEEDS_QUOTES = re.compile(r"""[\s'"\\,]""")
# All kinds are listed where none is near, but not the 891 tags.
_MOST_LISTED, _FIRST_LISTED, _MOST_BESIDE = 80, 8, 16
_MOST_NEAR = 3


class Word(NamedTuple):
    """A run of characters without a blank outside quotes, and where it starts."""

    text: str
    start: int


def outside(text: str) -> Iterator[tuple[int, str]]:
    """Yield position and character of all that is neither quoted, escaped nor a quote.

    Raises:
        TargetError: A quote is not closed, or nothing follows a backslash.
    """
    quote, opened, position = "", 0, 0
    while position < len(text):
        char = text[position]
        if char == "\\":
            if position + 1 == len(text):
                raise TargetError(
                    f"nothing follows the backslash at position {position} of {text!r}",
                    hint="write a backslash that belongs to a value as \\\\",
                    place=Place(text, position),
                )
            position += 1
        elif quote:
            quote = "" if char == quote else quote
        elif char in _QUOTES:
            quote, opened = char, position
        else:
            yield position, char
        position += 1
    if quote:
        raise TargetError(
            f"unbalanced quote {quote} at position {opened} of {text!r}",
            hint=f"close it, or write \\{quote} for a quote that belongs to a value",
            place=Place(text, opened),
        )


def check_quotes(text: str) -> None:
    """Refuse a text that ends inside quotes or after a backslash.

    Raises:
        TargetError: A quote is not closed, or nothing follows a backslash.
    """
    for _ in outside(text):
        pass


def split_words(text: str) -> tuple[Word, ...]:
    """Split at the blanks outside quotes; runs of blanks count as one."""
    words = []
    for match in _WORD.finditer(text):
        if match.lastgroup:
            check_quotes(text)
        words.append(Word(match[0], match.start()))
    return tuple(words)


def split_commas(text: str) -> tuple[str, ...]:
    """Split at the commas outside quotes, and trim every part."""
    if not _PROTECTING.search(text):
        return tuple(part.strip() for part in text.split(","))
    parts, start = [], 0
    for match in _COMMA.finditer(text):
        if match.lastgroup == "loose":
            check_quotes(text)
        if match.lastgroup == "comma":
            parts.append(trim(text[start : match.start()]))
            start = match.end()
    return (*parts, trim(text[start:]))


def cut(text: str, positions: Iterable[int]) -> tuple[Word, ...]:
    """Cut the text at the positions, leaving out the characters there."""
    words, start = [], 0
    for position in positions:
        words.append(Word(text[start:position], start))
        start = position + 1
    words.append(Word(text[start:], start))
    return tuple(words)


def trim(text: str) -> str:
    """Remove outer blanks, except one that a backslash protects."""
    if "\\" not in text:
        return text.strip()
    text = text.lstrip()
    short = text.rstrip()
    backslashes = len(short) - len(short.rstrip("\\"))
    # An odd number of backslashes: the last one protects a blank.
    return text[: len(short) + 1] if backslashes % 2 else short


def is_quoted(text: str) -> bool:
    """Tell whether one pair of quotes encloses the whole text."""
    if len(text) < 2 or text[0] not in _QUOTES or text[-1] != text[0]:  # noqa: PLR2004 - a pair
        return False
    inside = text[1:-1]
    if "\\" in inside:
        inside = re.sub(r"\\.", "__", inside, flags=re.DOTALL)
    return text[0] not in inside and not inside.endswith("\\")


def strip_quotes(text: str) -> str:
    """Remove the quotes around the whole text and the escapes in it; else change nothing."""
    text = trim(text)
    return _unescape(trim(text[1:-1])) if is_quoted(text) else text


def unquote(text: str) -> str:
    """Return the string that a word means; inner quotes stay in it, with what they enclose."""
    text = trim(text)
    if not _PROTECTING.search(text):
        return text
    if is_quoted(text):
        return strip_quotes(text)
    return re.sub(
        r"""('(?:\\.|[^'\\])*'|"(?:\\.|[^"\\])*")|\\(.)""",
        lambda match: match[1] or match[2],
        text,
        flags=re.DOTALL,
    )


def _unescape(text: str) -> str:
    return re.sub(r"\\(.)", r"\1", text, flags=re.DOTALL) if "\\" in text else text


def quote(text: str) -> str:
    """Return a quoted word that `strip_quotes` and `unquote` turn into the text again."""
    escaped = text.replace("\\", "\\\\").replace("'", "\\'")
    if escaped[:1].isspace():
        escaped = "\\" + escaped
    if text[1:] and escaped[-1].isspace():
        escaped = f"{escaped[:-1]}\\{escaped[-1]}"
    return f"'{escaped}'"


def quote_if_needed(text: str) -> str:
    """Quote an empty text, and one with blanks, commas, quotes or backslashes."""
    return text if text and not _NEEDS_QUOTES.search(text) else quote(text)


def suggest(
    name: str, candidates: Iterable[str], *, what: str, listed: Iterable[str] | None = None
) -> str:
    """Return a hint with the nearest spellings, if any are near, and the list if it is short.

    Args:
        name: What was given.
        candidates: What would have been right.
        what: What these are, in the plural.
        listed: What to list, if not all that is known.
    """
    import difflib  # only a wrong name pays for it

    names = tuple(dict.fromkeys(candidates))
    longer = [word for word in names if name and word.startswith(name)]
    first = longer if len(longer) <= _MOST_NEAR else ()  # `onnx` is nearer to `onednn`
    close = difflib.get_close_matches(name, names, n=_MOST_NEAR)
    near = " or ".join(repr(word) for word in list(dict.fromkeys([*first, *close]))[:_MOST_NEAR])
    shown = names if listed is None else tuple(listed)
    if len(shown) > (_MOST_BESIDE if near else _MOST_LISTED):
        rest = len(shown) - _FIRST_LISTED
        text = f"{what}: {', '.join(shown[:_FIRST_LISTED])} and {rest} more"
    else:
        text = f"{what}: {', '.join(shown)}" if shown else f"there are no {what}"
    return f"did you mean {near}? {text}" if near else text
