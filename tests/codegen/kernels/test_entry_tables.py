# SPDX-License-Identifier: Apache-2.0
"""Tables of Slice and Pad against numpy, for parameters that fit the shapes and others."""

import numpy as np
import pytest
from tests.codegen.kernels.test_gather import dense

from intarsia.codegen.kernels import entry_tables
from intarsia.codegen.kernels.entry_tables import PadTables, SliceTables

FAR = 2**63 - 1


def run_tables(run_kernel, spec, arrays):
    tables, fault = np.full(sum(spec.result), -9), np.array([-9])
    *_, tables, fault = run_kernel(entry_tables.build(spec), [*arrays, tables, fault])
    return np.split(tables, np.cumsum(spec.result)[:-1]), fault[0]


SLICES = {
    "plain": ([1, 0], [3, FAR], None, None),
    "from the end": ([-4, -9], [-1, 9], [1, 0], None),
    "steps": ([0, 1], [FAR, 6], [0, 1], [2, 3]),
    "backwards": ([-1, FAR], [-FAR - 1, 0], [-1, 0], [-1, -2]),
    "far steps": ([2, 5], [FAR, -FAR - 1], [0, 1], [FAR, -FAR - 1]),
}


@pytest.mark.parametrize("case", SLICES)
def test_slice(run_kernel, case):
    starts, ends, axes, steps = SLICES[case]
    shape, cuts = (5, 7), [slice(None)] * 2
    for at, axis in enumerate(axes or (0, 1)):
        step = 1 if steps is None else steps[at]
        end = None if step < 0 and ends[at] < -10 else ends[at]
        cuts[axis] = slice(starts[at], end, step)
    wanted = [np.arange(extent)[cut] for extent, cut in zip(shape, cuts, strict=True)]
    arrays = [np.array(item) for item in SLICES[case] if item is not None]
    layouts = [None if item is None else dense(np.array(item)) for item in SLICES[case]]
    result = tuple(map(len, wanted))
    tables, fault = run_tables(run_kernel, SliceTables(shape, result, 2, *layouts), arrays)
    assert fault == 0
    for got, want in zip(tables, wanted, strict=True):
        np.testing.assert_array_equal(got, want)
    other = (result[0] + 1, result[1])
    tables, fault = run_tables(run_kernel, SliceTables(shape, other, 2, *layouts), arrays)
    assert fault == 1
    assert all(0 <= entry < 7 for entry in tables[1])


@pytest.mark.parametrize(("axis", "step"), [(2, 1), (-3, 1), (0, 0)])
def test_slice_of_nonsense(run_kernel, axis, step):
    arrays = [np.array([item]) for item in (0, 5, axis, step)]
    spec = SliceTables((5, 7), (5, 7), 1, *map(dense, arrays))
    assert run_tables(run_kernel, spec, arrays)[1] == 1


@pytest.mark.parametrize("mode", ["constant", "edge", "reflect", "wrap"])
@pytest.mark.parametrize("axes", [None, [-1], [1, 0]])
def test_pad(run_kernel, mode, axes):
    shape, pads = (3, 4), {None: [2, 1, 0, 5], (-1,): [3, 2], (1, 0): [1, 2, 6, 0]}
    amounts = np.array(pads[tuple(axes) if axes else None], np.int32)
    count = len(amounts) // 2
    added = [(0, 0), (0, 0)]
    for at, axis in enumerate(axes or (0, 1)):
        added[axis] = (amounts[at], amounts[at + count])
    places = [np.arange(extent) for extent in shape]
    flags = {"constant_values": -1} if mode == "constant" else {}
    wanted = [np.pad(p, pair, mode, **flags) for p, pair in zip(places, added, strict=True)]
    arrays = [amounts] + [np.array(axes)] * (axes is not None)
    layouts = [dense(array) for array in arrays]
    spec = PadTables(shape, tuple(map(len, wanted)), count, mode, *layouts)
    tables, fault = run_tables(run_kernel, spec, arrays)
    assert fault == 0
    for got, want in zip(tables, wanted, strict=True):
        np.testing.assert_array_equal(got, want)


@pytest.mark.parametrize("pads", [[1, 0], [FAR, 1 - FAR], [-FAR - 1, FAR]])
def test_pads_that_do_not_fit(run_kernel, pads):
    arrays = [np.array(pads)]
    spec = PadTables((3,), (5,), 1, "edge", dense(arrays[0]))
    tables, fault = run_tables(run_kernel, spec, arrays)
    assert fault == 1
    assert all(0 <= entry < 3 for entry in tables[0])


def test_pad_that_cuts_off(run_kernel):
    arrays = [np.array([-1, 3])]
    spec = PadTables((4,), (6,), 1, "constant", dense(arrays[0]))
    ((table,), fault) = run_tables(run_kernel, spec, arrays)
    assert fault == 0
    np.testing.assert_array_equal(table, [1, 2, 3, -1, -1, -1])
