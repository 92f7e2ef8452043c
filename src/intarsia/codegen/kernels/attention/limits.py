# SPDX-License-Identifier: Apache-2.0
"""Which keys some queries see: from where on, and up to where."""

from __future__ import annotations

from collections.abc import Sequence

from intarsia.codegen.builder import Builder
from intarsia.codegen.ir import INT64, Buffer, Index
from intarsia.codegen.kernels.attention.spec import Attention


def length_of(b: Builder, lengths: Buffer | None, item: Sequence[Index]) -> Index | None:
    """Return how many keys of an item count, if that is known only when it runs."""
    return None if lengths is None else Index.of(b.cast(b.load(lengths, item), INT64.dtype))


def shift_of(b: Builder, spec: Attention, lengths: Buffer | None, item: Sequence[Index]) -> Index:
    """Return which key the numbers of queries count from: with lengths, the last ones meet."""
    length = length_of(b, lengths, item)
    return Index() if length is None else length - spec.queries


def limit_of(
    b: Builder, spec: Attention, lengths: Buffer | None, item: Sequence[Index], row: Index
) -> Index:
    """Return the key beyond the last one that any query before a row sees."""
    end, length = Index.of(spec.keys), length_of(b, lengths, item)
    if length is not None:
        end = b.smaller(end, length)
    if spec.last is not None:
        shift = shift_of(b, spec, lengths, item)
        end = b.smaller(end, b.smaller(row, spec.queries) + shift + spec.last)
    return end


def begin_of(
    b: Builder,
    spec: Attention,
    lengths: Buffer | None,
    item: Sequence[Index],
    row: Index,
    size: int,
) -> Index:
    """Return the first key of the first block of which a query from a row on sees something."""
    if spec.first is None:
        return Index()
    first = b.larger(row + shift_of(b, spec, lengths, item) + spec.first, 0)
    return b.split(first, size)[0] * size
