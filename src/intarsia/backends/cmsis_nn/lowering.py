# SPDX-License-Identifier: Apache-2.0
"""A region as calls of the library: each layer is a C function that has its sizes as constants.

The library has images with channels last, ONNX before the pixels. Inside a region images lie as
the library wants them; what comes in or goes out otherwise is turned by a loop. Scratch memory,
that of the library's own buffers too, is planned by liveness: nothing is allocated in a run.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from math import prod

import numpy as np

from intarsia.arrays import Array
from intarsia.backends.cmsis_nn.layers import (
    COMPUTED,
    MOVES,
    bias_codes,
    columns_axis,
    refuse_layer,
    window_of,
)
from intarsia.backends.cmsis_nn.library import HEADER, Library
from intarsia.backends.tflite.layers import Codes, Layer, is_same, read_layers
from intarsia.codegen.emit.c_function import CFunction, c_function, dense
from intarsia.codegen.fixed_point import (
    ADD_SHIFT,
    FixedPointFactor,
    code_of,
    factor_of,
    softmax_factor,
    softmax_least,
)
from intarsia.codegen.ir import Buffer
from intarsia.codegen.lower.program import Argument, Call, MemoryBlock, Program, place_scratch
from intarsia.codegen.storage import StorageKind
from intarsia.errors import BackendError
from intarsia.graph.region import Region

_IMAGE = 4
_STACK_BYTES = 1024
"""What a call takes of the stack: the library keeps what is large in its buffers."""


def lower_region(region: Region, library: Library, variant: str) -> Program:
    """Return a region as calls of the library.

    Args:
        region: Of layers that are all computed.
        library: Asked for the sizes of its buffers.
        variant: For which build of it: `_mve`, `_dsp`, or empty for this machine's.

    Raises:
        BackendError: Some node is in no layer that the library computes.
    """
    reading = read_layers(region, COMPUTED, refuse_layer)
    for number, reason in reading.reasons.items():
        node = region.graph.nodes[number]
        raise BackendError(f"{node.name!r} ({node.op_type}) is not computed: {reason}")
    draft = _ProgramDraft(region, library, variant)
    for layer in reading.layers:
        draft.append(layer)
    return draft.finish()


def _dims(*sizes: int) -> str:
    return "{" + ", ".join(map(str, sizes)) + "}"


class _ProgramDraft:
    """A program while calls are added."""

    def __init__(self, region: Region, library: Library, variant: str) -> None:
        self._region, self._library, self._variant = region, library, variant
        self._values = region.graph.values
        self._storages: list[MemoryBlock] = []
        self._constants: dict[str, Array] = {}
        self._kernels: dict[str, CFunction] = {}
        self._calls: list[Call] = []
        self._forms: dict[tuple[int, bool], int] = {}
        self._outputs = {value: number for number, value in enumerate(region.outputs)}
        for number, value in enumerate(region.inputs):
            nbytes = self._values[value].nbytes
            self._forms[value, False] = self._storage(StorageKind.INPUT, number, nbytes)

    # Memory

    def _storage(self, kind: StorageKind, index: int, nbytes: int) -> int:
        self._storages.append(MemoryBlock(kind, index, nbytes))
        return len(self._storages) - 1

    def _scratch(self, nbytes: int) -> int:
        return self._storage(StorageKind.SCRATCH, 0, nbytes)

    def _constant(self, name: str, array: Array) -> int:
        """Return the storage of an array that is known now."""
        array = np.ascontiguousarray(array)
        unique, count = name, 1
        while unique in self._constants and not np.array_equal(self._constants[unique], array):
            unique, count = f"{name}/{count}", count + 1
        names = list(self._constants)
        if unique in self._constants:
            index = names.index(unique)
            return next(
                number
                for number, block in enumerate(self._storages)
                if block.kind is StorageKind.CONSTANT and block.index == index
            )
        self._constants[unique] = array
        return self._storage(StorageKind.CONSTANT, len(names), array.nbytes)

    def _is_turned(self, shape: Sequence[int]) -> bool:
        """Tell whether a tensor lies otherwise with its channels last."""
        return len(shape) == _IMAGE and shape[1] != 1 and prod(shape[2:]) != 1

    def _has_last(self, codes: Codes) -> bool:
        """Tell whether codes are there with channels last, and so an image."""
        return (codes.value.id, True) in self._forms

    def _read(self, codes: Codes, *, is_last: bool) -> int:
        """Return the storage of codes in one order of dimensions."""
        shape = codes.shape
        key = codes.value.id, is_last and self._is_turned(shape)
        if key in self._forms:
            return self._forms[key]
        if codes.is_constant:
            array = codes.array().reshape(shape)
            name = f"{codes.value.name}/last" if key[1] else codes.value.name
            place = self._constant(name, np.moveaxis(array, 1, -1) if key[1] else array)
        else:
            place = self._scratch(prod(shape))
            self._turn(self._forms[key[0], not key[1]], place, shape, is_last=key[1])
        self._forms[key] = place
        return place

    def _target(self, codes: Codes, *, is_last: bool) -> int:
        """Return the storage of a result: an output of the region if that has this order."""
        value = codes.value.id
        is_turned = is_last and self._is_turned(codes.shape)
        if value in self._outputs and not is_turned:
            place = self._storage(StorageKind.OUTPUT, self._outputs[value], prod(codes.shape))
        else:
            place = self._scratch(prod(codes.shape))
        self._forms[value, is_turned] = place
        return place

    def _leave(self, layer: Layer) -> None:
        """Put a result where the region is to leave it, if it is elsewhere."""
        value = layer.result.value.id
        if value in self._outputs and (value, False) not in self._forms:
            shape = layer.result.shape
            place = self._storage(StorageKind.OUTPUT, self._outputs[value], prod(shape))
            self._turn(self._forms[value, True], place, shape, is_last=False)
            self._forms[value, False] = place

    # Calls

    def _call(
        self,
        what: str,
        body: str,
        arguments: Sequence[tuple[str, str, int]],
        nodes: Sequence[str],
        note: str = "",
    ) -> None:
        """Append a call of a C function.

        Args:
            what: Part of its name.
            body: Its statements; the last returns 0, or what failed.
            arguments: Name, dtype and storage of each; those called `y` and `buffer` are written.
            nodes: Names of the nodes that it computes.
            note: What it does, for people.
        """
        buffers: list[Buffer] = []
        for name, dtype, place in arguments:
            size = int(self._storages[place].nbytes) // np.dtype(dtype).itemsize
            is_written = name in ("y", "buffer")
            buffers.append(dense(name, dtype, (size,), is_written=is_written))
        passed = ", ".join(
            f"{'' if buffer.is_written else 'const '}{buffer.dtype}_t *{buffer.name}"
            for buffer in buffers
        )
        name = f"cmsis_{what}_{hashlib.sha256(f'{passed}{body}'.encode()).hexdigest()[:10]}"
        source = f"static int {name}({passed})\n{{\n{body}}}\n"
        if name not in self._kernels:
            includes = (f'"{HEADER}"',)
            self._kernels[name] = c_function(
                name, tuple(buffers), source, includes=includes, stack_bytes=_STACK_BYTES
            )
        number = list(self._kernels).index(name)
        places = tuple(Argument(place, 0) for _, _, place in arguments)
        self._calls.append(Call(number, places, 1, tuple(nodes), note))

    def _turn(self, source: int, target: int, shape: Sequence[int], *, is_last: bool) -> None:
        """Append a loop that puts channels last, or before the pixels."""
        n, c, h, w = shape
        pixels = h * w
        first, last = f"(i * {c} + c) * {pixels} + p", f"(i * {pixels} + p) * {c} + c"
        to, of = (last, first) if is_last else (first, last)
        body = (
            f"    for (int32_t i = 0; i < {n}; i++)\n"
            f"        for (int32_t c = 0; c < {c}; c++)\n"
            f"            for (int32_t p = 0; p < {pixels}; p++)\n"
            f"                y[{to}] = x[{of}];\n"
            "    return 0;\n"
        )
        arguments = (("x", "int8", source), ("y", "int8", target))
        self._call("turn", body, arguments, (), f"channels {'last' if is_last else 'first'}")

    def append(self, layer: Layer) -> None:
        """Append what computes a layer."""
        if layer.op_type in MOVES:
            self._move(layer)
        elif layer.op_type == "Conv":
            self._convolve(layer)
        elif layer.op_type in ("Gemm", "MatMul"):
            self._connect(layer)
        elif layer.op_type in ("Add", "Mul"):
            self._combine(layer)
        elif layer.op_type == "Softmax":
            self._softmax(layer)
        elif not layer.op_type.endswith("MaxPool") and not _keeps(layer):
            self._average(layer)
        else:
            self._pool(layer)
        self._leave(layer)

    def finish(self) -> Program:
        """Return the program."""
        calls = tuple(self._calls)
        storages, size = place_scratch(self._storages, calls)
        kernels = tuple(self._kernels.values())
        made = frozenset(self._constants)
        return Program(kernels, calls, storages, self._constants, made, size)

    def _names(self, layer: Layer) -> list[str]:
        return [self._region.graph.nodes[number].name for number in layer.nodes]

    def _buffer(self, function: str, *arguments: Sequence[int] | int) -> tuple[str, int | None]:
        """Return the text of a function's context, and its scratch memory; None for none."""
        nbytes = self._library.buffer_bytes(function, *arguments, variant=self._variant)
        text = f"    const cmsis_nn_context ctx = {{{'buffer' if nbytes else '0'}, {nbytes}}};\n"
        return text, self._scratch(nbytes) if nbytes else None

    def _move(self, layer: Layer) -> None:
        """Give codes another shape; they are copied only where the region is to leave them."""
        source = self._read(layer.operands[0], is_last=False)
        value, count = layer.result.value.id, prod(layer.result.shape)
        if value not in self._outputs:
            self._forms[value, False] = source
            return
        target = self._target(layer.result, is_last=False)
        body = f"    for (int32_t i = 0; i < {count}; i++)\n        y[i] = x[i];\n    return 0;\n"
        self._call("copy", body, (("x", "int8", source), ("y", "int8", target)), self._names(layer))

    def _convolve(self, layer: Layer) -> None:
        x, weights = layer.operands
        outputs, inner, *_ = weights.shape
        groups = layer.operation.attribute("group", 1)
        array = weights.array().reshape(weights.shape)
        is_depthwise = inner == 1 and groups == x.shape[1] and groups > 1
        last = np.moveaxis(array, 1, -1)  # OHWI
        if is_depthwise:
            last = np.moveaxis(array[:, 0], 0, -1)  # HWO
        sums = tuple(x.quantity.scale * scale for scale in weights.quantity.scales)
        factors = [factor_of(scale / layer.result.quantity.scale) for scale in sums]
        factors = factors * outputs if len(factors) == 1 else factors
        name = f"{weights.value.name}/{'HWO' if is_depthwise else 'OHWI'}"
        self._window(
            layer, name, last, bias_codes(layer, sums), factors, inner, is_depthwise=is_depthwise
        )

    def _average(self, layer: Layer) -> None:
        """Average into other codes: a convolution by ones, whose factor divides."""
        x, channels = layer.operands[0], layer.result.shape[1]
        taps = window_of(layer).kernel
        factor = factor_of(x.quantity.scale / (layer.result.quantity.scale * prod(taps)))
        weights = np.ones((*taps, channels), np.int8)
        bias = np.zeros(channels, np.int32)
        name = f"ones of {'x'.join(map(str, weights.shape))}"
        self._window(layer, name, weights, bias, [factor] * channels, 1, is_depthwise=True)

    def _window(
        self,
        layer: Layer,
        name: str,
        weights: Array,
        bias: Array,
        factors: Sequence[FixedPointFactor],
        inner: int,
        *,
        is_depthwise: bool,
    ) -> None:
        """Append a convolution of images."""
        x, y, window = layer.operands[0], layer.result, window_of(layer)
        n, c, h, w = x.shape
        _, outputs, oh, ow = y.shape
        kh, kw = window.kernel
        stem, function = "conv", "arm_convolve_wrapper_s8"
        batch = n
        if is_depthwise:  # of one image at a time
            stem, function, batch = "dw_conv", "arm_depthwise_conv_wrapper_s8", 1
        offsets = [-x.quantity.zero, y.quantity.zero]
        multiple = [outputs // c] if is_depthwise else []
        tiles = [
            (window.strides[1], window.strides[0]),
            (window.pads[1][0], window.pads[0][0]),
            (window.dilations[1], window.dilations[0]),
        ]
        low, high = _limits(layer)
        numbers = [*offsets, *multiple, *(side for tile in tiles for side in tile), low, high]
        dims = {
            "in": (batch, h, w, c),
            "filter": (1, kh, kw, outputs) if is_depthwise else (outputs, kh, kw, inner),
            "bias": (1, 1, 1, outputs),
            "out": (batch, oh, ow, outputs),
        }
        context, buffer = self._buffer(function, numbers, dims["in"], dims["filter"], dims["out"])
        listed = ", ".join(
            [*map(str, [*offsets, *multiple]), *(_dims(*tile) for tile in tiles), _dims(low, high)]
        )
        body = context + f"    const cmsis_nn_{stem}_params params = {{{listed}}};\n"
        body += (
            "    const cmsis_nn_per_channel_quant_params quant = "
            "{(int32_t *)multipliers, (int32_t *)shifts};\n"
        )
        for side, sizes in dims.items():
            body += f"    const cmsis_nn_dims {side} = {_dims(*sizes)};\n"
        call = (
            f"{function}(&ctx, &params, &quant, &in, x{{from}}, &filter, weights, "
            "&bias, sums, &out, y{to})"
        )
        if batch == n:
            whole = call.format(**{"from": "", "to": ""})
            body += f"    return {whole} != ARM_CMSIS_NN_SUCCESS;\n"
        else:
            steps = {"from": f" + i * {c * h * w}", "to": f" + i * {outputs * oh * ow}"}
            body += (
                f"    for (int32_t i = 0; i < {n}; i++)\n"
                f"        if ({call.format(**steps)} != ARM_CMSIS_NN_SUCCESS)\n"
                "            return -1;\n    return 0;\n"
            )
        source = self._read(x, is_last=True)
        stored = f"{layer.operation.node.name}/"
        arguments = [
            ("x", "int8", source),
            ("weights", "int8", self._constant(name, weights)),
            ("sums", "int32", self._constant(f"{stored}bias", bias)),
            *self._factors(stored, factors),
            *((("buffer", "uint8", buffer),) if buffer is not None else ()),
            ("y", "int8", self._target(y, is_last=True)),
        ]
        self._call("depthwise" if is_depthwise else "convolve", body, arguments, self._names(layer))

    def _factors(
        self, stem: str, factors: Sequence[FixedPointFactor]
    ) -> list[tuple[str, str, int]]:
        multipliers = np.array([factor.multiplier for factor in factors], np.int32)
        shifts = np.array([factor.shift for factor in factors], np.int32)
        return [
            ("multipliers", "int32", self._constant(f"{stem}multipliers", multipliers)),
            ("shifts", "int32", self._constant(f"{stem}shifts", shifts)),
        ]

    def _connect(self, layer: Layer) -> None:
        """Append a product with a matrix."""
        x, weights = layer.operands
        array = weights.array().reshape(weights.shape)
        rows = array if columns_axis(layer) == 0 else array.T  # one for each result
        outputs, depth = rows.shape
        count = prod(x.shape[:-1])
        sums = tuple(x.quantity.scale * scale for scale in weights.quantity.scales)
        factors = [factor_of(scale / layer.result.quantity.scale) for scale in sums]
        is_by_channel = len(factors) > 1
        offset = -weights.quantity.zeros[0]
        function = "arm_fully_connected_s8"
        context, buffer = self._buffer(function, (depth, 1, 1, outputs))
        numbers = (-x.quantity.zero, offset, layer.result.quantity.zero)
        listed = ", ".join([*map(str, numbers), _dims(*_limits(layer))])
        body = context + f"    const cmsis_nn_fc_params params = {{{listed}}};\n"
        if is_by_channel:
            function = "arm_fully_connected_per_channel_s8"
            body += (
                "    const cmsis_nn_per_channel_quant_params quant = "
                "{(int32_t *)multipliers, (int32_t *)shifts};\n"
            )
        else:
            (factor,) = factors
            body += (
                "    const cmsis_nn_per_tensor_quant_params quant = "
                f"{{{factor.multiplier}, {factor.shift}}};\n"
            )
        for side, sizes in {
            "in": (count, 1, 1, depth),
            "filter": (depth, 1, 1, outputs),
            "bias": (1, 1, 1, outputs),
            "out": (count, 1, 1, outputs),
        }.items():
            body += f"    const cmsis_nn_dims {side} = {_dims(*sizes)};\n"
        if buffer is not None:  # with Helium, sums of weights are made before
            body += (
                f"    if (arm_vector_sum_s8((int32_t *)buffer, {depth}, {outputs}, weights, "
                f"{numbers[0]}, {offset}, sums) != ARM_CMSIS_NN_SUCCESS)\n        return -1;\n"
            )
        body += (
            f"    return {function}(&ctx, &params, &quant, &in, x, &filter, weights, &bias, sums, "
            "&out, y) != ARM_CMSIS_NN_SUCCESS;\n"
        )
        source = self._read(x, is_last=False)
        stored = f"{layer.operation.node.name}/"
        arguments = [
            ("x", "int8", source),
            ("weights", "int8", self._constant(f"{weights.value.name}/rows", rows)),
            ("sums", "int32", self._constant(f"{stored}bias", bias_codes(layer, sums))),
            *(self._factors(stored, factors) if is_by_channel else ()),
            *((("buffer", "uint8", buffer),) if buffer is not None else ()),
            ("y", "int8", self._target(layer.result, is_last=False)),
        ]
        self._call("connect", body, arguments, self._names(layer))

    def _pool(self, layer: Layer) -> None:
        x, y, window = layer.operands[0], layer.result, window_of(layer)
        n, c, h, w = x.shape
        _, _, oh, ow = y.shape
        is_average = layer.op_type.endswith("AveragePool")
        function = "arm_avgpool_s8" if is_average else "arm_max_pool_s8"
        context, buffer = "    const cmsis_nn_context ctx = {0, 0};\n", None
        if is_average:
            context, buffer = self._buffer(function, ow, c)
        stride = _dims(window.strides[1], window.strides[0])
        padding = _dims(window.pads[1][0], window.pads[0][0])
        limits = _dims(*_limits(layer))
        body = context
        body += f"    const cmsis_nn_pool_params params = {{{stride}, {padding}, {limits}}};\n"
        for side, sizes in {
            "in": (n, h, w, c),
            "filter": (1, *window.kernel, 1),
            "out": (n, oh, ow, c),
        }.items():
            body += f"    const cmsis_nn_dims {side} = {_dims(*sizes)};\n"
        body += (
            f"    return {function}(&ctx, &params, &in, x, &filter, &out, y) "
            "!= ARM_CMSIS_NN_SUCCESS;\n"
        )
        source = self._read(x, is_last=True)
        arguments = [
            ("x", "int8", source),
            *((("buffer", "uint8", buffer),) if buffer is not None else ()),
            ("y", "int8", self._target(y, is_last=True)),
        ]
        self._call("average" if is_average else "largest", body, arguments, self._names(layer))

    def _combine(self, layer: Layer) -> None:
        """Append a sum or a product of two tensors of one shape."""
        a, b = (codes.quantity for codes in layer.operands)
        y = layer.result.quantity
        is_last = any(self._has_last(codes) for codes in layer.operands)
        places = [self._read(codes, is_last=is_last) for codes in layer.operands]
        count, (low, high) = prod(layer.result.shape), _limits(layer)
        if layer.op_type == "Mul":
            scale = np.float32(a.scale) * np.float32(b.scale) / np.float32(y.scale)
            factor = factor_of(float(scale))
            numbers = [-a.zero, -b.zero, "y", y.zero, factor.multiplier, factor.shift]
        else:
            twice = 2 * max(a.scale, b.scale)
            first, second = (factor_of(item.scale / twice) for item in (a, b))
            total = factor_of(twice / ((1 << ADD_SHIFT) * y.scale))
            numbers = [-a.zero, first.multiplier, first.shift, -b.zero, second.multiplier]
            numbers += [second.shift, ADD_SHIFT, "y", y.zero, total.multiplier, total.shift]
        listed = ", ".join(map(str, [*numbers, low, high, count]))
        function = f"arm_elementwise_{layer.op_type.lower()}_s8"
        body = f"    return {function}(a, b, {listed}) != ARM_CMSIS_NN_SUCCESS;\n"
        arguments = (
            ("a", "int8", places[0]),
            ("b", "int8", places[1]),
            ("y", "int8", self._target(layer.result, is_last=is_last)),
        )
        self._call(layer.op_type.lower(), body, arguments, self._names(layer))

    def _softmax(self, layer: Layer) -> None:
        x = layer.operands[0]
        factor = softmax_factor(x.quantity.scale)
        *rows, entries = x.shape
        listed = f"{prod(rows)}, {entries}, {factor.multiplier}, {factor.shift}"
        body = f"    arm_softmax_s8(x, {listed}, {softmax_least(factor)}, y);\n    return 0;\n"
        source = self._read(x, is_last=False)
        arguments = (
            ("x", "int8", source),
            ("y", "int8", self._target(layer.result, is_last=False)),
        )
        self._call("softmax", body, arguments, self._names(layer))


def _keeps(layer: Layer) -> bool:
    return is_same(layer.operands[0].quantity, layer.result.quantity)


def _limits(layer: Layer) -> tuple[int, int]:
    """Return the least and the largest code of a result, with an activation in them."""
    limits, quantity = np.iinfo(np.int8), layer.result.quantity
    low, high = layer.limits
    least, largest = int(limits.min), int(limits.max)
    if low != -np.inf:
        least = min(largest, max(least, code_of(low, quantity.scale, quantity.zero)))
    if high != np.inf:
        largest = max(least, min(largest, code_of(high, quantity.scale, quantity.zero)))
    return least, largest
