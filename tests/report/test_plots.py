# SPDX-License-Identifier: Apache-2.0
"""Figures: what is drawn is what was measured, in both kinds of files; errors say what to do."""

import re
import sys
import xml.etree.ElementTree as ET

import onnx
import pytest

from intarsia.__main__ import main
from intarsia.bench.compare import Comparison, Peer, Series
from intarsia.cost.compare import CostDifference
from intarsia.cost.key import CostKey
from intarsia.errors import SettingError
from intarsia.report.plots import MOST_KEYS, plot_comparisons, plot_differences


def series(low, middle, high):
    return Series(middle, low, high, peak_bytes=0, set_up_seconds=0.0)


def comparison(**more):
    peers = {
        "onnxruntime": Peer(1.25, 1.2, 1.3, series(0.0115, 0.0125, 0.014)),
        "openvino": Peer(0.9, 0.85, 0.95, series(0.008, 0.009, 0.0095)),
    }
    return Comparison("net", "llvm", 2, None, 7, series(0.009, 0.01, 0.012), peers, "here", **more)


def difference(number, left, right, change="alike"):
    key = CostKey(f"r{number:03}" + "0" * 28, "llvm", "llvm 1", "m", "2")
    wide = [(seconds * 0.9, seconds * 1.1) for seconds in (left, right)]
    return CostDifference(key, change, left, right, left_interval=wide[0], right_interval=wide[1])


def texts(file):
    """All words of an SVG, which have to be text and not outlines."""
    root = ET.fromstring(file.read_text(encoding="utf-8"))
    return " ".join("".join(one.itertext()) for one in root.iter() if one.tag.endswith("}text"))


def test_a_comparison_shows_medians_and_ratios(tmp_path):
    file = tmp_path / "bench.svg"
    plot_comparisons([comparison(), comparison(sizes={"n": 64})], file)
    words = texts(file)
    for name in ("intarsia", "onnxruntime", "openvino"):
        assert words.count(name) == 2
    assert "10 ms" in words
    assert "12.5 ms, 1.25 times ours (1.20 to 1.30)" in words
    assert "n=64" in words
    before = file.read_bytes()
    plot_comparisons([comparison(), comparison(sizes={"n": 64})], file)
    assert file.read_bytes() == before


def test_a_suffix_decides_the_kind_of_file(tmp_path):
    file = tmp_path / "bench.PNG"
    plot_comparisons([comparison()], file)
    assert file.read_bytes().startswith(b"\x89PNG\r\n")
    assert [one.name for one in tmp_path.iterdir()] == ["bench.PNG"]
    with pytest.raises(SettingError, match=r"\.png or \.svg"):
        plot_comparisons([comparison()], tmp_path / "bench.pdf")
    with pytest.raises(SettingError, match="cannot write"):
        plot_comparisons([comparison()], tmp_path / "missing" / "bench.svg")


def test_differences_are_drawn_by_how_far_they_are_apart(tmp_path):
    file = tmp_path / "diff.svg"
    some = [difference(0, 1.0, 2.0, "slower"), difference(1, 1.0, 0.5, "faster")]
    some += [difference(2 + i, 1.0, 1.01 + i / 1000) for i in range(MOST_KEYS)]
    told = plot_differences(some, file)
    assert told == f"{MOST_KEYS} of {MOST_KEYS + 2} ratios"
    words = texts(file)
    assert "2, slower" in words
    assert "0.5, faster" in words
    assert "2 differ by their intervals" in words
    assert len(re.findall(r"on llvm \(", words)) == MOST_KEYS
    assert some[2].key.digest[:12] not in words  # of those, the nearest to 1


def test_what_has_no_ratio_is_counted(tmp_path):
    odd = difference(0, 1e-6, 2e-6)
    odd = CostDifference(
        odd.key, "alike", 1e-6, 2e-6, left_interval=(-1e-6, 3e-6), right_interval=(1e-6, 3e-6)
    )
    file = tmp_path / "diff.png"
    assert "1 have none" in plot_differences([odd, difference(1, 1.0, 1.5)], file)
    with pytest.raises(SettingError, match="nothing to draw"):
        plot_differences([odd], file)


def test_without_matplotlib_the_extra_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    with pytest.raises(SettingError, match="matplotlib is not here") as caught:
        plot_comparisons([comparison()], tmp_path / "bench.svg")
    assert "intarsia[plot]" in caught.value.hint


def test_commands_draw_what_they_print(tmp_path, chain_model, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    onnx.save(chain_model, "chain.onnx")
    tune = ["tune", "chain.onnx", "-t", "fake -cost=*:1e-3", "--threads", "1"]
    for name in ("a.sqlite", "b.sqlite"):
        assert main([*tune, "--database", name]) == 0
    assert main(["costs", "diff", "a.sqlite", "b.sqlite", "--plot", "d.svg"]) in (0, 1)
    assert "wrote d.svg" in capsys.readouterr().err
    assert "on fake" in texts(tmp_path / "d.svg")
    bench = ["bench", "chain.onnx", "-t", "reference", "--threads", "1"]
    assert main([*bench, "--profile", "--plot", "p.svg"]) == 2
    assert main([*bench, "--plot", "p.txt"]) == 2
    assert not (tmp_path / "p.svg").exists()
