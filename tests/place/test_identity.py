# SPDX-License-Identifier: Apache-2.0
"""What a plan depends on: one value, of which lock files, verdicts and programs take parts."""

import json

import msgspec
import pytest

from intarsia.compiler import read_setting
from intarsia.cost.records import VerdictKey
from intarsia.place.request import Request
from intarsia.plan.identity import Identity
from intarsia.plan.lock import Lock, decode_lock

_TARGETS = "llvm, reference"
_STORED = {"model", "targets", "versions", "machine", "machine_text", "threads"}
_STORED |= {"constraints", "devices"}


@pytest.fixture
def identify(parse_model, backends):
    """A function that returns the identity of a small model with some weights and pins."""

    def identify(weight=1.0, targets=_TARGETS, pins=None, **options):
        weights = ", ".join([str(weight)] * 128)
        model = parse_model(
            f"g (float[8,16] x) => (float[8,16] y) <float[8,16] w = {{{weights}}}> "
            "{ [sum] y = Add(x, w) }"
        )
        request = Request(model=model, target=targets, pins=pins, num_threads=1, backends=backends)
        return read_setting(request).identity(**options)

    return identify


def test_the_exact_parts_are_made_only_where_they_are_asked_for(identify, monkeypatch):
    def refuse(region):
        raise AssertionError("weights are hashed")

    exact = identify(is_exact=True)
    monkeypatch.setattr("intarsia.graph.hashes.content_hash", refuse)
    stored = msgspec.to_builtins(identify())
    assert set(stored) == _STORED
    assert msgspec.to_builtins(exact) == stored | {"content": exact.content, "code": exact.code}


def test_weights_count_for_verdicts_and_not_for_lock_files(identify):
    one, other = (identify(weight, is_exact=True) for weight in (1.0, 2.0))
    assert one.model == other.model
    assert one.content != other.content
    assert one.verdict_key() != other.verdict_key()


def test_sources_count_for_verdicts_and_not_for_lock_files(identify, monkeypatch):
    before = identify(is_exact=True)
    monkeypatch.setattr("intarsia.backends.sources.source_digest", lambda modules: "another")
    after = identify(is_exact=True)
    assert before.versions == after.versions
    assert [one == other for one, other in zip(before.code, after.code, strict=True)] == [
        False,
        True,
        True,
    ]
    assert before.verdict_key() != after.verdict_key()


def test_pins_count_for_both(identify):
    one, other = (identify(pins=pins, is_exact=True) for pins in (None, {"sum": "reference"}))
    assert one.constraints == ""
    assert other.verdict_key().constraints == other.constraints != ""


def test_what_a_verdict_is_filed_under_stays():
    code = ("llvm 22, intarsia 0.1.0 (sources 5f0c2a11)", "onnxruntime 1.2", "intarsia 0.1.0")
    identity = Identity(
        model="m",
        targets="llvm, onnxruntime",
        versions={"intarsia": "0.1.0", "llvm": "22", "onnxruntime": "1.2"},
        machine="d",
        machine_text="a machine",
        threads=2,
        constraints="x",
        content="c",
        code=code,
    )
    key = identity.verdict_key("memory:2")
    backends = " | ".join(code)
    assert key == VerdictKey("c", identity.targets, backends, "d", "2", "x", "memory:2")
    assert key.digest == "5a445d512de49bfdeb2d1ee3d7fa7c83"  # databases of earlier versions have it


def test_a_lock_file_without_the_exact_parts_is_read(identify):
    text = str(Lock("greedy", identify(), ()))
    assert set(json.loads(text)["world"]) == _STORED
    assert decode_lock(text, "a test").identity == identify()
