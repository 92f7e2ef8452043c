# SPDX-License-Identifier: Apache-2.0
"""Merging pipelines: nothing is lost or run twice, and orders are kept as far as they agree."""

import itertools
from collections import Counter
from types import SimpleNamespace

from hypothesis import given
from hypothesis import strategies as st

from intarsia.backends.registry import Backends
from intarsia.place.pipeline import merge_pipelines
from intarsia.target import DeviceType, TargetKind

PIPELINE = st.lists(st.sampled_from("abcde"), max_size=6).map(
    lambda names: tuple(f"before placement: {name}" for name in names)
)


def merge(pipelines):
    """Return what targets of kinds with these pipelines run together, and who brought it."""
    targets = [
        SimpleNamespace(
            number=i, target=SimpleNamespace(kind=TargetKind(f"k{i}", DeviceType.CPU, pipeline=p))
        )
        for i, p in enumerate(pipelines)
    ]
    merged = merge_pipelines(SimpleNamespace(targets=targets), Backends({}, {}))
    return [entry.text for entry in merged], [entry.target.number for entry in merged]


@given(st.lists(PIPELINE, min_size=1, max_size=4))
def test_every_pass_runs_as_often_as_the_list_that_wants_it_most(pipelines):
    texts, _ = merge(pipelines)
    wanted = Counter()
    for pipeline in pipelines:
        wanted |= Counter(pipeline)
    assert Counter(texts) == wanted


@given(st.lists(PIPELINE, min_size=1, max_size=4))
def test_the_first_target_keeps_its_order(pipelines):
    texts, owners = merge(pipelines)
    first = [text for text, owner in zip(texts, owners, strict=True) if owner == 0]
    assert tuple(first) == pipelines[0]


@given(st.lists(PIPELINE.filter(lambda p: len(set(p)) == len(p)), min_size=1, max_size=4))
def test_what_a_later_target_adds_stands_after_what_it_follows(pipelines):
    texts, owners = merge(pipelines)
    for number, pipeline in enumerate(pipelines):
        for before, text in itertools.pairwise(pipeline):
            if owners[texts.index(text)] == number:
                assert texts.index(before) < texts.index(text)


@given(PIPELINE)
def test_a_pipeline_merged_with_itself_is_itself(pipeline):
    assert merge([pipeline, pipeline])[0] == list(pipeline)


@given(st.lists(PIPELINE, min_size=1, max_size=3))
def test_merging_again_changes_nothing(pipelines):
    texts, _ = merge(pipelines)
    assert merge([tuple(texts), *pipelines])[0] == texts
