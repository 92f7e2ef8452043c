# SPDX-License-Identifier: Apache-2.0
"""A model with nothing to fold or fuse is told from others without the library that would do it."""

import subprocess
import sys

import numpy as np
import onnx_ir as ir
import pytest
from onnx import TensorProto, helper, numpy_helper
from onnxscript.optimizer._constant_folding import registry

from intarsia.graph.load import load
from intarsia.passes import fold_constants, prepare
from intarsia.passes.affine_rules import apply_rules
from intarsia.passes.fold_constants import lift_constants, may_fold
from intarsia.passes.folding import Folding
from intarsia.passes.provenance import hidden, record_origins
from intarsia.testing.graphs import draw_graph
from intarsia.zoo import build

KEPT_OFF = {"If", "SequenceConstruct", "ConcatFromSequence", "SplitToSequence"}
"""What the library looks at and we keep it off, or what only passes on sequences."""

LOOKED_AT = ("Abs", "Add", "Cast", "CastLike", "Concat", "Dropout", "Expand", "Gather", "Identity")
LOOKED_AT += ("Reshape", "SequenceAt", "Shape", "Size", "Squeeze", "Slice", "ConstantOfShape")


def test_every_operator_that_the_library_replaces_is_known():
    looked_at = {operator for domain, operator in registry.op_evaluators if not domain}
    known = fold_constants.REPLACED | fold_constants.MAY_CHANGE_NOTHING | fold_constants.PASSING_ON
    assert looked_at - KEPT_OFF == known


def is_modified(model):
    """Fold as `fold_constants` does, without asking first."""
    limits = {"input_size_limit": 8192, "output_size_limit": 1 << 20}
    folding = Folding(shape_inference=False, should_fold=fold_constants._should_fold, **limits)
    folding.most_bytes = 1 << 28
    with hidden(model), np.errstate(all="ignore"):
        return folding(model).modified


def test_no_is_certain_for_random_graphs():
    """No graph is folded that was said to have nothing to fold; and some are said to have none."""
    said_no = 0
    for seed in range(150):
        model = load(draw_graph(seed, LOOKED_AT).model)
        record_origins(model)
        lift_constants(model)
        if any(map(may_fold, model.graph)):
            continue
        said_no += 1
        assert not is_modified(model), seed
    assert said_no > 20


@pytest.mark.parametrize("name", ["resnet18", "mobilenet_v2"])
def test_networks_that_are_folded_import_no_onnxscript(name, tmp_path):
    path = tmp_path / "model.onnx"
    path.write_bytes(build(name).SerializeToString())
    code = (
        "import sys\n"
        "from intarsia.graph.load import load\n"
        "from intarsia.passes.prepare import prepare\n"
        "prepare(load(sys.argv[1]))\n"
        "print('onnxscript' in sys.modules)\n"
    )
    command = [sys.executable, "-c", code, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def chain(operators, into):
    """Return a convolution, or a product, with affine operators one after the other behind it."""
    rng = np.random.default_rng(0)
    spatial = () if into == "Gemm" else (1, 1)
    arrays = {"w": rng.standard_normal((4, 4, *spatial)), "k": rng.random((4, *spatial)) + 0.5}
    arrays |= {name: rng.random(4) + 0.5 for name in ("scale", "shift", "mean", "variance")}
    if into == "Gemm":
        arrays["k"] = arrays["k"][None]
    nodes = [helper.make_node(into, ["x", "w"], ["v0"])]
    for number, operator in enumerate(operators):
        norm = ["scale", "shift", "mean", "variance"]
        others = norm if operator == "BatchNormalization" else ["k"]
        nodes.append(helper.make_node(operator, [f"v{number}", *others], [f"v{number + 1}"]))
    last = f"v{len(operators)}"
    shape = [2, 4, 3, 3][: 2 + len(spatial)]
    infos = [helper.make_tensor_value_info(n, TensorProto.FLOAT, shape) for n in ("x", last)]
    constants = [numpy_helper.from_array(a.astype(np.float32), n) for n, a in arrays.items()]
    graph = helper.make_graph(nodes, "chain", infos[:1], infos[1:], constants)
    imports = [helper.make_opsetid("", 17)]
    return helper.make_model(graph, ir_version=8, opset_imports=imports)


AFFINE = ("BatchNormalization", "Mul", "Div", "Add", "Sub")


@pytest.mark.parametrize("into", ["Conv", "ConvTranspose", "Gemm"])
@pytest.mark.parametrize("start", range(len(AFFINE)))
def test_chains_of_affine_operators_are_fused_whole(into, start):
    """What is asked first finds the pairs that only come to stand side by side later."""
    model = load(chain(AFFINE[start:] + AFFINE[:start], into))
    record_origins(model)
    prepare.fuse_affine(model)
    assert [node.op_type for node in model.graph] == [into]


def test_all_rules_fuse_no_more_than_those_that_were_found():
    """Of random graphs: the rules that are left out would match nothing."""
    every = [(i, f) for i in prepare._INTO for f in prepare._FOLLOWERS]
    operators = (*prepare._INTO, *prepare._FOLLOWERS)
    for seed in range(60):
        drawn = draw_graph(seed, operators).model
        ours, all_rules = load(drawn), load(drawn)
        for model in (ours, all_rules):
            record_origins(model)
            lift_constants(model)
        prepare.fuse_affine(ours)
        with hidden(all_rules), np.errstate(all="ignore"):
            apply_rules(all_rules, every)
        written = [
            ir.to_proto(model).SerializeToString(deterministic=True) for model in (ours, all_rules)
        ]
        assert written[0] == written[1], seed
