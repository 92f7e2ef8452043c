# SPDX-License-Identifier: Apache-2.0
"""A network in int8 on a target, layer by layer: which codes differ from ONNX's, and why.

    $ python benchmarks/int8_steps.py "acl, llvm -mcpu=cortex-a76 -mtriple=aarch64-linux-gnu ..."

The network (of the zoo, Q and DQ around its operators, as `cross.py` makes it) runs in ONNX Runtime
without optimisation, which keeps to ONNX's definition step by step. Then on the target, twice:

    alone     each layer reads the codes that ONNX Runtime had there: what the layer itself does
    together  each reads what the one before wrote: what becomes of it

Of every tensor of codes behind a convolution it prints the share that differs and by how many steps
at most. In the end a control: ONNX Runtime alone, with as large a share of the codes behind each
convolution moved by one step at random. If that changes the result as much as the target does, the
network spreads single steps so, and no layer is at fault.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
from cross import noise, quantised
from onnx import helper, numpy_helper

import intarsia
from intarsia import zoo

Arrays = dict[str, np.ndarray]


@dataclass(frozen=True)
class Codes:
    """A tensor of codes between two layers.

    Attributes:
        name: Of the tensor.
        node: The QuantizeLinear that writes it.
        source: Operator that the QuantizeLinear reads.
        dtype: As ONNX numbers it.
        shape: Of the tensor.
    """

    name: str
    node: onnx.NodeProto
    source: str
    dtype: int
    shape: tuple[int, ...]

    def declared(self, suffix: str = "") -> onnx.ValueInfoProto:
        """Return it as an input or output of a graph."""
        return helper.make_tensor_value_info(f"{self.name}{suffix}", self.dtype, self.shape)


def codes_of(model: onnx.ModelProto) -> Iterator[Codes]:
    """Yield the tensors of codes that are no weights."""
    graph = onnx.shape_inference.infer_shapes(model).graph
    weights = {one.name: one for one in graph.initializer}
    shapes = {one.name: one for one in (*graph.value_info, *graph.input)}
    writers = {name: node.op_type for node in graph.node for name in node.output}
    for node in graph.node:
        if node.op_type == "QuantizeLinear" and node.input[0] not in weights:
            dims = shapes[node.input[0]].type.tensor_type.shape.dim
            yield Codes(
                node.output[0],
                node,
                writers.get(node.input[0], "input"),
                weights[node.input[2]].data_type,
                tuple(dim.dim_value for dim in dims),
            )


def copied(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a copy of a model."""
    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    return copy


def with_outputs(model: onnx.ModelProto, every: list[Codes]) -> onnx.ModelProto:
    """Return a model whose codes are outputs too."""
    whole = copied(model)
    whole.graph.output.extend(one.declared() for one in every)
    return whole


def cut(whole: onnx.ModelProto, every: list[Codes]) -> onnx.ModelProto:
    """Return a model whose layers read codes that are given, and not those of the one before."""
    model, names = copied(whole), {one.name for one in every}
    for node in model.graph.node:
        for position, name in enumerate(node.input):
            if name in names:
                node.input[position] = f"{name}{GIVEN}"
    model.graph.input.extend(one.declared(GIVEN) for one in every)
    return model


GIVEN = "_given"


def moved(model: onnx.ModelProto, every: list[Codes], share: float, seed: int) -> onnx.ModelProto:
    """Return a model in which such a share of the codes behind convolutions is off by a step."""
    rng, changed = np.random.default_rng(seed), copied(model)
    graph = changed.graph
    weights = {one.name: one for one in graph.initializer}
    behind = {one.name: one for one in every if one.source == "Conv"}
    nodes = list(graph.node)
    del graph.node[:]
    for node in nodes:
        codes = behind.get(node.output[0])
        if codes is not None:
            step = float(numpy_helper.to_array(weights[node.input[1]]))
            steps = (rng.random(codes.shape) < share) * rng.choice([-step, step], codes.shape)
            name = f"{codes.name}_moved"
            array = numpy_helper.from_array(steps.astype(np.float32), f"{name}_by")
            graph.initializer.append(array)
            graph.node.append(helper.make_node("Add", [node.input[0], array.name], [name]))
            node.input[0] = name
        graph.node.append(node)
    return changed


def run_plainly(model: onnx.ModelProto, feeds: Arrays) -> Arrays:
    """Return the outputs of ONNX Runtime without optimisation, by name."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    session = onnxruntime.InferenceSession(model.SerializeToString(), options)
    names = [output.name for output in session.get_outputs()]
    return dict(zip(names, session.run(names, feeds), strict=True))


def run_there(model: onnx.ModelProto, feeds: Arrays, target: str) -> Arrays:
    """Return the outputs on a target, by name."""
    exe = intarsia.compile(model, target)
    for region in exe.placement.regions:
        print(f"    {region.target}: {len(region.nodes)} nodes")
    got = exe(*(feeds[one.name] for one in model.graph.input))
    names = [output.name for output in model.graph.output]
    return dict(zip(names, got if isinstance(got, list | tuple) else [got], strict=True))


def compare(got: Arrays, wanted: Arrays, every: list[Codes]) -> list[tuple[float, int]]:
    """Return of each tensor of codes the share that differs, and by how many steps at most."""
    off = [got[one.name].astype(int) - wanted[one.name].astype(int) for one in every]
    return [(float(np.mean(one != 0)), int(np.abs(one).max())) for one in off]


def error(got: np.ndarray, wanted: np.ndarray) -> float:
    """Return the greatest difference, as a part of the greatest number."""
    return float(np.abs(got - wanted).max() / np.abs(wanted).max())


def main() -> int:
    """Run, compare and print; return 1 if a layer alone is off by more than a step."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("target")
    parser.add_argument("--model", default="squeezenet", help="of the zoo")
    parser.add_argument("--seeds", type=int, default=3, help="of the control")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as work:
        path = Path(work) / f"{options.model}.onnx"
        onnx.save(zoo.build(options.model), path)
        written = quantised(path)
        model, feeds = onnx.load(written), noise(written)
        floats = onnxruntime.InferenceSession(path).run(None, feeds)[0]
        optimised = onnxruntime.InferenceSession(written).run(None, feeds)[0]
    every, result = list(codes_of(model)), model.graph.output[0].name
    whole = with_outputs(model, every)
    wanted = run_plainly(whole, feeds)
    given = {f"{one.name}{GIVEN}": wanted[one.name] for one in every}
    print("alone:")
    alone = compare(run_there(cut(whole, every), {**feeds, **given}, options.target), wanted, every)
    print("together:")
    got = run_there(whole, feeds, options.target)
    together = compare(got, wanted, every)
    print(f"{'codes behind':40} {'alone':>20} {'together':>20}   per cent, most steps")
    for one, (share, most), (share_then, most_then) in zip(every, alone, together, strict=True):
        if one.source == "Conv" or most:
            print(
                f"{one.name[-40:]:40} {100 * share:14.3f} {most:5} "
                f"{100 * share_then:14.3f} {most_then:5}   {one.source}"
            )
    shares = [share for one, (share, _) in zip(every, alone, strict=True) if one.source == "Conv"]
    print(
        f"result: {error(got[result], wanted[result]):.3f} from ONNX Runtime without optimisation; "
        f"its own optimisation changes {error(optimised, wanted[result]):.3f}, quantising "
        f"{error(floats, wanted[result]):.3f}"
    )
    share = float(np.median(shares))
    errors = [
        error(run_plainly(moved(model, every, share, seed), feeds)[result], wanted[result])
        for seed in range(options.seeds)
    ]
    print(
        f"control: {100 * share:.2f} per cent of the codes behind each convolution moved by one "
        f"step at random change {', '.join(f'{one:.3f}' for one in errors)}"
    )
    return int(max(most for _, most in alone) > 1)


if __name__ == "__main__":
    sys.exit(main())
