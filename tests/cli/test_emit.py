# SPDX-License-Identifier: Apache-2.0
"""`intarsia compile --emit`."""

import re

import pytest


def test_c_is_written_into_a_folder(call, folder, model):
    answer = call("compile", model, "-t", "c", "--emit", "c", "-o", "out")
    assert answer.code == 0
    assert answer.out.startswith("wrote out/chain.c (")
    bounds = re.search(
        r"^(\d+) bytes of arena, at most (\d+) bytes of stack", answer.out, re.MULTILINE
    )
    header = (folder / "out" / "chain.h").read_text()
    assert "int chain_run(const float *x, float *y, float *mid);" in header
    for name, number in zip(("SCRATCH", "STACK"), bounds.groups(), strict=True):
        assert f"#define CHAIN_{name}_BYTES {number}u" in header


def test_json_lists_the_files(call, folder, model):
    answer = call("compile", model, "-t", "llvm", "--emit", "c", "--json")
    assert [item["file"] for item in answer.json["files"]] == ["chain.c", "chain.h"]
    assert answer.json["files"][0]["nbytes"] == (folder / "chain.c").stat().st_size
    assert set(answer.json["memory"]) == {"arena", "stack", "weights"}


def test_a_shape_and_an_attribute_are_taken(call, folder, free_model):
    options = ("--shape", "x=2x3", "--target-llvm-mcpu=haswell")
    assert call("compile", free_model, "-t", "llvm", "--emit", "c", *options).code == 0
    assert "input x: float32, 2 x 3" in (folder / "free.h").read_text()


@pytest.mark.parametrize(
    ("options", "message"),
    [
        (("--pin", "first=llvm"), "--pin has no meaning with --emit c"),
        (("--strict",), "--strict has no meaning with --emit c"),
        (("--shape", "x"), "--shape 'x' is not NAME=SIZES"),
    ],
)
def test_options_of_placement_are_refused(call, model, options, message):
    answer = call("compile", model, "--emit", "c", *options)
    assert answer.code == 2
    assert message in answer.err


def test_nodes_in_the_way_are_named(call, mixed_model):
    answer = call("compile", mixed_model, "--emit", "c", "-t", "openvino, onnxruntime")
    assert answer.code == 2
    assert "the model is not one region of native code" in answer.err
    assert "(Cast) on onnxruntime" in answer.err
    assert "give -t llvm alone" in answer.err
