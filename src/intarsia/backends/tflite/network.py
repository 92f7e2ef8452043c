# SPDX-License-Identifier: Apache-2.0
"""A TFLite network as values, and as the flat buffer that TFLite's tools read.

The schema's bindings are those of the `tflite` package; nothing else here knows them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from types import ModuleType
from typing import Any

import numpy as np

from intarsia.arrays import Array
from intarsia.errors import BackendError

_SCHEMA_VERSION = 3
_ALIGNMENT = 64
"""Of constants behind a flat buffer, in bytes."""
_BYTE_CODES = 127
"""Operators from this number on stand in a field of 32 bits; older readers see this number."""

_OPTIONS: Mapping[str, tuple[str, int]] = {
    "ABS": ("AbsOptions", 1),
    "ADD": ("AddOptions", 2),
    "AVERAGE_POOL_2D": ("Pool2DOptions", 2),
    "BATCH_MATMUL": ("BatchMatMulOptions", 1),
    "CEIL": ("", 1),
    "CONCATENATION": ("ConcatenationOptions", 2),
    "CONV_2D": ("Conv2DOptions", 3),
    "DEPTHWISE_CONV_2D": ("DepthwiseConv2DOptions", 3),
    "DIV": ("DivOptions", 1),
    "EXP": ("ExpOptions", 1),
    "FLOOR": ("", 1),
    "FULLY_CONNECTED": ("FullyConnectedOptions", 5),
    "HARD_SWISH": ("HardSwishOptions", 1),
    "LEAKY_RELU": ("LeakyReluOptions", 2),
    "LOGISTIC": ("", 2),
    "MAXIMUM": ("MaximumMinimumOptions", 1),
    "MAX_POOL_2D": ("Pool2DOptions", 2),
    "MEAN": ("ReducerOptions", 2),
    "MINIMUM": ("MaximumMinimumOptions", 1),
    "MUL": ("MulOptions", 2),
    "NEG": ("NegOptions", 1),
    "PAD": ("PadOptions", 2),
    "PADV2": ("PadV2Options", 2),
    "QUANTIZE": ("QuantizeOptions", 2),
    "RELU": ("", 2),
    "RELU6": ("", 2),
    "RELU_N1_TO_1": ("", 1),
    "RESHAPE": ("ReshapeOptions", 1),
    "RESIZE_BILINEAR": ("ResizeBilinearOptions", 3),
    "RESIZE_NEAREST_NEIGHBOR": ("ResizeNearestNeighborOptions", 3),
    "SLICE": ("SliceOptions", 2),
    "SOFTMAX": ("SoftmaxOptions", 2),
    "SQRT": ("", 1),
    "SUB": ("SubOptions", 2),
    "TANH": ("", 2),
    "TRANSPOSE": ("TransposeOptions", 2),
}
"""By operator, the table of its options, and the version that takes int8, if one does."""


@dataclass(frozen=True, slots=True)
class Quantity:
    """How integers stand for numbers: `scale * (code - zero)`.

    Attributes:
        scales: One, or one for each place of an axis.
        zeros: As many zero points.
        axis: The axis; 0 where there is one scale.
    """

    scales: tuple[float, ...]
    zeros: tuple[int, ...]
    axis: int = 0

    @property
    def scale(self) -> float:
        """The one scale."""
        (scale,) = self.scales
        return scale

    @property
    def zero(self) -> int:
        """The one zero point."""
        (zero,) = self.zeros
        return zero

    def shifted(self, by: int) -> Quantity:
        """Return what codes mean that are larger by a number."""
        return Quantity(self.scales, tuple(zero + by for zero in self.zeros), self.axis)


@dataclass(frozen=True, eq=False)
class NetworkTensor:
    """A tensor of a network.

    Attributes:
        name: For people.
        shape: Its extents, in the order of TFLite: channels last where it is an image.
        dtype: Its numpy name.
        quantity: What its codes mean; None for what is not quantised.
        data: Of a constant.
    """

    name: str
    shape: tuple[int, ...]
    dtype: str
    quantity: Quantity | None = None
    data: Array | None = None


@dataclass(frozen=True, slots=True)
class NetworkOperator:
    """An operator of a network.

    Attributes:
        code: TFLite's name of it, such as `CONV_2D`.
        inputs: Numbers of tensors.
        outputs: Likewise.
        options: As the schema calls them; numbers, truth values and names of `Padding` and
            `ActivationFunctionType`.
        node: Name of the node of the model that it is for.
    """

    code: str
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]
    options: Mapping[str, Any] = field(default_factory=dict)
    node: str = ""


@dataclass(frozen=True, slots=True)
class Network:
    """A TFLite network.

    Attributes:
        tensors: All tensors.
        operators: In the order in which they run.
        inputs: Numbers of tensors.
        outputs: Likewise.
    """

    tensors: tuple[NetworkTensor, ...]
    operators: tuple[NetworkOperator, ...]
    inputs: tuple[int, ...]
    outputs: tuple[int, ...]


def write_network(network: Network) -> bytes:
    """Return a network as a flat buffer; the same network gives the same bytes.

    Raises:
        BackendError: The package `tflite` is not installed.
    """
    return _BufferWriter(_schema()).write(network)


@dataclass(frozen=True, slots=True)
class SplitNetwork:
    """A flat buffer without its large constants, which are read from behind it.

    Attributes:
        head: The flat buffer, up to where the first of them begins.
        constants: What follows it, by name.
    """

    head: bytes
    constants: Mapping[str, Array]

    @property
    def whole(self) -> bytes:
        """The whole network."""
        return join(self.head, self.constants.values())


def split_network(network: Network, least: int) -> SplitNetwork:
    """Write a network whose constants from a number of bytes on stand behind the flat buffer.

    Raises:
        BackendError: The package `tflite` is not installed.
    """
    schema = _schema()
    constants = {
        tensor.name: tensor.data
        for tensor in network.tensors
        if tensor.data is not None and tensor.data.nbytes >= least
    }
    outside = {name: (_ALIGNMENT, data.nbytes) for name, data in constants.items()}
    # Places are numbers of a fixed width, so what is written first tells where it ends.
    place = _aligned(len(_BufferWriter(schema, outside).write(network)))
    for name, (_, nbytes) in outside.items():
        outside[name] = (place, nbytes)
        place += _aligned(nbytes)
    head = _BufferWriter(schema, outside).write(network)
    return SplitNetwork(head.ljust(_aligned(len(head)), b"\0"), constants)


def join(head: bytes, constants: Iterable[Array]) -> bytes:
    """Return a flat buffer with the constants that it reads from behind it.

    Args:
        head: That of a `SplitNetwork`.
        constants: Its constants, in their order.
    """
    parts = [array.tobytes() for array in constants]
    return b"".join((head, *(part.ljust(_aligned(len(part)), b"\0") for part in parts)))


def _aligned(nbytes: int) -> int:
    return -(-nbytes // _ALIGNMENT) * _ALIGNMENT


def _schema() -> ModuleType:
    try:
        import tflite
    except ImportError as error:
        raise BackendError(
            f"TFLite networks cannot be written: {error}",
            hint="pip install 'intarsia[ethos-u]'",
        ) from error
    schema: ModuleType = tflite
    return schema


class _BufferWriter:
    """Writes one flat buffer, inner tables before those that refer to them.

    Args:
        schema: The bindings.
        outside: By name of a constant that is not written, the place and the number of its bytes.
    """

    def __init__(
        self, schema: ModuleType, outside: Mapping[str, tuple[int, int]] | None = None
    ) -> None:
        import flatbuffers

        self._schema = schema
        self._outside = outside or {}
        self._builder: Any = flatbuffers.Builder(1024)

    def write(self, network: Network) -> bytes:
        """Return the bytes."""
        builder = self._builder
        constants = [tensor for tensor in network.tensors if tensor.data is not None]
        buffers = {id(tensor): number for number, tensor in enumerate(constants, 1)}
        written = [self._table("Buffer")]  # the first buffer is empty: that of computed tensors
        written += [self._buffer(tensor) for tensor in constants]
        codes = list(dict.fromkeys(operator.code for operator in network.operators))
        subgraph = self._table(
            "SubGraph",
            Tensors=self._offsets(
                [self._tensor(tensor, buffers.get(id(tensor), 0)) for tensor in network.tensors]
            ),
            Inputs=self._numbers(network.inputs),
            Outputs=self._numbers(network.outputs),
            Operators=self._offsets(
                [self._operator(operator, codes) for operator in network.operators]
            ),
        )
        model = self._table(
            "Model",
            Version=_SCHEMA_VERSION,
            OperatorCodes=self._offsets([self._code(code) for code in codes]),
            Subgraphs=self._offsets([subgraph]),
            Buffers=self._offsets(written),
        )
        builder.Finish(model, file_identifier=b"TFL3")
        return bytes(builder.Output())

    def _table(self, kind: str, **fields: Any) -> int:
        getattr(self._schema, f"{kind}Start")(self._builder)
        for name, item in fields.items():
            getattr(self._schema, f"{kind}Add{name}")(self._builder, item)
        return int(getattr(self._schema, f"{kind}End")(self._builder))

    def _numbers(self, numbers: Sequence[int]) -> int:
        return int(self._builder.CreateNumpyVector(np.asarray(numbers, dtype="<i4")))

    def _offsets(self, offsets: Sequence[int]) -> int:
        self._builder.StartVector(4, len(offsets), 4)
        for offset in reversed(offsets):
            self._builder.PrependUOffsetTRelative(offset)
        return int(self._builder.EndVector())

    def _buffer(self, tensor: NetworkTensor) -> int:
        assert tensor.data is not None
        if tensor.name in self._outside:
            place, nbytes = self._outside[tensor.name]
            return self._table("Buffer", Offset=place, Size=nbytes)
        data = np.frombuffer(np.ascontiguousarray(tensor.data).tobytes(), np.uint8)
        self._builder.StartVector(1, len(data), 16)  # TFLite maps constants: aligned to 16 bytes
        self._builder.head -= len(data)
        self._builder.Bytes[self._builder.Head() : self._builder.Head() + len(data)] = bytes(data)
        return self._table("Buffer", Data=self._builder.EndVector())

    def _tensor(self, tensor: NetworkTensor, buffer: int) -> int:
        name, shape = self._builder.CreateString(tensor.name), self._numbers(tensor.shape)
        more = {}
        if tensor.quantity is not None:
            quantity = tensor.quantity
            scales = self._builder.CreateNumpyVector(np.asarray(quantity.scales, dtype="<f4"))
            zeros = self._builder.CreateNumpyVector(np.asarray(quantity.zeros, dtype="<i8"))
            more["Quantization"] = self._table(
                "QuantizationParameters",
                Scale=scales,
                ZeroPoint=zeros,
                QuantizedDimension=quantity.axis,
            )
        dtype = getattr(self._schema.TensorType, tensor.dtype.upper())
        return self._table("Tensor", Shape=shape, Type=dtype, Buffer=buffer, Name=name, **more)

    def _code(self, code: str) -> int:
        number = getattr(self._schema.BuiltinOperator, code)
        return self._table(
            "OperatorCode",
            DeprecatedBuiltinCode=min(number, _BYTE_CODES),
            Version=_OPTIONS[code][1],
            BuiltinCode=number,
        )

    def _operator(self, operator: NetworkOperator, codes: Sequence[str]) -> int:
        kind, _ = _OPTIONS[operator.code]
        more = {}
        if kind:
            fields = {name: self._value(item) for name, item in operator.options.items()}
            more["BuiltinOptions"] = self._table(kind, **fields)
            more["BuiltinOptionsType"] = getattr(self._schema.BuiltinOptions, kind)
        inputs, outputs = self._numbers(operator.inputs), self._numbers(operator.outputs)
        return self._table(
            "Operator",
            OpcodeIndex=codes.index(operator.code),
            Inputs=inputs,
            Outputs=outputs,
            **more,
        )

    def _value(self, item: Any) -> Any:
        if not isinstance(item, str):
            return item
        enum = "Padding" if item in ("SAME", "VALID") else "ActivationFunctionType"
        return getattr(getattr(self._schema, enum), item)
