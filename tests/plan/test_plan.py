# SPDX-License-Identifier: Apache-2.0
"""Plans and explanations print what runs where, and why."""

import intarsia


def test_a_plan_prints_its_steps(chain_model, backends):
    exe = intarsia.compile(chain_model, "fake -ops=Relu, reference", backends=backends)
    assert str(exe.plan).splitlines() == [
        "arenas: cpu:0 128 B, ext_dev:0/fake 128 B",
        "inputs: x: float32[2,4] input",
        "run 0 on reference: x: float32[2,4] input -> a: float32[2,4] arena+0, "
        "c: float32[2,4] arena+64",
        "copy a: cpu:0 -> ext_dev:0/fake, 32 B",
        "run 1 on fake -ops=Relu: a: float32[2,4] arena+0 -> mid: float32[2,4] arena+64",
        "copy mid: ext_dev:0/fake -> cpu:0, 32 B",
        "run 2 on reference: mid: float32[2,4] output, c: float32[2,4] arena+64 -> "
        "y: float32[2,4] output",
        "outputs: y: float32[2,4] output, mid: float32[2,4] output",
    ]


def test_a_placement_prints_a_line_per_region(chain_model, backends):
    exe = intarsia.compile(chain_model, "fake -ops=Relu, reference", backends=backends)
    lines = str(exe.placement).splitlines()
    assert [line.split() for line in lines][1] == [
        *("1", "1", "nodes", "fake", "-ops=Relu", "[ext_dev:0/fake]", "priority", "(Relu)")
    ]
    assert len(lines) == 3
    assert exe.placement.node_count == 5
    assert exe.placement.coverage() == {"fake -ops=Relu": 1, "reference": 4}


def test_a_shortfall_counts_each_node_once(chain_model, backends):
    exe = intarsia.compile(
        chain_model, "fake:0 -ops=Relu, fake:1 -ops=Tanh, reference", backends=backends
    )
    assert exe.placement.shortfall == (
        "1 of 5 nodes on fake -ops=Relu; 1 on fake:1 -ops=Tanh; 3 on reference: "
        "unsupported-op 4 (MatMul, Sigmoid, Tanh, ...)"
    )


def test_an_explanation_says_everything(parse_model, backends):
    model = parse_model("""
        g (float[2] x) => (float[2] y) <float[2] w = {1.0, 2.0}>
        { a = Neg(w) b = Add(x, a) y = Relu(b) }""")
    explanation = intarsia.compile(model, "fake -ops=Relu, reference", backends=backends).explain()
    assert explanation.rewrites == ("fold-constants x1",)
    assert list(explanation.versions) == ["reference", "fake"]
    assert explanation.arena_bytes == {"cpu:0": 64, "ext_dev:0/fake": 128}
    assert explanation.summary == (
        "2 nodes in 2 regions, 2 copies (greedy placement): 1 on fake -ops=Relu, 1 on reference"
    )
    text = str(explanation)
    assert "refused: b (Add) not on fake -ops=Relu: unsupported-op" in text
    assert "fold-constants x1" in text


def test_a_model_without_nodes_has_an_empty_placement(parse_model, backends):
    exe = intarsia.compile(
        parse_model("g (float[2] x) => (float[2] x) {}"), "reference", backends=backends
    )
    assert str(exe.placement) == "no nodes"
    assert "nothing to run" in str(exe.explain())
