# SPDX-License-Identifier: Apache-2.0
"""Readable, hierarchical node names, so that a placement pattern such as `layer4/*` works.

A rule rewrites `"<operator> <key>"`. The key of a node with weights is the name of its first weight
in the source model; the key of any other node is the new name of the node listed just before it.
The first rule that matches the whole text wins.
"""

from __future__ import annotations

import re

from intarsia.errors import InternalError

Rules = tuple[tuple[str, str], ...]

_DENSE_BLOCKS = (1, 2, 3, 4)


def _resnet_layer(layer: int) -> Rules:
    """Return the rules of one stage of bottleneck blocks; the source counts stages from 2."""
    source, name = rf"gpu_0/res{layer + 1}_(\d+)_branch", rf"layer{layer}/\1"
    branches = (("2a", "1"), ("2b", "2"), ("2c", "3"))
    return (
        *((rf"Conv {source}{branch}_w_0", rf"{name}/conv{i}") for branch, i in branches),
        *(
            (rf"BatchNormalization {source}{branch}_bn_s_0", rf"{name}/bn{i}")
            for branch, i in branches
        ),
        (rf"Conv {source}1_w_0", rf"{name}/downsample/conv"),
        (rf"BatchNormalization {source}1_bn_s_0", rf"{name}/downsample/bn"),
    )


RESNET: Rules = (
    (r"Conv gpu_0/conv1_w_0", "stem/conv"),
    (r"BatchNormalization gpu_0/res_conv1_bn_s_0", "stem/bn"),
    (r"Relu stem/bn", "stem/relu"),
    (r"MaxPool stem/relu", "stem/pool"),
    *(rule for layer in (1, 2, 3, 4) for rule in _resnet_layer(layer)),
    (r"Relu (.+)/bn(\d)", r"\1/relu\2"),
    (r"Sum (layer\d/\d)/.+", r"\1/add"),
    (r"Relu (.+)/add", r"\1/relu3"),
    (r"AveragePool .+", "head/pool"),
    (r"Reshape .+", "head/flatten"),
    (r"Gemm .+", "head/fc"),
    (r"Softmax .+", "head/softmax"),
)

SQUEEZENET: Rules = (
    (r"Conv conv1_w_0", "stem/conv"),
    (r"Conv conv10_w_0", "head/conv"),
    (r"Conv (fire\d/.+)_w_0", r"\1"),
    (r"Relu (stem|head)/conv", r"\1/relu"),
    (r"Relu (fire\d)/(.+)", r"\1/relu_\2"),
    (r"Concat (fire\d)/.+", r"\1/concat"),
    (r"MaxPool (.+)/.+", r"\1/pool"),
    (r"Dropout .+", "head/dropout"),
    (r"GlobalAveragePool .+", "head/pool"),
    (r"Softmax .+", "head/softmax"),
)


def _densenet_scope(source: str, name: str, i: str) -> Rules:
    """Return the rules of one normalisation: batch norm, scale, shift, each a node or two."""
    return (
        (rf"BatchNormalization {source}/bn_scale_0", rf"{name}/bn{i}"),
        (rf"Unsqueeze {source}/bn_w_0", rf"{name}/unsqueeze_scale{i}"),
        (rf"Unsqueeze {source}/bn_b_0", rf"{name}/unsqueeze_shift{i}"),
    )


def _densenet_block(block: int) -> Rules:
    """Return the rules of one dense block and what follows it; the source counts from 2."""
    source, name = rf"conv{block + 1}_(\d+)", rf"block{block}/layer\1"
    after = "head" if block == _DENSE_BLOCKS[-1] else f"transition{block}"
    return (
        *_densenet_scope(rf"{source}/x1", name, "1"),
        *_densenet_scope(rf"{source}/x2", name, "2"),
        *_densenet_scope(f"conv{block + 1}_blk", after, ""),
        (rf"Conv {source}/x([12])_w_0", rf"{name}/conv\2"),
        (rf"Conv conv{block + 1}_blk_w_0", rf"{after}/conv"),
    )


DENSENET: Rules = (
    (r"Conv conv1_w_0", "stem/conv"),
    *_densenet_scope("conv1", "stem", ""),
    *(rule for block in _DENSE_BLOCKS for rule in _densenet_block(block)),
    (r"Mul (.+)/unsqueeze_(.+)", r"\1/\2"),
    (r"Add (.+)/unsqueeze_(.+)", r"\1/\2"),
    (r"Relu (.+)/shift(\d?)", r"\1/relu\2"),
    (r"Concat (.+)/conv2", r"\1/concat"),
    (r"(?:MaxPool|AveragePool|GlobalAveragePool) (.+)/.+", r"\1/pool"),
    (r"Conv fc6_w_0", "head/fc"),
)


PLAIN: Rules = (
    (r"Conv (?:gpu_0/)?conv(\d)_w_0", r"conv\1/conv"),
    (r"Conv conv(\d)_(\d)_w_0", r"conv\1/conv\2"),
    (r"Relu (conv\d)/conv(\d?)", r"\1/relu\2"),
    (r"LRN (conv\d)/.+", r"\1/norm"),
    (r"MaxPool (conv\d)/.+", r"\1/pool"),
    (r"Reshape .+", "head/flatten"),
    (r"Gemm (?:gpu_0/)?fc(\d)_w_0", r"head/fc\1"),
    (r"Relu head/fc(\d)", r"head/relu\1"),
    (r"Dropout head/relu(\d)", r"head/dropout\1"),
    (r"Softmax .+", "head/softmax"),
)


def _inception_scope(source: str, name: str) -> Rules:
    """Return the rules of one convolution and the normalisation, if any, that follows it."""
    return (
        (rf"Conv {source}_w_0", rf"{name}/conv"),
        (rf"BatchNormalization {source}/bn_scale_0", rf"{name}/bn"),
        (rf"Unsqueeze {source}/bn/sc_w_0", rf"{name}/unsqueeze_scale"),
        (rf"Unsqueeze {source}/bn/sc_b_0", rf"{name}/unsqueeze_shift"),
    )


INCEPTION: Rules = (
    *_inception_scope("conv1/7x7_s2", "stem/conv1"),
    *_inception_scope("conv2/3x3_reduce", "stem/conv2_reduce"),
    *_inception_scope("conv2/3x3", "stem/conv2"),
    *_inception_scope(r"(inception_\d\w)/(\w+?)", r"\1/\2"),
    (r"Mul (.+)/unsqueeze_(.+)", r"\1/\2"),
    (r"Add (.+)/unsqueeze_(.+)", r"\1/\2"),
    (r"Relu (.+)/(?:conv|shift)", r"\1/relu"),
    (r"LRN (stem)/(?:pool|conv)(\d).*", r"\1/norm\2"),
    (r"MaxPool (stem)/(?:norm|conv)(\d).*", r"\1/pool\2"),
    (r"AveragePool inception_5b/concat", "head/pool"),
    (r"MaxPool (inception_\d\w)/concat", r"\1/downsample"),
    (r"(?:MaxPool|AveragePool) (inception_\d\w)/.+", r"\1/pool"),
    (r"Concat (inception_\d\w)/.+", r"\1/concat"),
    (r"Dropout .+", "head/dropout"),
    (r"Reshape .+", "head/flatten"),
    (r"Gemm .+", "head/fc"),
    (r"Softmax .+", "head/softmax"),
)


def _shufflenet_unit(block: int, name: str) -> Rules:
    """Return the rules of one unit: grouped, depthwise and grouped convolution."""
    convs = ((f"gconv1_{2 * block}", 1), (f"gconv3_{block}", 2), (f"gconv1_{2 * block + 1}", 3))
    return tuple(
        (f"{op} gpu_0/{source}_{weight}_0", f"{name}/{role}{i}")
        for source, i in convs
        for op, weight, role in (("Conv", "w", "conv"), ("BatchNormalization", "bn_s", "bn"))
    )


_SHUFFLENET_STAGES = {2: range(4), 3: range(4, 12), 4: range(12, 16)}

SHUFFLENET: Rules = (
    (r"Conv gpu_0/conv3_0_w_0", "stem/conv"),
    (r"BatchNormalization gpu_0/conv3_0_bn_s_0", "stem/bn"),
    (r"Relu stem/bn", "stem/relu"),
    (r"MaxPool stem/relu", "stem/pool"),
    *(
        rule
        for stage, blocks in _SHUFFLENET_STAGES.items()
        for i, block in enumerate(blocks)
        for rule in _shufflenet_unit(block, f"stage{stage}/{i}")
    ),
    (r"Relu (stage.+)/bn1", r"\1/relu1"),
    (r"Reshape (stage.+)/relu1", r"\1/split"),
    (r"Transpose (.+)/split", r"\1/shuffle"),
    (r"Reshape (.+)/shuffle", r"\1/join"),
    (r"AveragePool (stage.+)/bn3", r"\1/pool"),
    (r"Concat (.+)/pool", r"\1/concat"),
    (r"Sum (.+)/bn3", r"\1/add"),
    (r"Relu (.+)/(?:concat|add)", r"\1/relu3"),
    (r"AveragePool .+", "head/pool"),
    (r"Reshape head/pool", "head/flatten"),
    (r"Gemm .+", "head/fc"),
    (r"Softmax .+", "head/softmax"),
)


def node_name(rules: Rules, op_type: str, key: str) -> str:
    """Return the name that the rules give a node.

    Args:
        rules: One network's rules.
        op_type: The node's operator.
        key: Its first weight in the source model, or the name of the node before it.

    Raises:
        InternalError: If no rule matches.
    """
    text = f"{op_type} {key}"
    for pattern, template in rules:
        if match := re.fullmatch(pattern, text):
            return match.expand(template)
    msg = f"no naming rule of the zoo matches {text!r}"
    raise InternalError(msg)
