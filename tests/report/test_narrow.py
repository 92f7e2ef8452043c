# SPDX-License-Identifier: Apache-2.0
"""On a terminal of 80 columns."""

import io

from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console

from intarsia.report.tables import make_table


def test_figures_are_whole_and_words_beside_them_fold():
    figures = [f"{number}2345.678" for number in range(1, 7)]
    columns = ("what", *(f"{number}>" for number in range(6)), "nodes")
    table = make_table("", columns, [("onnxruntime", *figures, "layer1/conv")])
    out = io.StringIO()
    Console(file=out, width=80).print(table)
    assert all(figure in out.getvalue() for figure in figures)
    assert max(map(len, out.getvalue().splitlines())) <= 80


WORDS = st.sampled_from(["layer1/conv", "x" * 40, "to", "llvm -mcpu=rocketlake", "a b c", ""])
FIGURES = st.floats(0.001, 1e6).map("{:.6g}".format)


@given(
    st.lists(st.tuples(WORDS, FIGURES, st.tuples(FIGURES, FIGURES), WORDS), max_size=3),
    st.integers(1, 6),
    st.integers(24, 120),
)
def test_figures_are_whole_however_many_columns_there_are(rows, times, width):
    columns = ("what", "ms>", "interval", "why") * times
    cells = [(what, ms, " to ".join(span), why) * times for what, ms, span, why in rows]
    out = io.StringIO()
    Console(file=out, width=width).print(make_table("a title", columns, cells))
    printed = out.getvalue().replace("\n", " ").split(" ")
    for _, ms, span, _ in rows:
        assert printed.count(ms) >= times
        assert all(printed.count(figure) >= times for figure in span)
    assert max(map(len, out.getvalue().splitlines()), default=0) <= width
