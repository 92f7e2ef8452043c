# SPDX-License-Identifier: Apache-2.0
"""The networks of the zoo: a name, what can be said without building it, and how it is built."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from functools import partial
from types import MappingProxyType

import numpy as np
import onnx

from intarsia.errors import ModelError
from intarsia.zoo import convnets, decoders, free, naming, vision
from intarsia.zoo import transformers as nets
from intarsia.zoo.convnets import from_light
from intarsia.zoo.random_net import random_net

Builder = Callable[[np.random.Generator], onnx.ModelProto]
Inputs = Mapping[str, tuple[int, ...]]

RANDOM = "random:"
FREE = ":free"
_SMALL = 64  # elements of an initializer that may be a shape
_RANDOM_HINT = "give a seed of 0 or more, as in random:7"


@dataclass(frozen=True, slots=True)
class Entry:
    """One network.

    Args:
        build: Builds it.
        parameters: How many float32 numbers its initializers hold.
        inputs: The shape of each input.
    """

    build: Builder
    parameters: int
    inputs: Inputs


def _light(source: str, rules: naming.Rules, gain: float, output: str = "prob") -> Builder:
    return partial(from_light, source, rules, output, gain)


_IMAGE: Inputs = {"data": (1, 3, 224, 224)}
_TOKENS: Inputs = dict.fromkeys(("input_ids", "attention_mask", "token_type_ids"), (1, 128))
_STEP: Inputs = {"input_ids": (1, 1), "position_ids": (1, 1)}
_CACHE: Inputs = {f"past.{i}.{k}": (1, 4, 128, 64) for i in range(8) for k in ("key", "value")}

ENTRIES: Mapping[str, Entry] = MappingProxyType(
    # Gains keep a softmax after the mean of many values from being uniform or one-hot.
    {
        "alexnet": Entry(_light("bvlc_alexnet", naming.PLAIN, 1.0), 60_965_224, _IMAGE),
        "bert_base": Entry(partial(nets.bert, nets.BERT_BASE), 109_482_246, _TOKENS),
        "deit_small": Entry(vision.deit_small, 22_050_665, _IMAGE),
        "densenet121": Entry(
            _light("densenet121", naming.DENSENET, 1.0, "logits"), 8_146_152, _IMAGE
        ),
        "detector": Entry(convnets.detector, 1_871_631, {"data": (1, 3, 320, 320)}),
        "efficientformer_l1": Entry(vision.efficientformer_l1, 12_276_826, _IMAGE),
        "gpt2": Entry(partial(nets.gpt2, nets.Gpt2()), 124_443_911, {"input_ids": (1, 64)}),
        "inception_v1": Entry(_light("inception_v1", naming.INCEPTION, 0.4), 6_998_552, _IMAGE),
        "inception_v2": Entry(_light("inception_v2", naming.INCEPTION, 0.05), 11_234_792, _IMAGE),
        "llama_decode": Entry(
            partial(nets.llama_decode, nets.Llama()),
            99_496_869,
            {**_STEP, **_CACHE},
        ),
        "minilm": Entry(partial(nets.bert, nets.MINILM), 22_713_222, _TOKENS),
        "mobilenet_v2": Entry(convnets.mobilenet_v2, 3_487_818, _IMAGE),
        "mobilevit_small": Entry(vision.mobilevit_small, 5_573_083, {"data": (1, 3, 256, 256)}),
        "resnet18": Entry(convnets.resnet18, 11_684_712, _IMAGE),
        "resnet50": Entry(_light("resnet50", naming.RESNET, 1.0), 25_610_152, _IMAGE),
        "segformer_b0": Entry(vision.segformer_b0, 3_752_442, {"data": (1, 3, 512, 512)}),
        "shufflenet": Entry(_light("shufflenet", naming.SHUFFLENET, 0.5), 1_420_152, _IMAGE),
        "squeezenet": Entry(_light("squeezenet", naming.SQUEEZENET, 5.0), 1_235_496, _IMAGE),
        "swin_tiny": Entry(vision.swin_tiny, 28_817_266, _IMAGE),
        "vgg19": Entry(_light("vgg19", naming.PLAIN, 1.0), 143_667_240, _IMAGE),
        "vit_b16": Entry(partial(nets.vit, nets.VIT_B16), 86_567_659, _IMAGE),
        "whisper_encoder": Entry(
            partial(nets.whisper, nets.WHISPER_TINY),
            8_208_385,
            {"mel": (1, 80, 3000)},
        ),
        "zfnet512": Entry(_light("zfnet512", naming.PLAIN, 1.0), 87_250_536, _IMAGE),
    }
)


FREE_NETWORKS: Mapping[str, Builder] = MappingProxyType(
    {
        **{f"{one.name}{FREE}": partial(free.bert, one) for one in (nets.MINILM, nets.BERT_BASE)},
        "llama:genai": partial(decoders.genai, nets.Llama()),
        "llama:int4": partial(decoders.int4, decoders.HALF_BILLION),
        "llama:optimum": partial(decoders.optimum, nets.Llama()),
    }
)
"""Networks beside `ENTRIES` whose inputs have free dimensions."""


def models() -> tuple[str, ...]:
    """Return the names that `build` knows, sorted; `random:SEED` is one more for every seed."""
    return tuple(sorted(ENTRIES))


def find(name: str) -> Builder:
    """Return the function that builds a network.

    Args:
        name: One of `models()`, or `random:SEED`; `minilm:free` and `bert_base:free` have a free
            batch and length, `llama:genai`, `llama:int4` and `llama:optimum` a free past as well.

    Raises:
        ModelError: If there is no such network.
    """
    if name in FREE_NETWORKS:
        return FREE_NETWORKS[name]
    if name.startswith(RANDOM):
        text = name.removeprefix(RANDOM)
        if not (text.isascii() and text.isdigit()):
            msg = f"{text!r} in {name!r} is not the seed of a random network"
            raise ModelError(msg, hint=_RANDOM_HINT)
        return partial(random_net, int(text))
    if name not in ENTRIES:
        msg = f"the zoo has no network {name!r}"
        near = get_close_matches(name, models(), n=2)
        meant = f"did you mean {' or '.join(near)}? " if near else ""
        raise ModelError(msg, hint=f"{meant}choose from {', '.join(models())}, {RANDOM}SEED")
    return ENTRIES[name].build


def build(name: str, seed: int = 0) -> onnx.ModelProto:
    """Build one network; the same name and seed give the same bytes.

    Args:
        name: One of `models()`, or `random:SEED`, in which SEED decides the structure.
        seed: Seeds every weight; not negative.

    Returns:
        A checked model, with static shapes unless its name has a colon; an image input is called
        `data`.

    Raises:
        ModelError: If there is no such network, or the seed is negative.
    """
    builder = find(name)
    if seed < 0:
        msg = f"seed {seed} is negative"
        raise ModelError(msg, hint="give a seed of 0 or more")
    model = builder(np.random.default_rng(seed))
    # An operator that is ONNX Runtime's has no domain of its own in the layout of GenAI.
    if name not in ("llama:genai", "llama:int4"):
        onnx.checker.check_model(_without_weights(model), full_check=True)
    return model


def _without_weights(model: onnx.ModelProto) -> onnx.ModelProto:
    """Return a model in which each large initializer is an input: checked in no time."""
    graph = model.graph
    small = [tensor for tensor in graph.initializer if math.prod(tensor.dims) <= _SMALL]
    free = [
        onnx.helper.make_tensor_value_info(tensor.name, tensor.data_type, tensor.dims)
        for tensor in graph.initializer
        if math.prod(tensor.dims) > _SMALL
    ]
    return onnx.helper.make_model(
        onnx.helper.make_graph(graph.node, graph.name, [*graph.input, *free], graph.output, small),
        ir_version=model.ir_version,
        opset_imports=model.opset_import,
    )
