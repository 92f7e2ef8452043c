# SPDX-License-Identifier: Apache-2.0
"""JSON and MessagePack as values of ours, read by any number of threads.

msgspec finds out how a class is laid out when it decodes it for the first time, in steps between
which another thread may see it half done: a process whose threads loaded their first packages
together died of that (msgspec 0.21, Python 3.11). So decoders are made one at a time, and kept.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from functools import cache
from typing import Any, TypeVar, cast

import msgspec

T = TypeVar("T")

_ONE_AT_A_TIME = threading.Lock()


def decode_json(data: bytes | memoryview | str, form: type[T]) -> T:
    """Return JSON as a value.

    Args:
        data: The text, in UTF-8 if it is bytes.
        form: The type of the value.

    Raises:
        msgspec.DecodeError: It is malformed, or another value.
        UnicodeDecodeError: It is not UTF-8.
    """
    return cast("T", _json_decoder(form)(data))  # type: ignore[arg-type]  # mypy: unhashable


def decode_msgpack(data: bytes | memoryview, form: type[T]) -> T:
    """Return MessagePack as a value.

    Args:
        data: The bytes.
        form: The type of the value.

    Raises:
        msgspec.DecodeError: It is malformed, or another value.
    """
    return cast("T", _msgpack_decoder(form)(data))  # type: ignore[arg-type]  # mypy: unhashable


@cache
def _json_decoder(form: Hashable) -> Callable[[bytes | memoryview | str], Any]:
    with _ONE_AT_A_TIME:
        return msgspec.json.Decoder(form).decode


@cache
def _msgpack_decoder(form: Hashable) -> Callable[[bytes | memoryview], Any]:
    with _ONE_AT_A_TIME:
        return msgspec.msgpack.Decoder(form).decode
