# SPDX-License-Identifier: Apache-2.0
"""A stand-in of cuBLASLt: products in numpy, from what its descriptors say, column by column.

A product is queued in its stream, as a call of the host's. Memory of the stand-in of the driver
is this process's.
"""

import ctypes
import re
from dataclasses import dataclass, field

import numpy as np

HOST_FUNCTION = ctypes.CFUNCTYPE(None, ctypes.c_void_p)
DTYPES = {0: np.float32, 1: np.float64, 2: np.float16}
ROWS, COLUMNS, LD, BATCH, STEP = "rows", "columns", "ld", 5, 6


@dataclass
class Described:
    kind: str
    numbers: tuple
    attributes: dict = field(default_factory=dict)


class Version:
    """A function that takes `restype`, as those of `ctypes` do."""

    def __call__(self):
        return 120900


@dataclass
class StandIn:
    """The functions of the library."""

    most: int = 3
    made: dict = field(default_factory=dict)
    ran: list = field(default_factory=list)
    asked: dict = field(default_factory=dict)
    queued: list = field(default_factory=list)
    count: int = 0
    get_version: object = field(default_factory=Version)

    def __getattr__(self, name):
        """`cublasLtMatmulDescCreate` is `matmul_desc_create`."""
        if not name.startswith("cublasLt"):
            raise AttributeError(name)
        words = re.findall("[A-Z][a-z]+", name.removeprefix("cublasLt"))
        return getattr(self, "_".join(words).lower())

    def _add(self, out, kind, numbers=()):
        self.count += 1
        self.made[self.count] = Described(kind, numbers)
        out._obj.value = self.count
        return 0

    def create(self, out):
        return self._add(out, "handle")

    def matmul_desc_create(self, out, compute, scale):
        return self._add(out, "operation", (compute, scale))

    def matrix_layout_create(self, out, dtype, rows, columns, ld):
        return self._add(out, "layout", (dtype, rows.value, columns.value, ld.value))

    def matmul_preference_create(self, out):
        return self._add(out, "preference")

    def _destroy(self, one):
        del self.made[one.value]
        return 0

    destroy = matmul_desc_destroy = matrix_layout_destroy = matmul_preference_destroy = _destroy

    def _set(self, what, attribute, value, size):
        assert ctypes.sizeof(value._obj) == size.value
        self.made[what.value].attributes[attribute] = value._obj.value
        return 0

    matmul_desc_set_attribute = matrix_layout_set_attribute = _set
    matmul_preference_set_attribute = _set

    def matmul_algo_get_heuristic(self, handle, operation, *rest):
        *_, preference, most, results, count = rest
        assert self.made[handle.value].kind == "handle"
        self.asked = self.made[preference.value].attributes
        count._obj.value = min(most, self.most)
        for number in range(count._obj.value):
            results[number].workspace_bytes = 256 * number
            results[number].algo[0] = number
        return 0

    def matmul(self, *arguments):
        _, operation, alpha, a, a_is, b, b_is, _, c, _, d, d_is, *how = arguments
        assert c.value == d.value
        algorithm, _, nbytes, stream = how
        assert nbytes.value == algorithm._obj.workspace_bytes
        said = self.made[operation.value]
        attributes = dict(said.attributes)
        left, right = self._matrices(a, a_is), self._matrices(b, b_is)
        if attributes[3]:
            left = left.swapaxes(-1, -2)
        if attributes[4]:
            right = right.swapaxes(-1, -2)
        factor, result = alpha._obj.value, self._matrices(d, d_is)
        number = int(algorithm._obj.algo[0])

        def compute(_):
            total = factor * (left.astype("float64") @ right.astype("float64"))
            epilogue = attributes[7]
            if epilogue & 4:
                bias = _array(attributes[8], result.dtype, (result.shape[-2],), (1,))
                total = total + bias.astype("float64")[:, None]
            if epilogue & 2:
                total = np.maximum(total, 0)
            if epilogue & 32:
                inner = np.sqrt(2 / np.pi) * (total + 0.044715 * total**3)
                total = 0.5 * total * (1 + np.tanh(inner))
            result[...] = total
            self.ran.append((said.numbers[0], epilogue, number))

        queued = HOST_FUNCTION(compute)
        self.queued.append(queued)
        launch = ctypes.CDLL("libcuda.so.1").cuLaunchHostFunc
        return launch(ctypes.c_void_p(stream.value), queued, None)

    def _matrices(self, address, layout):
        """The matrices of a batch, `[batch, rows, columns]`, of which columns lie side by side."""
        said = self.made[layout.value]
        dtype, rows, columns, ld = said.numbers
        shape = (said.attributes[BATCH], rows, columns)
        return _array(address.value, DTYPES[dtype], shape, (said.attributes[STEP], 1, ld))


def _array(address, dtype, shape, steps):
    item = np.dtype(dtype).itemsize
    span = 1 + sum((extent - 1) * step for extent, step in zip(shape, steps, strict=True))
    memory = (ctypes.c_uint8 * (span * item)).from_address(address)
    flat = np.frombuffer(memory, dtype)
    strides = [step * item for step in steps]
    return np.lib.stride_tricks.as_strided(flat, shape, strides)
