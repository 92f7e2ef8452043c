# SPDX-License-Identifier: Apache-2.0
"""The rows of ONNX's operators: all there, and true against the schemas and the evaluator."""

import onnx
import pytest

from intarsia.codegen.scalar_ops import SCALAR_OPS
from intarsia.codegen.scalar_ops.arithmetic import MULTIPLY_ADD
from intarsia.codegen.scalar_ops.fixed_point import MULTIPLY, ROUND_AWAY
from intarsia.graph.ops import (
    FOREIGN,
    OPERATORS,
    UNLISTED,
    Family,
    Indexing,
    ViewKind,
    names_of,
    operator_named,
    operator_of,
)

# fmt: off
BY_DEFAULT = {
    "AffineGrid", "BlackmanWindow", "Col2Im", "HammingWindow", "HannWindow", "ImageDecoder",
    "LinearAttention", "MaxRoiPool", "MaxUnpool", "MelWeightMatrix", "NegativeLogLikelihoodLoss",
    "RegexFullMatch", "SoftmaxCrossEntropyLoss", "StringConcat", "StringNormalizer",
    "TfIdfVectorizer",
}
"""Operators of which `UNLISTED` is true enough."""
# fmt: on

SCHEMAS = {
    schema.name: schema
    for schema in onnx.defs.get_all_schemas()
    if schema.domain in ("", "ai.onnx")
}


def test_every_operator_of_onnx_has_a_row_or_takes_the_default():
    assert SCHEMAS.keys() - OPERATORS.keys() == BY_DEFAULT
    assert not OPERATORS.keys() - SCHEMAS.keys()
    assert all(operator_named(name) is UNLISTED for name in BY_DEFAULT)


def test_what_the_code_generator_computes_elementwise_is_elementwise():
    # What requantisation is spelled in: TFLite's, and of known scales.
    own = {MULTIPLY, ROUND_AWAY, MULTIPLY_ADD}
    onnx_names = set(names_of(lambda row: row.family is Family.ELEMENTWISE))
    assert SCALAR_OPS.keys() - own == onnx_names
    assert own <= SCALAR_OPS.keys()


@pytest.mark.parametrize("row", OPERATORS.values(), ids=OPERATORS)
def test_rows_fit_the_schemas(row):
    schema = SCHEMAS[row.name]
    assert all(position < schema.max_input for position in row.shape_operands)
    if row.indexing is not Indexing.NONE:
        assert schema.inputs[1].name.lower() == "indices"
    if row.is_commutative:
        assert schema.max_input >= 2
        assert {item.type_str for item in schema.inputs} == {schema.inputs[0].type_str}
    if row.view is ViewKind.SAME:
        assert schema.inputs[0].type_str == schema.outputs[0].type_str
    if row.casts:
        assert schema.inputs[0].type_str != schema.outputs[0].type_str
    if row.family in (Family.MOVEMENT, Family.STRUCTURE):
        assert row.flops is None


def test_nothing_is_known_of_other_domains():
    node = onnx.helper.make_node("Relu", ["x"], ["y"], domain="my.own")
    assert operator_of(node) is FOREIGN
    assert FOREIGN.flops is None
