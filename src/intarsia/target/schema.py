# SPDX-License-Identifier: Apache-2.0
"""Typed attributes: what a kind declares, how a value is read, checked, normalised and printed.

Nothing is coerced in dictionaries and JSON. In text the schema's type decides how a word is read.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Literal, NoReturn

from intarsia.errors import Place, TargetError
from intarsia.target.frozen import FrozenMap
from intarsia.target.raw import Raw
from intarsia.target.text import (
    is_quoted,
    outside,
    quote,
    quote_if_needed,
    split_commas,
    strip_quotes,
    suggest,
    unquote,
)

SCALARS = ("int", "bool", "string", "target", "map")
_ARRAY = re.compile(r"array<(.+)>")
_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]*")
_INT_LIMIT = 2**63
_SURROGATE = re.compile("[\ud800-\udfff]")

BuildTarget = Callable[[Any, str], Any]
"""Makes a target of any of its forms; the second argument is the path for messages."""


@dataclass(frozen=True, slots=True)
class AttrSpec:
    """One attribute that targets of a kind may have.

    Attributes:
        name: As written after the dash.
        type: `int`, `bool`, `string`, `target`, `map` or `array<...>` of one of these.
        help: One line for `target show`.
        default: The value when none is given; None means that the attribute is then absent.
        order: Of an array: `ordered`, `unordered` (kept sorted, without duplicates) or
            `last-wins` (of `+x` and `-x` the last one counts, and `x` means `+x`).
        unit: Of a number, such as `bytes`.
        choices: Of a string or a number: the values that it may have; empty means any.
        minimum: Of a number: the least that it may be; None means any.
        maximum: Of a number: the most that it may be; None means any.
        follows: A feature of the target that a partial one refines (`-base=`); where that has it,
            it is the default.
    """

    name: str
    type: str
    help: str = ""
    default: Any = None
    order: Literal["ordered", "unordered", "last-wins"] = "ordered"
    unit: str = ""
    choices: tuple[str | int, ...] = ()
    minimum: int | None = None
    maximum: int | None = None
    follows: str = ""

    def __post_init__(self) -> None:
        if not _NAME.fullmatch(self.name):
            raise TargetError(
                f"{self.name!r} is not an attribute name", hint="use letters, digits, _ . and -"
            )
        _check_type(self.name, self.type)
        if self.order not in ("ordered", "unordered", "last-wins"):
            raise TargetError(f"{self.name}: {self.order!r} is not an order of an array")
        if self.order != "ordered" and self.type != "array<string>":
            raise TargetError(f"{self.name}: only an array<string> can be {self.order}")
        object.__setattr__(self, "choices", tuple(self.choices))
        if self.choices and self.type not in ("string", "int"):
            raise TargetError(f"{self.name}: only a string or a number can have choices")
        if self.type != "int" and (self.minimum, self.maximum) != (None, None):
            raise TargetError(f"{self.name}: only a number can have a least and a most")
        if self.default is not None:
            checked = read(self, self.default, self.name, _no_target)
            object.__setattr__(self, "default", checked)

    @property
    def is_ordered(self) -> bool:
        """Whether the order of the array's elements counts."""
        return self.order != "unordered"


def read(spec: AttrSpec, value: object, path: str, build: BuildTarget) -> Any:
    """Check and normalise a value, given as a word of the text form or as an object.

    Raises:
        TargetError: The value is not of the attribute's type; the message has the path.
    """
    if isinstance(value, Raw):
        if value.text is None:
            value = _flag(spec, path)
        else:
            return _settle(spec, _read_text(spec.type, value.text, path, build), path)
    return _settle(spec, _read_value(spec.type, value, path, build), path)


def _element_type(type_name: str) -> str:
    """Return the type of the elements of an array type, else an empty text."""
    return type_name[6:-1] if type_name.startswith("array<") else ""


def _settle(spec: AttrSpec, value: Any, path: str) -> Any:
    if spec.choices and value not in spec.choices:
        raise TargetError(
            f"{path}: {value!r} is not one of its values",
            hint=suggest(str(value), tuple(map(str, spec.choices)), what="values"),
        )
    if spec.minimum is not None and value < spec.minimum:
        fail(path, f"{value} is less than {spec.minimum}", f"give at least {spec.minimum}")
    if spec.maximum is not None and value > spec.maximum:
        fail(path, f"{value} is more than {spec.maximum}", f"give at most {spec.maximum}")
    return value if spec.order == "ordered" else _order(spec, value)


def write(type_name: str, value: Any) -> str:
    """Return the word of the text form that `read` turns into the value again."""
    element = _element_type(type_name)
    if element:
        text = ",".join(_protect_commas(write(element, item)) for item in value)
        return quote(text) if not text or is_quoted(text) else text
    if type_name == "bool":
        return "true" if value else "false"
    if type_name == "map":
        return quote_if_needed(json.dumps(plain(value), separators=(",", ":")))
    return quote_if_needed(str(value))


def plain(value: Any) -> Any:
    """Return a value as the dictionaries, lists and scalars that JSON has."""
    if isinstance(value, Mapping):
        return {name: plain(item) for name, item in value.items()}
    if isinstance(value, tuple):
        return [plain(item) for item in value]
    return value if isinstance(value, str | int) else value.to_json()


def parse_json(text: str, path: str = "") -> Any:
    """Read JSON text strictly: no duplicate names.

    Raises:
        TargetError: The text is malformed or nested too deeply, or an object has a name twice.
    """
    try:
        value = json.loads(text, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        line = text.split("\n")[error.lineno - 1]
        where = f"at line {error.lineno} column {error.colno}"
        fail(path, f"malformed JSON: {error.msg} {where}", place=Place(line, error.colno - 1))
    except RecursionError:
        fail(path, "the JSON text is nested too deeply")
    check_depth(value, path)
    return value


_LEVELS = 20
"""Of what targets are read from: targets inside of targets have a few, a configuration around
them four. What reads them is recursive, and their text twice as long with each target inside of
another, as quotes in quotes are escaped: 0.3 MB at this depth."""


def check_depth(value: object, path: str = "") -> None:
    """Require that what a target is read from is not nested too deeply.

    Raises:
        TargetError: It is.
    """
    level = [value]
    for _ in range(_LEVELS):
        level = [
            item
            for one in level
            if isinstance(one, Mapping | list | tuple)
            for item in (one.values() if isinstance(one, Mapping) else one)
        ]
        if not level:
            return
    fail(path, f"it is nested too deeply: {_LEVELS} levels are read")


def fail(path: str, message: str, hint: str | None = None, place: Place | None = None) -> NoReturn:
    """Raise a `TargetError` whose message starts with the path, if there is one."""
    raise TargetError(f"{path}: {message}" if path else message, hint=hint, place=place)


def join_path(path: str, name: str) -> str:
    """Return the path of a named part of the place."""
    return f"{path}.{name}" if path else name


def type_of(value: object) -> str:
    """Name the type of an object in the words of the schema."""
    names = {bool: "bool", int: "int", str: "string", type(None): "null", float: "float"}
    if isinstance(value, Mapping):
        return "map"
    return names.get(type(value)) or ("array" if isinstance(value, list | tuple) else "object")


def _read_text(type_name: str, text: str, path: str, build: BuildTarget) -> Any:
    element = _element_type(type_name)
    if element:
        inside = strip_quotes(text)
        parts = _split(inside, path) if inside else ()
        return tuple(
            _read_element(element, part, f"{path}[{index}]", build)
            for index, part in enumerate(parts)
        )
    if type_name == "target":
        return build(strip_quotes(text), path)
    word = check_unicode(unquote(text), path)
    if type_name == "int":
        # Bounded before `int`, which takes time quadratic in the digits and refuses 4,301 of them.
        if not re.fullmatch(r"[+-]?[0-9]{1,20}", word):
            fail(path, f"expects type int, but gets {word!r}", "write a decimal number")
        return _in_range(int(word), path)
    if type_name == "bool":
        # The original reads `7` as true and `12abc` as 12 (rows 21 and 22).
        booleans = {"true": True, "1": True, "false": False, "0": False}
        if word.lower() not in booleans:
            fail(path, f"expects type bool, but gets {word!r}", "write true or false")
        return booleans[word.lower()]
    return _read_value("map", parse_json(word, path), path, build) if type_name == "map" else word


def _read_element(type_name: str, part: str, path: str, build: BuildTarget) -> Any:
    if not part:
        fail(path, "empty element", "remove the comma, or write ''")
    try:
        return _read_text(type_name, part, path, build)
    except TargetError as error:
        error.place = error.place.inside(part) if error.place else Place(part, 0, len(part))
        raise


def _split(text: str, path: str) -> tuple[str, ...]:
    try:
        return split_commas(text)
    except TargetError as error:
        fail(path, error.message, error.hint, error.place)


def _read_value(type_name: str, value: object, path: str, build: BuildTarget) -> Any:
    element = _element_type(type_name)
    if element and isinstance(value, list | tuple):
        return tuple(
            _read_value(element, item, f"{path}[{index}]", build)
            for index, item in enumerate(value)
        )
    if type_name == "target" and type_of(value) in ("string", "map", "object"):
        return build(value, path)
    if element or type_of(value) != type_name:
        fail(path, f"expects type {type_name}, but gets {value!r} ({type_of(value)})")
    if type_name == "map":
        return _freeze(value, path)
    if isinstance(value, str):
        return check_unicode(value, path)
    return _in_range(value, path) if isinstance(value, int) and type_name == "int" else value


def _freeze(value: object, path: str) -> Any:
    if isinstance(value, Mapping):
        for name in value:
            if not isinstance(name, str):
                fail(path, f"a name has to be a string, not {name!r}")
            check_unicode(name, path)
        return FrozenMap({name: _freeze(item, f"{path}.{name}") for name, item in value.items()})
    if isinstance(value, list | tuple):
        return tuple(_freeze(item, f"{path}[{index}]") for index, item in enumerate(value))
    if type_of(value) not in ("int", "bool", "string"):
        fail(path, f"a map holds strings, ints, bools, arrays and maps, not {type_of(value)}")
    if isinstance(value, str):
        return check_unicode(value, path)
    return _in_range(value, path) if isinstance(value, int) else value


def _flag(spec: AttrSpec, path: str) -> bool:
    if spec.type != "bool":
        fail(path, f"the value is missing (type {spec.type})", f"write -{spec.name}=VALUE")
    return True


def _order(spec: AttrSpec, value: Any) -> Any:
    # Row 48 in another form: libraries are a set, and equal sets are to have equal texts.
    if spec.order == "unordered":
        return tuple(sorted(set(value)))
    if spec.order == "last-wins":
        # As LLVM reads `-mattr`: `+x,-x` is without x, whatever came before.
        signed = [text if text[:1] in ("", "+", "-") else f"+{text}" for text in value]
        last = {text.lstrip("+-"): index for index, text in enumerate(signed)}
        return tuple(text for index, text in enumerate(signed) if last[text.lstrip("+-")] == index)
    return value


def check_unicode(text: str, path: str) -> str:
    """Return a text that UTF-8 and TOML can hold.

    Raises:
        TargetError: It has half of a surrogate pair.
    """
    if not text.isascii() and _SURROGATE.search(text):
        fail(path, f"{text!r} is not Unicode text", "it has half of a surrogate pair")
    return text


def _in_range(value: int, path: str) -> int:
    if not -_INT_LIMIT <= value < _INT_LIMIT:
        fail(path, f"{value} does not fit in 64 bits")
    return value


def _protect_commas(word: str) -> str:
    return quote(word) if "," in word and any(c == "," for _, c in outside(word)) else word


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    items: dict[str, Any] = {}
    for name, value in pairs:
        # `json` alone would keep the last one without a word (row 36).
        if name in items:
            raise TargetError(f"{name}: given twice in one JSON object")
        items[name] = value
    return items


def _check_type(name: str, type_name: str) -> None:
    element = _ARRAY.fullmatch(type_name)
    if element:
        _check_type(name, element[1])
    elif type_name not in SCALARS:
        raise TargetError(
            f"{name}: {type_name!r} is not an attribute type",
            hint=f"use one of {', '.join(SCALARS)} or array<...>",
        )


def _no_target(value: object, path: str) -> NoReturn:
    fail(path, f"a target cannot be a default: {value!r}")
