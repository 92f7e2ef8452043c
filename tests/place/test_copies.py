# SPDX-License-Identifier: Apache-2.0
"""Copies between memory domains: where they are needed, once per value, and nowhere else."""

import intarsia


def copies_of(exe):
    plan = exe.plan
    return [
        (
            plan.tensors[step.source].name,
            plan.devices[plan.tensors[step.source].device],
            plan.devices[plan.tensors[step.destination].device],
            step.nbytes,
        )
        for step in plan.copies
    ]


def test_targets_in_one_memory_exchange_without_copies(chain_model, backends):
    exe = intarsia.compile(
        chain_model,
        "openvino, onnxruntime",
        pins={"second": "onnxruntime", "fourth": "onnxruntime"},
        backends=backends,
    )
    assert len(exe.placement.regions) > 1
    assert exe.plan.devices == ("cpu:0",)
    assert copies_of(exe) == []


def test_a_whole_model_on_a_device_copies_inputs_and_outputs_only(
    chain_model, random_feeds, evaluate, assert_same, backends
):
    exe = intarsia.compile(chain_model, "fake, reference", backends=backends)
    assert copies_of(exe) == [
        ("x", "cpu:0", "ext_dev:0/fake", 32),
        ("y", "ext_dev:0/fake", "cpu:0", 32),
        ("mid", "ext_dev:0/fake", "cpu:0", 32),
    ]
    feeds = random_feeds(chain_model)
    assert_same(exe.run(feeds), evaluate(chain_model, feeds))


def test_a_value_goes_from_device_to_device_in_one_step(
    parse_model, random_feeds, evaluate, assert_same, backends
):
    model = parse_model("g (float[2,3] x) => (float[2,3] y) { a = Neg(x) y = Tanh(a) }")
    exe = intarsia.compile(model, "fake:0 -ops=Neg, fake:1 -ops=Tanh, reference", backends=backends)
    assert copies_of(exe) == [
        ("x", "cpu:0", "ext_dev:0/fake", 24),
        ("a", "ext_dev:0/fake", "ext_dev:1/fake", 24),
        ("y", "ext_dev:1/fake", "cpu:0", 24),
    ]
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_two_consumers_on_one_device_share_one_copy(
    parse_model, random_feeds, evaluate, assert_same, backends
):
    model = parse_model("""
        g (float[4] x) => (float[4] y) {
            a = Exp(x) b = Neg(a) c = Exp(b) d = Neg(c) e = Add(d, a) y = Add(e, x)
        }""")
    exe = intarsia.compile(model, "fake -ops=Neg,Add, reference", backends=backends)
    names = [name for name, source, _, _ in copies_of(exe) if source == "cpu:0"]
    assert sorted(names) == ["a", "c", "x"]
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_an_output_that_the_host_also_reads_is_copied_once(
    parse_model, random_feeds, evaluate, assert_same, backends
):
    model = parse_model("""
        g (float[4] x) => (float[4] y, float[4] a) {
            a = Neg(x) b = Exp(a) c = Log(b) d = Sqrt(b) e = Mul(c, d) f = Neg(e) y = Exp(f)
        }""")
    exe = intarsia.compile(model, "fake -ops=Neg, reference", backends=backends)
    assert [name for name, *_ in copies_of(exe)].count("a") == 1
    for seed in range(2):
        feeds = random_feeds(model, seed)
        assert_same(exe.run(feeds), evaluate(model, feeds))


def test_a_constant_needs_no_copy(parse_model, random_feeds, evaluate, assert_same, backends):
    model = parse_model("""
        g (float[2] x) => (float[2] y) <float[2] w = {1.5, -2.0}>
        { a = Add(x, w) b = Exp(a) y = Mul(b, w) }""")
    exe = intarsia.compile(model, "fake:0 -ops=Add, fake:1 -ops=Mul, reference", backends=backends)
    assert "w" not in [name for name, *_ in copies_of(exe)]
    feeds = random_feeds(model)
    assert_same(exe.run(feeds), evaluate(model, feeds))


def test_copies_are_explained_with_their_bytes(chain_model, backends):
    explanation = intarsia.compile(chain_model, "fake, reference", backends=backends).explain()
    rows = [(row.tensor, row.source, row.destination, row.nbytes) for row in explanation.copies]
    assert rows[0] == ("x", "cpu:0", "ext_dev:0/fake", 32)
    assert "x: cpu:0 -> ext_dev:0/fake, 32 B" in str(explanation)
