# SPDX-License-Identifier: Apache-2.0
"""On a terminal of 80 columns."""

import io

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
