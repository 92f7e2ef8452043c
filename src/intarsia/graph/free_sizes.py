# SPDX-License-Identifier: Apache-2.0
"""The inputs and outputs of a model with free dimensions, and the sizes that arrays give them.

Light: a package with free dimensions runs without onnx.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import TypeAlias

from intarsia.errors import InputError, ModelError
from intarsia.extents import Expression, Extent, Symbol, evaluate, free_symbols, parse_extent
from intarsia.graph.model_info import ModelInfo

NOMINAL_SIZE = 128
"""What a free dimension is for estimates and explanations, unless it is a batch."""


@dataclass(frozen=True, slots=True)
class FreeSpec:
    """An input or output whose sizes may be free.

    Attributes:
        name: Of the tensor.
        dtype: Element type, by its numpy or ml_dtypes name; "" if it is no tensor.
        shape: Its dimensions; None stands for one that nothing is known of, or for all of them.
    """

    name: str
    dtype: str
    shape: tuple[Extent | None, ...] | None

    @property
    def raw(self) -> RawSpec:
        """It as a model has it."""
        if self.shape is None:
            return RawSpec(self.name, self.dtype, None)
        dims = (str(one) if isinstance(one, Expression) else one for one in self.shape)
        return RawSpec(self.name, self.dtype, tuple(dims))

    @property
    def is_free(self) -> bool:
        """Whether it is a tensor whose shape is known only when it runs."""
        if self.shape is None:
            return bool(self.dtype)
        return not all(isinstance(extent, int) for extent in self.shape)

    def __str__(self) -> str:
        dims = (self.shape is None and "?") or ",".join(
            "?" if extent is None else str(extent) for extent in self.shape or ()
        )
        return f"{self.name}: {self.dtype}[{dims}]"


@dataclass(frozen=True, slots=True)
class FreeSignature:
    """What a model with free dimensions takes and returns.

    Attributes:
        symbols: The free dimensions, in the order in which the inputs have them.
        inputs: In the model's order.
        outputs: Likewise.
        info: What the model says of itself.
    """

    symbols: tuple[Symbol, ...]
    inputs: tuple[FreeSpec, ...]
    outputs: tuple[FreeSpec, ...]
    info: ModelInfo = field(default_factory=ModelInfo)

    @property
    def bounds(self) -> dict[str, tuple[int, int | None]]:
        """The smallest and largest size of each free dimension, by name."""
        return {symbol.name: (symbol.low, symbol.high) for symbol in self.symbols}

    def find_sizes(self, shapes: Mapping[str, tuple[int, ...]]) -> dict[str, int]:
        """Return the size of each free dimension, by its name.

        Args:
            shapes: Of the inputs that are tensors, by name.

        Raises:
            InputError: A shape does not fit; names the dimension and the inputs that disagree.
        """
        sizes: dict[str, int] = {}
        givers: dict[str, str] = {}
        derived: list[tuple[str, int, Expression, int]] = []
        for spec in self.inputs:
            if spec.shape is None or spec.name not in shapes:
                continue
            for axis, extent, size in _dimensions(spec, spec.shape, shapes[spec.name]):
                name = _plain_name(extent)
                if name is None:
                    derived.append((spec.name, axis, extent, size))
                elif sizes.setdefault(name, size) == size:
                    givers.setdefault(name, spec.name)
                else:
                    raise InputError(
                        f"dimension {name!r} is {sizes[name]} in input {givers[name]!r} but "
                        f"{size} in input {spec.name!r}",
                        hint=f"give {name!r} one size",
                    )
        for name, axis, extent, size in derived:
            if evaluate(extent, sizes) != size:
                names = sorted(symbol.name for symbol in extent.symbols)
                known = ", ".join(f"{n!r} is {sizes[n]} in input {givers[n]!r}" for n in names)
                raise InputError(
                    f"dimension {str(extent)!r} is {size} in input {name!r}, but {known}",
                    hint=f"give input {name!r} the size {evaluate(extent, sizes)} at axis {axis}",
                )
        for symbol in self.symbols:
            self._check_bounds(symbol, sizes, givers)
        return {symbol.name: sizes[symbol.name] for symbol in self.symbols if symbol.name in sizes}

    def _check_bounds(
        self, symbol: Symbol, sizes: Mapping[str, int], givers: Mapping[str, str]
    ) -> None:
        size = sizes.get(symbol.name)
        if size is None:
            return
        if size < symbol.low or (symbol.high is not None and size > symbol.high):
            raise InputError(
                f"dimension {symbol.name!r} is {size} in input {givers[symbol.name]!r}, and was "
                f"bounded to {bounds_text(symbol)}",
                hint="compile with other bounds, as in --shape "
                f"{symbol.name}={min(size, symbol.low)}..{max(size, symbol.high or size)}",
            )

    def shapes_at(self, sizes: Mapping[str, int]) -> dict[str, tuple[int, ...]]:
        """Return the shape of each input that is a tensor, for sizes.

        Args:
            sizes: Of every free dimension, by name.

        Raises:
            InputError: A size is missing, unknown or out of bounds, or an input has no rank.
        """
        names = [symbol.name for symbol in self.symbols]
        unknown = [name for name in sizes if name not in names]
        missing = [name for name in names if name not in sizes]
        if unknown or missing:
            problem = "there is no free dimension" if unknown else "there is no size for"
            raise InputError(
                f"{problem} {(unknown or missing)[0]!r}",
                hint=f"the free dimensions are {', '.join(map(repr, names)) or 'none'}",
            )
        rankless = [spec for spec in self.inputs if spec.dtype and spec.shape is None]
        if rankless:
            raise InputError(
                f"input {rankless[0].name!r} has no rank, so that sizes say nothing of it",
                hint=f"give its shape, as in --shape {rankless[0].name}=1x3x224x224",
            )
        shapes = {
            spec.name: tuple(evaluate(extent, sizes) for extent in spec.shape if extent is not None)
            for spec in self.inputs
            if spec.shape is not None
        }
        self.find_sizes(shapes)
        return shapes

    def nominal_sizes(self, sizes: Mapping[str, int] | None = None) -> dict[str, int]:
        """Return a size for each free dimension, for what needs some: estimates, explanations.

        A dimension that is nowhere but first is a batch, of 1; others are `NOMINAL_SIZE`; both as
        far as the bounds let them.

        Args:
            sizes: Those that are known, by name; they win.
        """
        inner = free_symbols(
            extent
            for spec in self.inputs
            for extent in (spec.shape or ())[1:]
            if extent is not None
        )
        nominal = {}
        for symbol in self.symbols:
            size = NOMINAL_SIZE if symbol in inner else 1
            nominal[symbol.name] = max(symbol.low, min(size, symbol.high or size))
        return {**nominal, **(sizes or {})}


def bounds_text(symbol: Symbol) -> str:
    """Return the bounds of a symbol as they are written: `1..8`, or `1..`."""
    return f"{symbol.low}..{'' if symbol.high is None else symbol.high}"


def sizes_text(sizes: Mapping[str, int]) -> str:
    """Return sizes as they are written: `batch=1, seq=128`."""
    return ", ".join(f"{name}={size}" for name, size in sizes.items())


def describe_free(
    signature: FreeSignature,
    sizes: Mapping[str, int],
    others: Sequence[Mapping[str, int]],
    *,
    is_generic: bool = False,
) -> str:
    """Return one line on free dimensions.

    Args:
        signature: What the model takes.
        sizes: Those that it is told for.
        others: Those that there are programs for.
        is_generic: Whether there is one for all sizes.
    """
    bounds = (
        f"{one} (from {one.low}{'' if one.high is None else f' to {one.high}'})"
        for one in signature.symbols
    )
    texts = [sizes_text(some) or "some shapes" for some in (sizes, *others)]
    texts += ["all sizes"] if is_generic else []
    return (
        f"free dimensions: {', '.join(bounds) or 'all of an input'}; this is for {texts[0]}; "
        f"there are programs for {'; '.join(texts[1:])}"
    )


class FreeSizesError(ModelError):
    """A model has free dimensions where none can be.

    Args:
        message: Which.
        signature: What the model takes and returns.
        hint: How to fix them.
    """

    def __init__(self, message: str, signature: FreeSignature, *, hint: str) -> None:
        super().__init__(message, hint=hint)
        self.signature = signature


SizesLike: TypeAlias = Mapping[str, int | Sequence[int]] | Sequence[Mapping[str, int]]
"""Sizes by free dimension, each with each; or a list of sizes by free dimension."""


def list_sizes(sizes: SizesLike) -> tuple[dict[str, int], ...]:
    """Return each sizes that are meant."""
    if not isinstance(sizes, Mapping):
        return tuple(map(dict, sizes))
    rows = [[size] if isinstance(size, int) else list(size) for size in sizes.values()]
    return tuple(dict(zip(sizes, row, strict=True)) for row in product(*rows))


@dataclass(frozen=True, slots=True)
class RawSpec:
    """An input or output as the model has it.

    Attributes:
        name: Of the tensor.
        dtype: As of `FreeSpec`.
        dims: Each a size, a name, or None; None if it has no rank.
    """

    name: str
    dtype: str
    dims: tuple[int | str | None, ...] | None


def make_signature(
    inputs: Sequence[RawSpec],
    outputs: Sequence[RawSpec],
    bounds: Mapping[str, tuple[int, int | None]],
    info: ModelInfo,
) -> FreeSignature:
    """Return a signature; dimensions of one name are one symbol.

    Args:
        inputs: As the model has them.
        outputs: Likewise.
        bounds: The smallest and largest size of dimensions, by name.
        info: What the model says of itself.
    """
    dims = {spec.name: spec.dims for spec in inputs if spec.dims is not None}
    extents, symbols = name_extents(dims, bounds)
    by_name = {symbol.name: symbol for symbol in symbols}

    def extent_of_output(dim: int | str | None) -> Extent | None:
        if dim is None or isinstance(dim, int):
            return dim
        return Expression.of(by_name[dim]) if dim in by_name else parse_extent(dim, by_name)

    return FreeSignature(
        symbols,
        tuple(FreeSpec(spec.name, spec.dtype, extents.get(spec.name)) for spec in inputs),
        tuple(
            FreeSpec(
                spec.name,
                spec.dtype,
                None if spec.dims is None else tuple(map(extent_of_output, spec.dims)),
            )
            for spec in outputs
        ),
        info,
    )


def parse_bounds(name: str, text: str) -> tuple[int, int | None]:
    """Read the bounds of a dimension: `1..8`, `1..`, or one size.

    Raises:
        ModelError: They are of another form, or the first is above the second.
    """
    low, dots, high = text.partition("..")
    ends = [end.strip() for end in (low, high if dots else low)]
    if not ends[0].isdecimal() or not (ends[1].isdecimal() or (dots and not ends[1])):
        raise ModelError(
            f"{text!r} are no bounds of dimension {name!r}",
            hint=f"write for example {name}=1..8, or {name}=128 for one size",
        )
    bounds = int(ends[0]), int(ends[1]) if ends[1] else None
    if bounds[1] is not None and bounds[1] < bounds[0]:
        raise ModelError(
            f"the bounds {text} of dimension {name!r} are empty", hint="put the smaller one first"
        )
    return bounds


def name_extents(
    shapes: Mapping[str, Sequence[int | str | None]], bounds: Mapping[str, tuple[int, int | None]]
) -> tuple[dict[str, tuple[Extent, ...]], tuple[Symbol, ...]]:
    """Return the shapes of inputs with a symbol for each free dimension, and the symbols.

    A dimension without a name is called after its input and axis (`ids.0`). A text such as
    `past + seq` is a sum if its parts are dimensions of inputs, else a name like others.

    Args:
        shapes: For each input its dimensions: a size, a name, or None.
        bounds: The smallest and largest size of dimensions, by name.
    """
    texts = {dim for dims in shapes.values() for dim in dims if isinstance(dim, str)}
    plain = {dim for dim in texts if not isinstance(parse_extent(dim, {}), int) and _is_name(dim)}
    names: dict[str, Symbol] = {}

    def symbol_of(name: str) -> Expression:
        return Expression.of(names.setdefault(name, Symbol(name, *bounds.get(name, (0, None)))))

    extents: dict[str, tuple[Extent, ...]] = {}
    for name, dims in shapes.items():
        row: list[Extent] = []
        for axis, dim in enumerate(dims):
            if isinstance(dim, int):
                row.append(dim)
                continue
            text = dim or _fresh_name(f"{name}.{axis}", texts)
            read = parse_extent(text, {})
            parts = {part.name for part in free_symbols([read])}
            if isinstance(read, Expression) and text not in plain and parts <= plain:
                known = {part: Symbol(part, *bounds.get(part, (0, None))) for part in parts}
                row.append(parse_extent(text, known))
            else:
                row.append(symbol_of(text))
        extents[name] = tuple(row)
    return extents, tuple(names.values())


def _is_name(text: str) -> bool:
    return {part.name for part in free_symbols([parse_extent(text, {})])} == {text}


def _fresh_name(name: str, taken: set[str]) -> str:
    while name in taken:
        name += "_"
    return name


def _dimensions(
    spec: FreeSpec, extents: Sequence[Extent | None], shape: tuple[int, ...]
) -> Iterator[tuple[int, Expression, int]]:
    """Yield the axis, the extent and the size of each free dimension.

    Raises:
        InputError: The rank or a fixed dimension differs.
    """
    if len(shape) != len(extents):
        raise _misfit(spec, shape, f"it has {len(extents)} dimensions")
    for axis, (extent, size) in enumerate(zip(extents, shape, strict=True)):
        if isinstance(extent, int) and extent != size:
            raise _misfit(spec, shape, f"dimension {axis} is {extent}")
        if isinstance(extent, Expression):
            yield axis, extent, size


def _plain_name(extent: Expression) -> str | None:
    """Return the name of an expression that is one symbol."""
    match extent.terms:
        case (((Symbol(name=name),), 1),):
            return name
        case _:
            return None


def _misfit(spec: FreeSpec, shape: tuple[int, ...], reason: str) -> InputError:
    return InputError(
        f"{spec.name!r} has shape {list(shape)}, the model wants {spec}: {reason}",
        hint="give an array of the shape that the model wants",
    )
