# SPDX-License-Identifier: Apache-2.0
"""Targets are remembered by their text, where that is safe."""

import pytest

from intarsia.target import PlacedTarget, Target, register_tag
from intarsia.target.cache import TextCache


def test_a_text_is_read_once():
    assert Target("cuda -arch=sm_80") is Target("cuda -arch=sm_80")
    assert Target("cuda -arch=sm_80").host is None
    assert Target("cuda -arch=sm_80", "llvm").host == Target("llvm")
    assert PlacedTarget.parse("cuda:1") is PlacedTarget.parse("cuda:1")


def test_a_tag_that_is_replaced_means_the_new_target_everywhere():
    texts = ("tests/cached", "c -host=tests/cached", "composite -devices=c,tests/cached")
    for cores in (1, 2):
        register_tag("tests/cached", f"llvm -num-cores={cores}", override=True)
        alone, paired, composite = (Target(text) for text in texts)
        assert alone.attrs["num-cores"] == cores
        assert paired.host == composite.attrs["devices"][1] == alone
        assert PlacedTarget.parse("tests/cached:1").target == alone


def test_what_warns_warns_again():
    for _ in range(2):
        with pytest.warns(FutureWarning, match="'target_host' is deprecated"):
            PlacedTarget.parse("cuda:1 -target_host=llvm")


def test_a_cache_is_bounded():
    cache = TextCache()
    target = Target("c")
    for number in range(5000):
        cache.keep(str(number), lambda: target, lambda value: value)
        assert cache.get(str(number)) is target
    assert cache.get("0") is None
