# SPDX-License-Identifier: Apache-2.0
"""Non-maximum suppression: boxes by falling score, without those that overlap one before them.

Each class of each image is a turn: candidates are collected on a heap, and the best one is compared
with those that are selected before it, until there are enough. What is selected is listed
afterwards, as how much there is decides where the next class goes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import reduce

from intarsia.codegen.body import Layout
from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Function, Index, IrValue, Type
from intarsia.codegen.unit import AVX512, CpuModel
from intarsia.extents import Size

_MOST_LANES = 16
_FLOAT = "float32"
_CORNERS, _ROW = 4, 3
_MOST_LEVELS = 31


@dataclass(frozen=True, slots=True)
class Suppression:
    """Which boxes are selected in each class of each image, the best first.

    Attributes:
        images: How many.
        classes: In each.
        boxes: In each.
        most: Room for those that are selected of one class; at most `boxes`.
        is_centered: Whether a box is its middle and its extents, else two corners.
        has_threshold: Whether a score has to be above a threshold.
        unit: What it is shaped for.
    """

    images: Size
    classes: Size
    boxes: Size
    most: Size
    is_centered: bool
    has_threshold: bool
    unit: CpuModel = AVX512

    @property
    def pairs(self) -> Size:
        """Classes of all images."""
        return self.images * self.classes

    @property
    def lanes(self) -> int:
        """Boxes that are compared at once."""
        return min(_MOST_LANES, self.unit.lanes(_FLOAT))

    @property
    def room(self) -> Size:
        """Memory for the ends of those that are selected of one class, in whole vectors."""
        return self.most + self.lanes


@dataclass(frozen=True, slots=True)
class Listing:
    """Rows of image, class and box for all that is selected.

    Attributes:
        images: How many.
        classes: In each.
        most: Room for those of one class.
    """

    images: Size
    classes: Size
    most: Size


SPECS = (Suppression, Listing)


def build(spec: Suppression | Listing) -> Function:
    """Return the kernel.

    Its arguments are boxes, scores, most boxes of a class, the thresholds of the overlap and of the
    score; memory for scores and numbers of candidates, and for the ends of what is selected; what
    is selected, and how many. Of a listing they are the last two, the rows, and their number.
    """
    return _suppress(spec) if isinstance(spec, Suppression) else _list(spec)


def _suppress(spec: Suppression) -> Function:
    b = Builder("suppress")
    dense = Layout(_FLOAT, (spec.boxes * _CORNERS, _CORNERS, 1))
    boxes = dense.declare(b, "boxes", (spec.images, spec.boxes, _CORNERS))
    scores = b.argument("scores", _FLOAT, (spec.pairs, spec.boxes))
    most = b.argument("most", INT64.dtype, (1,))
    overlap, threshold = (b.argument(name, _FLOAT, (1,)) for name in ("overlap", "threshold"))
    keys = b.argument("keys", _FLOAT, (spec.pairs, spec.boxes), is_written=True)
    picks = b.argument("picks", "int32", (spec.pairs, spec.boxes), is_written=True)
    ends = b.argument("ends", _FLOAT, (spec.pairs, _CORNERS, spec.room), is_written=True)
    chosen = b.argument("chosen", "int32", (spec.pairs, spec.most), is_written=True)
    counts = b.argument("counts", INT64.dtype, (spec.pairs,), is_written=True)
    lanes = spec.lanes
    b.note(f"{spec.images}x{spec.classes} of {spec.boxes}, {spec.most} at most")
    zero = b.constant(0, INT64)
    with b.parallel(spec.pairs) as pair:
        image, _ = b.split(pair, spec.classes)
        limit, least = b.load(overlap, 0), b.load(threshold, 0)
        count = _collect(b, spec, pair, (scores, keys, picks), least)

        depth = _depth(b, count)
        heap = _Heap(b, keys, picks, pair, depth)
        heap.build(count)

        def pop(_turn: Index, made: IrValue, left: IrValue) -> list[IrValue]:
            pick = b.load(picks, (pair, 0))
            left = b.sub(left, 1)
            last = Index.of(left)
            key, number = b.load(keys, (pair, last)), b.load(picks, (pair, last))
            heap.sift(Index(), key, number, left, depth)
            box = _box(b, spec, boxes, image, pick)
            wide = [b.splat(value, lanes) for value in box]

            def compare(at: Index, is_gone: IrValue) -> list[IrValue]:
                other = [b.load(ends, (pair, end, at), lanes) for end in range(_CORNERS)]
                found = b.cast(_overlaps(b, wide, other, b.splat(limit, lanes)), "int32")
                return [b.binary("or", is_gone, found)]

            nothing = b.constant(0, Type("int32", lanes))
            (is_gone,) = b.loop(0, Index.of(made), [nothing], compare, step=lanes)
            is_kept = b.compare("eq", b.reduce("or", is_gone), 0)
            with b.where(is_kept):
                b.store(pick, chosen, (pair, made))
                _, lane = b.split(Index.of(made), lanes)
                with b.where(b.compare("eq", b.index(lane), 0)):  # no box overlaps one of zeros
                    for end in range(_CORNERS):
                        zeros = b.constant(0.0, Type(_FLOAT, lanes))
                        b.store(zeros, ends, (pair, end, made))
                for end, value in enumerate(box):
                    b.store(value, ends, (pair, end, made))
            return [b.add(made, b.cast(is_kept, INT64.dtype)), left]

        wanted = b.minimum(b.load(most, 0), b.index(spec.most))

        def turn(number: Index, *state: IrValue) -> list[IrValue]:
            goes_on = b.cast(b.compare("lt", state[0], wanted), INT64.dtype)
            return b.loop(0, Index.of(goes_on), state, pop)

        made, _ = b.loop(0, Index.of(count), [zero, count], turn)
        b.store(made, counts, pair)
    return b.finish()


def _depth(b: Builder, count: IrValue) -> IrValue:
    """Return how often half of a heap leaves something."""
    one = b.constant(1, INT64)

    def deeper(level: Index, depth: IrValue) -> list[IrValue]:
        is_below = b.compare("lt", b.binary("shl", one, b.index(level)), count)
        return [b.add(depth, b.cast(is_below, INT64.dtype))]

    return b.loop(0, _MOST_LEVELS, [b.constant(0, INT64)], deeper)[0]


@dataclass(frozen=True, slots=True)
class _Heap:
    """Candidates of a class, the best on top: by score, and of equal ones the first."""

    b: Builder
    keys: Buffer
    picks: Buffer
    pair: Index
    depth: IrValue

    def build(self, count: IrValue) -> None:
        """Make a heap of candidates in any order, the lowest level first."""
        b, pair = self.b, self.pair
        one, half = b.constant(1, INT64), b.binary("shr", count, 1)
        with b.serial(0, Index.of(self.depth)) as number:
            level = b.sub(b.sub(self.depth, 1), b.index(number))
            first = b.sub(b.binary("shl", one, level), 1)
            end = b.minimum(b.add(b.add(first, first), 1), half)
            with b.serial(Index.of(first), Index.of(end)) as start:
                key, pick = b.load(self.keys, (pair, start)), b.load(self.picks, (pair, start))
                self.sift(start, key, pick, count, b.sub(self.depth, level))

    def sift(
        self, start: Index, key: IrValue, pick: IrValue, count: IrValue, levels: IrValue
    ) -> None:
        """Put a candidate where a heap begins, and move up what is better than it.

        Args:
            start: Where.
            key: Its score.
            pick: Its number.
            count: Of the candidates.
            levels: Below the start.
        """
        b, pair = self.b, self.pair
        last = b.maximum(b.sub(count, 1), b.constant(0, INT64))

        def put(key: IrValue, pick: IrValue, place: IrValue) -> None:
            b.store(key, self.keys, (pair, place))
            b.store(pick, self.picks, (pair, place))

        def sink(_level: Index, place: IrValue) -> list[IrValue]:
            child = b.add(b.add(place, place), 1)
            sides = [b.minimum(b.add(child, side), last) for side in (0, 1)]
            keys = [b.load(self.keys, (pair, side)) for side in sides]
            picks = [b.load(self.picks, (pair, side)) for side in sides]
            is_second = _is_before(b, keys[1], picks[1], keys[0], picks[0])
            better = b.select(is_second, keys[1], keys[0])
            number = b.select(is_second, picks[1], picks[0])
            moves = b.binary(
                "and", b.compare("lt", child, count), _is_before(b, better, number, key, pick)
            )
            put(b.select(moves, better, key), b.select(moves, number, pick), place)
            return [b.select(moves, b.select(is_second, sides[1], sides[0]), place)]

        (place,) = b.loop(0, Index.of(levels), [b.index(start)], sink)
        put(key, pick, place)


def _is_before(
    b: Builder, key: IrValue, pick: IrValue, other_key: IrValue, other_pick: IrValue
) -> IrValue:
    is_equal = b.binary("and", b.compare("eq", key, other_key), b.compare("lt", pick, other_pick))
    return b.binary("or", b.compare("gt", key, other_key), is_equal)


def _collect(
    b: Builder, spec: Suppression, pair: Index, memory: Sequence[Buffer], least: IrValue
) -> IrValue:
    """Append a walk over the scores of a class that keeps those above a threshold, in order."""
    scores, keys, picks = memory

    def is_candidate(score: IrValue) -> IrValue:
        return b.compare("gt", score, b.splat(least, score.type.lanes))

    def visit(at: Index, count: IrValue) -> list[IrValue]:
        score = b.load(scores, (pair, at))
        is_kept = is_candidate(score) if spec.has_threshold else b.constant(True, Type("bool"))
        with b.where(is_kept):
            b.store(score, keys, (pair, count))
            b.store(b.cast(b.index(at), "int32"), picks, (pair, count))
        return [b.add(count, b.cast(is_kept, INT64.dtype))]

    count = [b.constant(0, INT64)]
    lanes = min(_MOST_LANES, spec.unit.lanes(_FLOAT)) if spec.has_threshold else 1
    if lanes == 1:
        return b.loop(0, spec.boxes, count, visit)[0]
    whole = spec.boxes // lanes * lanes

    def vector(first: Index, count: IrValue) -> list[IrValue]:
        found = b.cast(is_candidate(b.load(scores, (pair, first), lanes)), "int32")
        is_any = b.cast(b.reduce("or", found), INT64.dtype)
        return b.loop(
            0,
            Index.of(is_any),
            [count],
            lambda _turn, same: b.loop(first, first + lanes, [same], visit),
        )

    count = b.loop(0, whole, count, vector, step=lanes)
    return b.loop(whole, spec.boxes, count, visit)[0]


def _box(
    b: Builder, spec: Suppression, boxes: Buffer, image: Index, pick: IrValue
) -> list[IrValue]:
    """Return where a box begins and ends along one axis, then along the other."""
    at = b.cast(pick, INT64.dtype)
    first, second, third, fourth = (b.load(boxes, (image, at, i)) for i in range(_CORNERS))
    if spec.is_centered:
        halves = [b.div(size, 2.0) for size in (third, fourth)]
        middles = zip((first, second), halves, strict=True)
        return [end(middle, half) for middle, half in middles for end in (b.sub, b.add)]
    pairs = ((first, third), (second, fourth))
    return [end(*pair) for pair in pairs for end in (b.minimum, b.maximum)]


def _overlaps(
    b: Builder,
    box: Sequence[IrValue],
    other: Sequence[IrValue],
    limit: IrValue,
) -> IrValue:
    """Tell whether two boxes overlap by more than a part of what they cover together."""
    common = [
        b.sub(b.minimum(box[i + 1], other[i + 1]), b.maximum(box[i], other[i])) for i in (0, 2)
    ]
    shared = b.mul(*common)
    areas = [b.mul(b.sub(one[1], one[0]), b.sub(one[3], one[2])) for one in (box, other)]
    covered = b.sub(b.add(*areas), shared)
    positive = [b.compare("gt", value, 0.0) for value in (*common, shared, *areas, covered)]
    is_much = b.compare("gt", b.div(shared, covered), limit)
    return reduce(lambda left, right: b.binary("and", left, right), (*positive, is_much))


def _list(spec: Listing) -> Function:
    b = Builder("list_selected")
    pairs = spec.images * spec.classes
    chosen = b.argument("chosen", "int32", (pairs, spec.most))
    counts = b.argument("counts", INT64.dtype, (pairs,))
    rows = b.argument("rows", INT64.dtype, (pairs * spec.most * _ROW,), is_written=True)
    count = b.argument("count", INT64.dtype, (1,), is_written=True)
    b.note(f"{spec.images}x{spec.classes}, {spec.most} at most")
    with b.parallel(1):

        def visit(pair: Index, before: IrValue) -> list[IrValue]:
            image, kind = b.split(pair, spec.classes)
            found = b.load(counts, pair)
            with b.serial(0, Index.of(found)) as number:
                place = (Index.of(before) + number) * _ROW
                box = b.cast(b.load(chosen, (pair, number)), INT64.dtype)
                for column, value in enumerate((b.index(image), b.index(kind), box)):
                    b.store(value, rows, place + column)
            return [b.add(before, found)]

        (total,) = b.loop(0, pairs, [b.constant(0, INT64)], visit)
        b.store(total, count, 0)
    return b.finish()
