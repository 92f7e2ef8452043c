# SPDX-License-Identifier: Apache-2.0
"""Quantises a model by another library, and leaves in f32 what keeps it from being good enough.

    model -> load, fold -> read samples -> a quantiser
          -> everything narrow: its error on the trial
          -> regions: the error of each alone
          -> the fewest of the worst in f32 so that the bound holds -> Quantized

What has been measured is kept in the cache folder: the next run goes on where one was killed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnx_ir as ir
from onnx import version_converter

from intarsia.backends.artifact import first_line
from intarsia.errors import AccuracyError, InputError, ModelError, SettingError
from intarsia.files import whole_file, writing_hint
from intarsia.graph.load import load, read_signature
from intarsia.graph.metadata import CALLS_KEY, CLAIM_KEY, ORIGIN_KEY
from intarsia.hashing import digest
from intarsia.passes.prepare import PASSES, prepare
from intarsia.place.request import quiet
from intarsia.quantizing.accuracy import AccuracyTrial, OutputError, worst
from intarsia.quantizing.journal import Journal
from intarsia.quantizing.libraries import import_library
from intarsia.quantizing.quantizers import Scheme, make_quantizer
from intarsia.quantizing.regions import (
    QuantizedRegion,
    count_measurements,
    fewest_left,
    find_regions,
    nodes_of,
)
from intarsia.quantizing.samples import Samples, divide, make_samples, read_samples
from intarsia.settings import Settings

if TYPE_CHECKING:
    from intarsia.graph.free_sizes import FreeSignature
    from intarsia.graph.load import ModelLike, Shapes
    from intarsia.place.request import Progress
    from intarsia.quantizing.samples import Given

MAX_ERROR = 0.1
"""Relative error that outputs may have unless the user says otherwise: 20 dB."""

_PASSES = (
    *("remove-unused", "lift-constants", "fold-constants", "eliminate-identities", "fuse-affine"),
    *("remove-unused",),
)
"""Before quantising: constants have to be there, and batch norms inside convolutions."""

_FOLLOWERS = frozenset(
    (
        *("AveragePool", "Clip", "Concat", "Flatten", "Gather", "GatherElements", "MaxPool", "Pad"),
        *("Relu", "Reshape", "Resize", "Slice", "Split", "Squeeze", "TopK", "Transpose"),
        *("Unsqueeze",),
    )
)
"""Operators that are narrow where their neighbours are, unless they read narrow weights."""

_MADE_UP = 4
"""Samples that are made up where none are given and no range is read from them."""

_RANKED = 8
"""Most samples of the trial on which regions are compared; the bound is held on all."""

_INSIDE = 2
"""Likewise on which tensors inside are compared."""

_NAMED = 5
"""Regions that a message names."""


@dataclass(frozen=True, slots=True)
class RegionReport:
    """What became of some quantised nodes.

    Attributes:
        nodes: Their names, in the model's order.
        operators: Of each.
        error: Of the model's outputs if they alone are quantised, on up to 8 samples.
        error_here: Of what the last of them computes if everything is quantised; None where the
            quantised model does not have that tensor.
        is_left: Whether they are left in f32.
    """

    nodes: tuple[str, ...]
    operators: tuple[str, ...]
    error: float
    error_here: float | None
    is_left: bool


@dataclass(frozen=True, slots=True)
class QuantizationReport:
    """How good a quantised model is.

    Attributes:
        scheme: What was done, in words.
        quantizer: The library, with its version.
        samples: How many samples ranges were read from; 0 if none.
        trial: How many samples the error was measured on.
        is_held_out: Whether no range was read from these.
        is_made_up: Whether they were made up.
        max_error: The bound.
        error_at_first: Of the model with everything quantised.
        outputs: The errors of the float outputs.
        quantized: How many nodes are quantised.
        left: Names of nodes that are left in f32 for the bound's sake, in the model's order.
        regions: All regions, the worst first.
        nbytes: Of the model in f32.
        quantized_nbytes: Of the result.
    """

    scheme: str
    quantizer: str
    samples: int
    trial: int
    is_held_out: bool
    is_made_up: bool
    max_error: float
    error_at_first: float
    outputs: tuple[OutputError, ...]
    quantized: int
    left: tuple[str, ...]
    regions: tuple[RegionReport, ...]
    nbytes: int
    quantized_nbytes: int

    @property
    def error(self) -> float:
        """The relative error of the worst output."""
        return worst(self.outputs)


@dataclass(frozen=True, slots=True)
class Quantized:
    """A quantised model, and how good it is."""

    model: onnx.ModelProto = field(repr=False)
    report: QuantizationReport

    def save(self, file: str | Path) -> None:
        """Write the model.

        Raises:
            SettingError: The file cannot be written.
        """
        try:
            with whole_file(file) as draft:
                draft.write_bytes(self.model.SerializeToString())
        except OSError as error:
            raise SettingError(
                f"cannot write {str(file)!r}: {error.strerror or error}",
                hint=writing_hint(error),
            ) from error


def quantize(  # noqa: PLR0913 - the options that users expect
    model: ModelLike,
    to: str = "int8",
    *,
    calibrate: Given | None = None,
    validate: Given | None = None,
    max_error: float = MAX_ERROR,
    quantizer: str = "onnxruntime",
    dynamic: bool = False,
    per_channel: bool = True,
    reduce_range: bool = False,
    ranges: str = "minmax",
    block: int = 32,
    form: str = "MatMulNBits",
    shapes: Shapes | None = None,
    seed: int = 0,
    num_threads: int | None = None,
    progress: Progress = quiet,
) -> Quantized:
    """Quantise a model by ONNX Runtime or NNCF, with some nodes in f32 so that a bound holds.

    Args:
        model: A path, the bytes of a file, a `ModelProto` or an `onnx_ir.Model`.
        to: `int8`: weights and activations; `int4`: the weights of products.
        calibrate: Samples: `.npz` files with an array for each input, folders of these, or such
            arrays. The first axis counts samples. Every fourth is held out for the trial. None:
            for what needs no ranges, samples are made up.
        validate: Samples for the trial; all of `calibrate` then serve for ranges.
        max_error: Largest relative error of an output over all samples of the trial: the root of
            the sum of squared differences over that of squared values.
        quantizer: `onnxruntime` or `nncf`.
        dynamic: Of int8, whether ranges of activations are read from each run.
        per_channel: Of int8, whether weights have a scale for each output channel.
        reduce_range: Of int8, whether weights have 7 bits, for runtimes that let sums of 16 bits
            saturate on x86 CPUs without VNNI; Intarsia's do not.
        ranges: Of static int8 by ONNX Runtime: `minmax`, `entropy` or `percentile`.
        block: Of int4, how many weights share a scale.
        form: Of int4 by ONNX Runtime: `MatMulNBits` (its own operator), or ONNX's own
            `DequantizeLinear` of opset 21.
        shapes: As of `compile`, for dimensions that the model leaves free; they may stay free.
        seed: For samples that are made up.
        num_threads: Threads of a run; None means the setting.
        progress: Told what is going on: a stage, how much is done, of how much.

    Raises:
        AccuracyError: The bound does not hold unless everything stays in f32.
        InputError: Samples are missing where ranges are read from them, or do not fit.
        ModelError: Nothing in the model can be quantised, or the model cannot be read.
        BackendError: The library is not installed, or failed.
        SettingError: An option has no such value.
    """
    scheme = Scheme(to, quantizer, dynamic, per_channel, reduce_range, ranges, block, form)
    if not max_error > 0:
        raise SettingError(
            f"--max-error {max_error} is not above 0", hint="write --max-error 0.1 (20 dB)"
        )
    import_library("onnxruntime")
    settings = Settings.from_environment()
    progress("load", 0, 1)
    prepared, signature = _prepare(model, shapes, scheme.opset)
    samples = _find_samples(scheme, signature, calibrate, validate, seed)
    threads = settings.threads(num_threads)
    search = _Search(scheme, prepared, samples, threads, settings.cache_folder(), progress)
    return search.run(max_error, is_made_up=calibrate is None and validate is None)


def _prepare(
    model: ModelLike, shapes: Shapes | None, opset: int
) -> tuple[onnx.ModelProto, FreeSignature]:
    """Return the model as quantisers want it, and what it takes."""
    loaded = load(model, shapes, stays_free=True)
    if loaded.opset_imports.get("", opset) < opset:
        loaded = load(_convert(_to_proto(loaded), opset), stays_free=True)
    signature = read_signature(loaded, {})
    passes = [(name, PASSES[name]) for name in _PASSES]
    proto = _to_proto(prepare(loaded, passes).model)
    proto.ir_version = max(proto.ir_version, _IR_OF_INT4 if opset >= _OPSET_OF_INT4 else 0)
    return proto, signature


_OPSET_OF_INT4, _IR_OF_INT4 = 21, 10


def _to_proto(model: ir.Model) -> onnx.ModelProto:
    """Return a model with its weights inside and nothing of what we note on nodes and values."""
    tensors = [value.const_value for value in model.graph.initializers.values()]
    if sum(tensor.nbytes for tensor in tensors if tensor is not None) >= _MOST_BYTES:
        raise ModelError(
            "the model has 2 GiB of weights or more, and is quantised as one message of protobuf",
            hint="quantise its parts, or use the library's own tools on files",
        )
    for value in model.graph.initializers.values():
        if isinstance(value.const_value, ir.ExternalTensor):
            tensor = value.const_value
            value.const_value = ir.Tensor(tensor.numpy().copy(), tensor.dtype, name=tensor.name)
    proto = ir.to_proto(model)
    for owner in (*proto.graph.node, *proto.graph.value_info, *proto.graph.output):
        kept = [one for one in owner.metadata_props if one.key not in _NOTES]
        if len(kept) < len(owner.metadata_props):
            del owner.metadata_props[:]
            owner.metadata_props.extend(kept)
    return proto


_MOST_BYTES = 2**31 - 2**20
_NOTES = frozenset((ORIGIN_KEY, CLAIM_KEY, CALLS_KEY))


def _convert(model: onnx.ModelProto, opset: int) -> onnx.ModelProto:
    try:
        converted = version_converter.convert_version(model, opset)
    except Exception as error:  # a library's own, of any kind
        raise ModelError(
            f"the model cannot be converted to opset {opset}, which quantising needs: "
            f"{first_line(error)}",
            hint=f"export it with opset {opset} or newer",
        ) from error
    del converted.metadata_props[:]
    converted.metadata_props.extend(model.metadata_props)
    return converted


def _find_samples(
    scheme: Scheme,
    signature: FreeSignature,
    calibrate: Given | None,
    validate: Given | None,
    seed: int,
) -> Samples:
    if calibrate is None and scheme.needs_samples:
        raise InputError(
            "ranges of activations are read from real inputs, and there are none",
            hint="give --calibrate FILE.npz, or --dynamic, which reads them from each run",
        )
    if calibrate is None and validate is None:
        made = make_samples(signature, seed, _MADE_UP)
        return Samples((), made, is_held_out=True)
    given = () if calibrate is None else read_samples(calibrate, signature)
    trial = () if validate is None else read_samples(validate, signature)
    if not scheme.needs_samples:
        return Samples((), trial or given, is_held_out=True)
    return Samples(given, trial, is_held_out=True) if trial else divide(given)


class _Search:
    """One model, one scheme: what has been measured, and how to measure more."""

    def __init__(
        self,
        scheme: Scheme,
        model: onnx.ModelProto,
        samples: Samples,
        threads: int,
        caches: Path,
        progress: Progress,
    ) -> None:
        self._scheme, self._model, self._samples = scheme, model, samples
        self._tell = progress
        progress("ranges" if scheme.needs_samples else "quantise", 0, 1)
        self._quantizer, self._library = make_quantizer(scheme, model, samples.calibration)
        progress("trial in f32", 0, 1)
        self._trial = AccuracyTrial(model, samples.trial, threads)
        self._ranking = self._trial.first(_RANKED)
        facts = [
            *(digest([model.SerializeToString().hex()]), samples.digest(), repr(scheme)),
            *(self._library, import_library("onnxruntime").__version__, str(threads)),
        ]
        self._journal = Journal(caches, digest(facts))

    def run(self, max_error: float, *, is_made_up: bool) -> Quantized:
        """Return the model of which the bound holds.

        Raises:
            AccuracyError: There is none.
        """
        first = self._quantize(frozenset())
        nodes = quantized_nodes(self._model, first, self._quantizer.operators)
        if not nodes:
            raise _nothing(self._scheme)
        at_first = worst(self._errors(self._trial, frozenset()))
        steps = _MeasurementCount(self._tell, "regions", count_measurements(len(nodes)))
        regions = find_regions(nodes, lambda left: steps(self._rank(left)))
        left: frozenset[str] = frozenset()
        if at_first > max_error:
            steps = _MeasurementCount(self._tell, "bound", max(len(regions).bit_length(), 1))
            harmful = [region for region in regions if region.error > 0]
            count = fewest_left(
                harmful,
                lambda left: steps(worst(self._errors(self._trial, left))) <= max_error,
            )
            if count is None:
                raise self._hopeless(max_error, at_first, regions)
            left = nodes_of(harmful[:count])
        result = first if not left else self._quantize(left)
        outputs = self._errors(self._trial, left)
        final = _restore(result, self._model)
        here = self._trial_inside(first, nodes)
        operators = {node.name: node.op_type for node in self._model.graph.node}
        report = QuantizationReport(
            scheme=str(self._scheme),
            quantizer=self._library,
            samples=len(self._samples.calibration),
            trial=len(self._samples.trial),
            is_held_out=self._samples.is_held_out,
            is_made_up=is_made_up,
            max_error=max_error,
            error_at_first=at_first,
            outputs=outputs,
            quantized=len(nodes) - len(left),
            left=tuple(node for node in nodes if node in left),
            regions=tuple(
                RegionReport(
                    region.nodes,
                    tuple(operators[node] for node in region.nodes),
                    region.error,
                    here.get(region.nodes[-1]),
                    region.nodes[0] in left,
                )
                for region in regions
            ),
            nbytes=self._model.ByteSize(),
            quantized_nbytes=final.ByteSize(),
        )
        return Quantized(final, report)

    def _quantize(self, left: frozenset[str]) -> onnx.ModelProto:
        return self._quantizer.quantize(left)

    def _rank(self, left: frozenset[str]) -> float:
        return worst(self._errors(self._ranking, left))

    def _errors(self, trial: AccuracyTrial, left: frozenset[str]) -> tuple[OutputError, ...]:
        """Return the errors of the outputs with some nodes in f32; each is measured once."""
        key = digest([str(trial.size), *sorted(left)])
        return self._journal.recall(key, lambda: trial.compare(self._quantize(left)))

    def _trial_inside(self, quantized: onnx.ModelProto, nodes: Sequence[str]) -> dict[str, float]:
        """Return the error of what each node computes, where both models have that tensor."""
        tensors = _same_tensors(self._model, quantized, nodes)
        self._tell("tensors inside", 0, 1)
        names = dict(tensors.values())
        errors = self._trial.first(_INSIDE).compare_inside(self._model, quantized, names)
        return {node: errors[tensor] for node, (tensor, _) in tensors.items()}

    def _hopeless(
        self, max_error: float, at_first: float, regions: Sequence[QuantizedRegion]
    ) -> AccuracyError:
        named = ", ".join(
            f"{region.nodes[0]}{' and more' if len(region.nodes) > 1 else ''} {region.error:.3g}"
            for region in regions[:_NAMED]
        )
        return AccuracyError(
            f"with everything quantised the error is {at_first:.3g}, and the bound of "
            f"{max_error:g} holds with nothing quantised only; alone: {named}",
            hint="give more or better samples, a larger --max-error, or another scheme "
            "(--ranges percentile, --to int8, --quantizer)",
        )


class _MeasurementCount:
    """Tells how many measurements are done."""

    def __init__(self, tell: Progress, stage: str, total: int) -> None:
        self._tell, self._stage, self._total, self._done = tell, stage, total, 0
        tell(stage, 0, total)

    def __call__(self, error: float) -> float:
        self._done += 1
        self._tell(self._stage, self._done, max(self._total, self._done))
        return error


def quantized_nodes(
    model: onnx.ModelProto, quantized: onnx.ModelProto, operators: frozenset[str] | None
) -> tuple[str, ...]:
    """Return the nodes of a model that are narrow in another, in order.

    They have become other operators, or read what was dequantised.

    Args:
        model: In f32.
        quantized: All of it quantised.
        operators: Those that may be; None if any.
    """
    constants = {tensor.name for tensor in quantized.graph.initializer}
    sources = {
        node.output[0]: node.input[0]
        for node in quantized.graph.node
        if node.op_type == "DequantizeLinear"
    }
    kept = {node.name: node for node in quantized.graph.node}
    names = []
    for node in model.graph.node:
        if operators is not None and node.op_type not in operators:
            continue
        later = kept.get(node.name)
        if later is None or later.op_type != node.op_type:
            is_narrow = node.op_type not in _FOLLOWERS or (
                later is not None and later.op_type != node.op_type
            )
        else:
            read = [sources[name] for name in later.input if name in sources]
            is_narrow = bool(read) and (
                node.op_type not in _FOLLOWERS or any(name in constants for name in read)
            )
        if is_narrow:
            names.append(node.name)
    return tuple(names)


def _same_tensors(
    model: onnx.ModelProto, quantized: onnx.ModelProto, nodes: Sequence[str]
) -> dict[str, tuple[str, str]]:
    """Return, by node, the tensor that it computes or an activation makes of it, in both models.

    Quantisers drop an activation that a range of uint8 stands for: what comes after it is
    compared where it was rounded.
    """
    there = {name for node in quantized.graph.node for name in node.output}
    readers: dict[str, list[onnx.NodeProto]] = {}
    for node in model.graph.node:
        for name in node.input:
            readers.setdefault(name, []).append(node)
    wanted, found = set(nodes), {}
    for node in model.graph.node:
        if node.name not in wanted:
            continue
        tensors = [node.output[0]]
        after = readers.get(node.output[0], [])
        if len(after) == 1 and after[0].op_type in ("Relu", "Clip"):
            tensors.insert(0, after[0].output[0])
        for tensor in tensors:
            other = f"{tensor}{_ROUNDED}" if f"{tensor}{_ROUNDED}" in there else tensor
            if other in there:
                found[node.name] = (tensor, other)
                break
    return found


_ROUNDED = "_DequantizeLinear_Output"
"""How ONNX Runtime's quantiser names a tensor after both operators."""


def _restore(quantized: onnx.ModelProto, model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a quantised model that takes and says what the model did."""
    result = onnx.ModelProto()
    result.CopyFrom(quantized)
    del result.metadata_props[:]
    result.metadata_props.extend(model.metadata_props)
    result.doc_string, result.domain = model.doc_string, model.domain
    result.model_version, result.graph.name = model.model_version, model.graph.name
    for name in ("input", "output"):
        del getattr(result.graph, name)[:]
        getattr(result.graph, name).extend(getattr(model.graph, name))
    return result


def _nothing(scheme: Scheme) -> ModelError:
    what = "no MatMul with constant weights" if scheme.to == "int4" else "no operator that it takes"
    return ModelError(
        f"{scheme.library} quantises nothing in this model: it has {what}",
        hint="--to int8 takes Conv and Gemm, too" if scheme.to == "int4" else None,
    )
