# SPDX-License-Identifier: Apache-2.0
"""The reference run: legal inputs, the user's inputs, and models that cannot be run."""

import numpy as np
import pytest

from intarsia.errors import BackendError, InputError
from intarsia.tuning.laboratory.reference import make_feeds
from intarsia.tuning.laboratory.values import Probe

EMBEDDING = """
    net (int64[1,6] ids, int64[1,6] mask, float[1,6,4] x) => (float[1,6,4] y)
    <float[5,4] table = {0,1,2,3,4,5,6,7,8,9,0,1,2,3,4,5,6,7,8,9},
     int64[1] last = {2}> {
        narrow = Cast<to = 6>(ids)
        e = Gather(table, narrow)
        s = Add(e, x)
        m = Cast<to = 1>(mask)
        m1 = Unsqueeze(m, last)
        y = Mul(s, m1)
    }"""


def test_indices_are_legal_and_masks_hide_nothing(parse_model, setting_of):
    graph = setting_of(parse_model(EMBEDDING), "reference").graph
    feeds = make_feeds(graph, {}, 1)
    assert feeds["ids"].dtype == np.int64
    assert set(feeds["ids"].ravel()) <= set(range(5))
    assert len(set(feeds["ids"].ravel())) > 1
    assert feeds["mask"].all()
    assert feeds["x"].std() > 0.1


def test_the_users_inputs_are_used(parse_model, open_laboratory):
    x = np.full((1, 6, 4), 3, np.float32)
    ids = np.full((1, 6), 4)
    laboratory = open_laboratory(parse_model(EMBEDDING), "reference", feeds={"x": x, "ids": ids})
    outputs = laboratory.outputs(Probe.region(0, range(len(laboratory.setting.graph.nodes))))
    np.testing.assert_allclose(outputs["y"][0, 0], np.array([6, 7, 8, 9]) + 3)


def test_inputs_that_do_not_fit_are_named(parse_model, open_laboratory):
    for feeds, words in (
        ({"z": np.zeros(1)}, "no input 'z'"),
        ({"x": np.zeros(1, np.float32)}, "'x'"),
    ):
        laboratory = open_laboratory(parse_model(EMBEDDING), "reference", feeds=feeds)
        with pytest.raises(InputError, match=words):
            laboratory.prepare([Probe.region(0, [0])])


def test_inputs_that_nothing_can_run_are_an_error(parse_model, open_laboratory):
    laboratory = open_laboratory(
        parse_model(EMBEDDING), "reference", feeds={"ids": np.full((1, 6), 99)}
    )
    with pytest.raises(BackendError, match="could not be run once") as caught:
        laboratory.prepare([Probe.region(0, [0])])
    assert "legal" in caught.value.hint
