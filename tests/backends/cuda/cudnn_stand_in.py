# SPDX-License-Identifier: Apache-2.0
"""A stand-in of cuDNN: graphs in numpy, from what descriptors say of dimensions and strides.

Which graphs it has engines for is what cuDNN 9.28 says of sm_80 where channels come first
(`test_cudnn.py` asks it where its wheel is). It computes when it is called, after all that its
stream has. Memory of the stand-in of the driver is this process's.
"""

import ctypes
import math
from dataclasses import dataclass, field
from itertools import product

import ml_dtypes
import numpy as np

DTYPES = {0: np.dtype("float32"), 2: np.dtype("float16"), 9: np.dtype(ml_dtypes.bfloat16)}
TENSOR, GRAPH, PLAN, ENGINE, CONFIGURATION, HEURISTIC = 17, 15, 5, 2, 3, 4
CONVOLUTION, BACKWARD, POINTWISE, PRODUCT, POOLING, NORM, ATTENTION = 10, 12, 13, 19, 25, 29, 41
NEEDED = {
    17: {900, 901, 902, 903, 906},
    0: {0, 1, 2},
    1: {100, 101, 102, 103, 104, 105, 106},
    15: {801},
    4: {200, 201, 204},
    5: {400, 401},
    10: {700, 701, 702, 703, 704, 705},
    12: {706, 707, 708, 709, 710, 711},
    13: {750, 751, 753},
    16: {1000, 1001, 1003},
    18: {1500},
    19: {1520, 1521, 1522, 1523},
    24: {1700, 1701, 1702, 1703, 1704, 1705, 1706, 1707, 1708},
    25: {1710, 1711, 1716},
    29: {2000, 2001, 2002, 2005, 2006, 2007, 2013},
    38: {2700},
    41: {2800, 2801, 2802, 2803, 2805},
}
"""Attributes by the kind of a descriptor: all that it must have before it is finished."""
INTEGERS, DESCRIPTORS = 3, 15
CODES = {900: 3, 901: 1, 902: 3, 903: 3, 906: 3, 907: 2, 908: 2, 700: 5, 1000: 3, 1001: 6, 1003: 6}
"""Types of attributes; all that end in a descriptor are one."""
NOTES = {0: (), 1: (0,), 2: (5,), 3: (3, 4), 4: ()}
"""Of each engine: with tensor cores, Winograd's, and Fourier's, whose bits differ; the last one is
proposed where any engine will do, and needs no memory of its own."""
TAKEN, REFUSED = 0, 2000


@dataclass
class Described:
    kind: int
    values: dict = field(default_factory=dict)
    is_finished: bool = False

    def one(self, number):
        (value,) = self.values[number]
        return value


class Version:
    """A function that takes `restype`, as those of `ctypes` do."""

    def __init__(self, value):
        self.value = value

    def __call__(self, *_):
        return self.value


@dataclass
class StandIn:
    """The functions of the library; `wait` does what a stream still has to do."""

    wait: object = None
    made: dict = field(default_factory=dict)
    streams: dict = field(default_factory=dict)
    ran: list = field(default_factory=list)
    refused_modes: set = field(default_factory=set)
    refused_engines: set = field(default_factory=set)
    count: int = 0
    cudnnGetVersion: object = field(default_factory=lambda: Version(92800))  # noqa: N815
    cudnnGetErrorString: object = field(default_factory=lambda: Version(b"BAD_PARAM"))  # noqa: N815

    def _add(self, out, what):
        self.count += 1
        self.made[self.count] = what
        out._obj.value = self.count
        return TAKEN

    def cudnnCreate(self, out):  # noqa: N802
        return self._add(out, "handle")

    def cudnnSetStream(self, handle, stream):  # noqa: N802
        self.streams[handle.value] = stream.value
        return TAKEN

    def cudnnDestroy(self, handle):  # noqa: N802
        del self.made[handle.value]

    def cudnnGetLastErrorString(self, text, size):  # noqa: N802
        text.value = b"an attribute is missing"

    def cudnnBackendCreateDescriptor(self, kind, out):  # noqa: N802
        return self._add(out, Described(kind))

    def cudnnBackendDestroyDescriptor(self, one):  # noqa: N802
        del self.made[one.value]

    def cudnnBackendSetAttribute(self, one, number, code, count, values):  # noqa: N802
        described, given = self.made[one.value], list(values._obj)
        assert not described.is_finished
        assert number in NEEDED[described.kind] | {907, 908, 752}
        assert CODES.get(number, code) == code
        assert count.value == len(given)
        if code == DESCRIPTORS:
            assert all(self.made[each].is_finished for each in given)
        described.values[number] = given
        return TAKEN

    def cudnnBackendFinalize(self, one):  # noqa: N802
        described = self.made[one.value]
        if NEEDED[described.kind] - described.values.keys():
            return REFUSED
        if described.kind == HEURISTIC and described.one(200) in self.refused_modes:
            return REFUSED
        if described.kind == PLAN:
            if self.made[described.one(401)].values["engine"] in self.refused_engines:
                return REFUSED
            assert self.made[described.one(400)] == "handle"
        described.is_finished = True
        return TAKEN

    def cudnnBackendGetAttribute(self, one, number, code, most, count, values):  # noqa: N802
        described, room = self.made[one.value], values._obj
        assert most.value == len(room)
        if number == 202:
            found = self._engines(described)[: most.value]
            for engine, place in zip(found, room, strict=False):
                configuration = self.made[place]
                configuration.values = {"engine": engine, "graph": described.one(201)}
                configuration.is_finished = True
            count._obj.value = len(found)
        elif number == 300:
            self.made[room[0]].values = {"engine": described.values["engine"]}
            count._obj.value = 1
        elif number == 1303:
            notes = NOTES[described.values["engine"]]
            room[: len(notes)] = notes
            count._obj.value = len(notes)
        else:
            assert number == 402
            room[0] = 256 * (self.made[described.one(401)].values["engine"] % 4)
            count._obj.value = 1
        return TAKEN

    def _engines(self, asked):
        operations = [self.made[one] for one in self.made[asked.one(201)].values[801]]
        (mode,) = asked.values[200]
        first, *rest = operations
        steps = []
        for one in rest:
            function = self.made[one.one(750)].one(0)
            added = self.made[one.one(752)].values[902] if 752 in one.values else None
            result = self.made[one.one(753)].values[902]
            kinds = {"row"} if added and math.prod(added) == added[1] else set()
            kinds |= {"whole"} if added == result else set()
            steps.append({f"{function} {kind}" for kind in kinds} if added else {str(function)})
        if first.kind == CONVOLUTION:
            orders = [[], ["0 row"], ["0 row", "100"], ["0 whole", "0 row"]]
            orders.append(["0 whole", "0 row", "100"])
            is_known = any(
                len(order) == len(steps)
                and all(step in may for step, may in zip(order, steps, strict=True))
                for order in orders
            )
            return {3: [1, 0, 2, 3], 1: [1, 0, 2, 3], 2: [0, 4]}[mode] if is_known else []
        if first.kind == BACKWARD:
            return [] if steps else [0, 1]
        if first.kind == POOLING:
            return [0, 4] if mode == 2 and not steps else []
        if first.kind == NORM:
            return [] if steps else [0, 4]
        if first.kind == ATTENTION:
            return [] if steps or mode == 2 else [1]
        return [1]

    def cudnnBackendExecute(self, handle, plan, pack):  # noqa: N802
        assert self.made[handle.value] == "handle"
        assert self.made[plan.value].one(400) == handle.value, "a plan of another thread's"
        if self.wait is not None:
            self.wait(self.streams[handle.value])
        configuration = self.made[self.made[plan.value].one(401)]
        said = self.made[pack.value].values
        places = dict(zip(said[1000], said[1001], strict=True))
        runner = _Runner(self.made, places)
        kinds = []
        for one in self.made[configuration.values["graph"]].values[801]:
            kinds.append(self.made[one].kind)
            runner.run(self.made[one])
        self.ran.append((tuple(kinds), configuration.values["engine"]))
        return TAKEN


class _Runner:
    """Computes operations in float64 on memory, or on what is in none, which is float32."""

    def __init__(self, made, places):
        self.made, self.places, self.inner = made, places, {}

    def run(self, operation):
        ways = {
            CONVOLUTION: self._convolution,
            BACKWARD: self._backward,
            POINTWISE: self._pointwise,
            PRODUCT: self._product,
            POOLING: self._pooling,
            NORM: self._norm,
            ATTENTION: self._attention,
        }
        with np.errstate(all="ignore"):
            ways[operation.kind](operation)

    def _memory(self, tensor):
        said = self.made[tensor].values
        dtype = DTYPES[said[901][0]]
        dims, steps, uid = said[902], said[903], said[906][0]
        span = 1 + sum((extent - 1) * step for extent, step in zip(dims, steps, strict=True))
        address = self.places[uid]
        assert address % said[900][0] == 0
        memory = (ctypes.c_uint8 * (span * dtype.itemsize)).from_address(address)
        strides = [step * dtype.itemsize for step in steps]
        flat = np.frombuffer(memory, np.uint8).view(dtype)
        return np.lib.stride_tricks.as_strided(flat, dims, strides)

    def _read(self, operation, number):
        tensor = operation.one(number)
        values = self.made[tensor].values
        if 907 in values:
            return self.inner[tensor].astype(np.float64)
        return self._memory(tensor).astype(np.float64)

    def _write(self, operation, number, result):
        tensor = operation.one(number)
        values = self.made[tensor].values
        assert list(result.shape) == values[902], (result.shape, values[902])
        if 907 in values:
            assert values[901] == [0]
            self.inner[tensor] = result.astype(np.float32)
        else:
            self._memory(tensor)[...] = result

    def _window(self, operation, number):
        said = self.made[operation.one(number)].values
        assert said[101] == [1]
        assert said[106] == [len(said[103])]
        return said[105], said[104], said[103], said[102]

    def _taps(self, out, kernel, strides, dilations):
        for tap in product(*map(range, kernel)):
            places = zip(tap, out, strides, dilations, strict=True)
            steps = [
                slice(at * gap, at * gap + step * (n - 1) + 1, step) for at, n, step, gap in places
            ]
            yield tap, (..., *steps)

    def _convolution(self, operation):
        x, w = self._read(operation, 704), self._read(operation, 703)
        before, after, strides, dilations = self._window(operation, 702)
        x = np.pad(x, [(0, 0), (0, 0), *zip(before, after, strict=True)])
        kernel = w.shape[2:]
        out = [
            (size - (taps - 1) * dilation - 1) // stride + 1
            for size, taps, stride, dilation in zip(
                x.shape[2:], kernel, strides, dilations, strict=True
            )
        ]
        groups = x.shape[1] // w.shape[1]
        x = x.reshape(x.shape[0], groups, -1, *x.shape[2:])
        w = w.reshape(groups, -1, *w.shape[1:])
        total = 0
        for tap, place in self._taps(out, kernel, strides, dilations):
            part = w[(..., *tap)]
            total = total + np.einsum("ngc...,gkc->ngk...", x[place], part)
        total = total.reshape(total.shape[0], -1, *out)
        assert operation.values[700] == [1.0]
        self._write(operation, 705, total)

    def _backward(self, operation):
        dy, w = self._read(operation, 711), self._read(operation, 709)
        before, after, strides, dilations = self._window(operation, 708)
        dims = self.made[operation.one(710)].values[902]
        items, channels, *sizes = dims
        groups = channels // w.shape[1]
        padded = [size + a + b for size, a, b in zip(sizes, before, after, strict=True)]
        total = np.zeros((items, groups, w.shape[1], *padded))
        w = w.reshape(groups, -1, *w.shape[1:])
        out = dy.shape[2:]
        dy = dy.reshape(items, groups, -1, *out)
        for tap, place in self._taps(out, w.shape[3:], strides, dilations):
            total[place] += np.einsum("ngk...,gkc->ngc...", dy, w[(..., *tap)])
        inside = tuple(slice(a, a + size) for a, size in zip(before, sizes, strict=True))
        total = total.reshape(items, channels, *padded)[(..., *inside)]
        self._write(operation, 710, total)

    def _pointwise(self, operation):
        function = self.made[operation.one(750)]
        mode = function.one(0)
        x = self._read(operation, 751)
        if mode in (0, 1):
            b = self._read(operation, 752)
            assert b.ndim == x.ndim
            y = x + b if mode == 0 else x * b
        elif mode == 100:
            assert function.one(2) == 1
            y = np.maximum(x, 0)
        else:
            assert mode == 107
            y = 0.5 * x * (1 + np.tanh(np.sqrt(2 / np.pi) * (x + 0.044715 * x**3)))
        self._write(operation, 753, y)

    def _product(self, operation):
        a, b = self._read(operation, 1520), self._read(operation, 1521)
        assert a.ndim == b.ndim == 3
        self._write(operation, 1522, a @ b)

    def _pooling(self, operation):
        x = self._read(operation, 1710)
        said = self.made[operation.one(1716)].values
        before, after, strides, window = said[1704], said[1703], said[1705], said[1706]
        is_maximum = said[1700] == [3]
        assert said[1708] == [1 if is_maximum else 0]
        pads = [(0, 0), (0, 0), *zip(before, after, strict=True)]
        ones = np.pad(np.ones_like(x), pads, constant_values=0 if said[1700] == [4] else 1)
        x = np.pad(x, pads, constant_values=-np.inf if is_maximum else 0)
        out = [
            (size - taps) // stride + 1
            for size, taps, stride in zip(x.shape[2:], window, strides, strict=True)
        ]
        places = [place for _, place in self._taps(out, window, strides, [1] * len(window))]
        if is_maximum:
            y = np.max([x[place] for place in places], axis=0)
        else:
            y = sum(x[place] for place in places) / sum(ones[place] for place in places)
        self._write(operation, 1711, y)

    def _norm(self, operation):
        x = self._read(operation, 2002)
        axes = tuple(range(1, x.ndim)) if operation.one(2000) == 0 else tuple(range(2, x.ndim))
        assert operation.values[2001] == [0]
        epsilon = self._read(operation, 2007)
        centred = x - x.mean(axis=axes, keepdims=True)
        deviation = np.sqrt((centred**2).mean(axis=axes, keepdims=True) + epsilon)
        y = centred / deviation * self._read(operation, 2005) + self._read(operation, 2006)
        self._write(operation, 2013, y)

    def _attention(self, operation):
        q, k, v = (self._read(operation, number) for number in (2800, 2801, 2802))
        many = q.shape[1] // k.shape[1]
        k, v = np.repeat(k, many, axis=1), np.repeat(v, many, axis=1)
        scores = (q @ k.swapaxes(-1, -2)) * self._read(operation, 2805)
        weights = np.exp(scores - scores.max(axis=-1, keepdims=True))
        self._write(operation, 2803, weights / weights.sum(axis=-1, keepdims=True) @ v)
