# SPDX-License-Identifier: Apache-2.0
"""Routines by themselves: numbers with and without sign, records, loops, atomic cells, cache."""

import ctypes
from ctypes import c_int32, c_int64, c_uint32, c_uint64, c_void_p

import pytest

from intarsia.native.loading import load_routine
from intarsia.native.routine import Cell, Record, Routine, declare, new_module


class Pair(ctypes.Structure):
    _fields_ = (("first", c_uint32), ("second", c_int64))


def run(write, prototype, *arguments):
    """What a routine returns, written and called."""

    def text():
        module = new_module()
        write(Routine(module, "tried", *prototype, is_exported=True))
        return str(module)

    library = load_routine("tried", text, (), caches=None)
    return ctypes.CFUNCTYPE(*prototype)(library.addresses["tried"])(*arguments)


@pytest.mark.parametrize(("kind", "expected"), [(c_int32, 1), (c_uint32, 0)])
def test_signs_decide_how_numbers_compare(kind, expected):
    def write(code):
        with code.when(code.parameters[0], "<", 1):
            code.give_back(1)
        code.give_back(0)

    assert run(write, (c_int32, kind), -1) == expected


@pytest.mark.parametrize(("kind", "expected"), [(c_int32, -1), (c_uint32, 2**32 - 1)])
def test_signs_decide_how_numbers_widen(kind, expected):
    def write(code):
        code.give_back(code.parameters[0].convert(c_int64))

    assert run(write, (c_int64, kind), -1) == expected


def test_numbers_are_computed_with():
    def write(code):
        left, right = code.parameters
        code.give_back((left + right) * (left - right) // 3)

    assert run(write, (c_uint64, c_uint64, c_uint64), 10, 4) == 14 * 6 // 3


def test_records_that_follow_one_another_are_filled_and_read():
    def write(code):
        pairs = Record(code.parameters[0], Pair)
        with code.count(code.parameters[1]) as number:
            first, second = pairs.item(number).load()
            pairs.item(number).store(first + 1, second - 1)
            pairs["second"].update("add", 100, "monotonic")
        code.give_back()

    pairs = (Pair * 3)((1, 10), (2, 20), (3, 30))
    run(write, (None, c_void_p, c_uint32), ctypes.addressof(pairs), 3)
    assert [(pair.first, pair.second) for pair in pairs] == [(2, 309), (3, 19), (4, 29)]


def test_a_block_is_left_and_begun_anew():
    """The sum of the odd numbers below 10."""

    def write(code):
        number, total = code.variable(c_uint32, 0), code.variable(c_uint32, 0)
        with code.repeat() as turn:
            turn.end_if(number.load(), ">=", 10)
            number.store(number.load() + 1)
            half = number.load() // 2
            turn.next_if(half * 2, "==", number.load())
            total.store(total.load() + number.load())
        code.give_back(total.load())

    assert run(write, (c_uint32,)) == 1 + 3 + 5 + 7 + 9


def test_atomic_cells_say_what_was_there():
    def write(code):
        cell = Cell(code.parameters[0], c_uint32)
        before = cell.replace(5, 7, "acquire", "monotonic")
        with code.choose(before, "==", 5) as (is_replaced, is_other):
            with is_replaced:
                cell.update("sub", 1, "seq_cst")
            with is_other:
                cell.store(0, "release")
        code.give_back(before)

    for start, end in ((5, 6), (4, 0)):
        number = c_uint32(start)
        assert run(write, (c_uint32, c_void_p), ctypes.addressof(number)) == start
        assert number.value == end


def test_functions_are_called_by_name_and_by_address():
    def write(code):
        absolute = declare(code.module, "llabs", c_int64, c_int64)
        number = code.call(absolute, code.parameters[0])
        code.give_back(code.call(code.parameters[1].function(c_int64, c_int64), number))

    prototype = ctypes.CFUNCTYPE(c_int64, c_int64)
    double = prototype(lambda number: 2 * number)
    address = ctypes.cast(double, c_void_p).value
    assert run(write, (c_int64, c_int64, c_void_p), -21, address) == 42


def test_what_is_in_the_cache_is_not_written_again(tmp_path):
    texts = []

    def write():
        module = new_module()
        code = Routine(module, "nothing", None, is_exported=True)
        code.give_back()
        texts.append(str(module))
        return texts[-1]

    for variant in (1, 1, 2):
        assert load_routine("nothing", write, (), variant, caches=tmp_path).addresses["nothing"]
    assert len(texts) == 2
