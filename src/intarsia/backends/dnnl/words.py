# SPDX-License-Identifier: Apache-2.0
"""Numbers of oneDNN's C interface (dnnl_types.h of version 3), by the names they have there."""

from __future__ import annotations

from enum import IntEnum


class LibraryStatus(IntEnum):
    """What a function of the library returns."""

    SUCCESS = 0
    OUT_OF_MEMORY = 1
    INVALID_ARGUMENTS = 2
    UNIMPLEMENTED = 3
    LAST_IMPL_REACHED = 4
    RUNTIME_ERROR = 5
    NOT_REQUIRED = 6


class DataType(IntEnum):
    """Element types."""

    F16 = 1
    BF16 = 2
    F32 = 3
    S32 = 4
    S8 = 5
    U8 = 6

    @property
    def itemsize(self) -> int:
        """The bytes of an element."""
        return {DataType.F32: 4, DataType.S32: 4, DataType.S8: 1, DataType.U8: 1}.get(self, 2)


DATA_TYPES = {
    "float16": DataType.F16,
    "bfloat16": DataType.BF16,
    "float32": DataType.F32,
    "int32": DataType.S32,
    "int8": DataType.S8,
    "uint8": DataType.U8,
}
"""oneDNN's number of each dtype, by its numpy or ml_dtypes name."""


class CpuRuntime(IntEnum):
    """What the library starts threads with (dnnl_config.h)."""

    SEQUENTIAL = 1
    OPENMP = 2
    TBB = 4
    THREADPOOL = 8


class FpMath(IntEnum):
    """Which precisions float32 primitives may compute in."""

    STRICT = 0
    BF16 = 1
    F16 = 2
    ANY = 3


class Query(IntEnum):
    """What descriptors are asked for."""

    IMPLEMENTATION = 8
    STRIDES = 14
    SOURCE = 0x81
    WEIGHTS = 0x83
    DESTINATION = 0x85
    SCRATCHPAD = 0x88
    RANK = 0x100
    DIMS = 0x101
    DATA_TYPE = 0x102
    PADDED_DIMS = 0x104
    FORMAT_KIND = 0x106
    BLOCK_COUNT = 0x107
    BLOCKS = 0x108
    BLOCK_DIMS = 0x109


class Eltwise(IntEnum):
    """Elementwise algorithms of one operand, with parameters alpha and beta."""

    RELU = 0x20
    TANH = 0x21
    ELU = 0x22
    SQUARE = 0x23
    ABS = 0x24
    SQRT = 0x25
    LINEAR = 0x26
    SOFT_RELU = 0x27
    HARDSIGMOID = 0x28
    LOGISTIC = 0x29
    EXP = 0x2A
    GELU_TANH = 0x2B
    SWISH = 0x2C
    CLIP = 0x2E
    POW = 0x30
    GELU_ERF = 0x31
    ROUND = 0x32
    MISH = 0x33
    HARDSWISH = 0x34


class BinaryAlgorithm(IntEnum):
    """Elementwise algorithms of two operands."""

    ADD = 0x1FFF0
    MUL = 0x1FFF1
    MAX = 0x1FFF2
    MIN = 0x1FFF3
    DIV = 0x1FFF4
    SUB = 0x1FFF5


class Pooling(IntEnum):
    """Pooling algorithms."""

    MAX = 0x1FF
    AVERAGE_WITH_PADDING = 0x2FF
    AVERAGE = 0x3FF


class ReductionAlgorithm(IntEnum):
    """Reduction algorithms."""

    MAX = 0x2FFF2
    MIN = 0x2FFF3
    SUM = 0x2FFF4
    MUL = 0x2FFF5
    MEAN = 0x2FFF6


class Resampling(IntEnum):
    """Resampling algorithms."""

    NEAREST = 0x2FFF0
    LINEAR = 0x2FFF1


class SoftmaxAlgorithm(IntEnum):
    """Softmax algorithms."""

    ACCURATE = 0x30000


class Arg(IntEnum):
    """What a memory object is to a primitive."""

    SRC = 1
    SRC_1 = 2
    DST = 17
    WEIGHTS = 33
    BIAS = 41
    MEAN = 49
    VARIANCE = 50
    SCALE = 51
    SHIFT = 52
    SCRATCHPAD = 80
    MULTIPLE_SRC = 1024
    ATTR_SCALES = 4096
    ATTR_ZERO_POINTS = 8192
    POST_OP_BASE = 32768


CONVOLUTION_DIRECT = 0x1
DECONVOLUTION_DIRECT = 0xA
LRN_ACROSS_CHANNELS = 0xAFF
FORWARD_INFERENCE = 96
FORMAT_ANY = 1
BLOCKED = 2
ENGINE_CPU = 1
STREAM_IN_ORDER = 1
ISA_AVX2 = 0x04
ISA_AVX2_VNNI = 0x08
ISA_AVX512 = 0x20
ISA_AVX512_VNNI = 0x40
ISA_AVX512_BF16 = 0x80
ISA_AVX512_FP16 = 0x100
ISA_AMX = 0xE00
SCRATCHPAD_USER = 1
MAX_RANK = 12
USE_GLOBAL_STATS = 1
USE_SCALE = 2
USE_SHIFT = 4
