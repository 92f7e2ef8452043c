# SPDX-License-Identifier: Apache-2.0
"""Models as PyTorch's two exporters write them: whether they load, where they run, and numbers.

    python -P benchmarks/torch_exports.py --export FOLDER [MODEL ...]    # needs torch and others
    python benchmarks/torch_exports.py FOLDER [MODEL ...] [--json FILE]

The first form is for an interpreter that has torch, timm and transformers (`-P`, as transformers
would import what else is in this folder). No weights are downloaded: each network is made of its
configuration with two layers and seeded random weights, unless `--full` asks for the sizes of the
published network. The second form needs neither. It compiles every file for `llvm`, runs it at
three sizes beside ONNX Runtime, and prints one row each.
"""

from __future__ import annotations

import argparse
import json
import logging
import traceback
import warnings
from collections import Counter
from collections.abc import Callable
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

Shape = tuple[int | str, ...]


@dataclass(frozen=True)
class Spec:
    """How a network is made and exported.

    Attributes:
        make: Returns the module, from the name of how it spells attention and whether it is whole.
        inputs: The shape and dtype of each input; a name is a free dimension.
        sizes: Values of the free dimensions at which it is run.
        variants: Spellings of attention.
    """

    make: Callable[[str, bool], Any]
    inputs: dict[str, tuple[Shape, str]]
    sizes: tuple[dict[str, int], ...]
    variants: tuple[str, ...] = ("eager", "sdpa")


TEXT_SIZES = (
    {"batch": 1, "seq": 7},
    {"batch": 3, "seq": 33},
    {"batch": 1, "seq": 128},
    {"batch": 2, "seq": 1},
)
IMAGE_SIZES = ({"batch": 1}, {"batch": 3}, {"batch": 2})
TOKENS = {"input_ids": (("batch", "seq"), "int64"), "attention_mask": (("batch", "seq"), "int64")}


def small(full: bool, **more: Any) -> dict[str, Any]:
    """Return the fields of a configuration of two layers, none if the network is wanted whole."""
    return {} if full else more


SMALL = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "vocab_size": 1000,
}


def build(kind: Any, config: Any, variant: str) -> Any:
    """Return a network of transformers whose attention is spelled in one way."""
    make = kind._from_config  # noqa: SLF001 - transformers has no public way that is for all kinds
    return make(config, attn_implementation=variant)


def let_torchvision_in() -> None:
    """Let torchvision be imported beside a PyTorch for which its operators are not built.

    PyPI's wheel is for CUDA. Beside a PyTorch for CPUs its library does not load, and torchvision
    then stumbles over the operators that it describes in any case. No network here has them.
    """
    import importlib.util

    import torch

    found = importlib.util.find_spec("torchvision")
    if KEPT or found is None or found.origin is None:
        return
    try:
        torch.ops.load_library(str(Path(found.origin).with_name("_C.so")))
    except OSError:
        library = torch.library.Library("torchvision", "FRAGMENT")
        for name in ("nms", "qnms"):
            library.define(f"{name}(Tensor dets, Tensor scores, float iou_threshold) -> Tensor")
        KEPT.append(library)


KEPT: list[Any] = []
"""Libraries of operators, which are there for as long as their objects."""


def wrap(module: Any, pick: Callable[[Any], Any], call: Callable[..., Any] | None = None) -> Any:
    """Return a module that gives tensors only."""
    import torch

    class Wrapped(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = module

        def forward(self, *args: Any) -> Any:
            return pick(call(self.inner, *args) if call else self.inner(*args))

    return Wrapped().eval()


def named(inputs: dict[str, Any], **fixed: Any) -> Callable[..., Any]:
    """Return how a module is called with its inputs by name."""
    names = list(inputs)
    return lambda module, *args: module(**dict(zip(names, args, strict=True)), **fixed)


def encoder(family: str, variants: tuple[str, ...] = ("eager", "sdpa"), **fields: Any) -> Spec:
    """Return an encoder of text of transformers."""

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = getattr(transformers, f"{family}Config")(**({} if full else {**SMALL, **fields}))
        model = build(getattr(transformers, f"{family}Model"), config, variant)
        return wrap(model.eval(), lambda out: out[0], named(TOKENS))

    return Spec(make, TOKENS, TEXT_SIZES, variants)


def decoder(
    family: str,
    causal: str = "ForCausalLM",
    variants: tuple[str, ...] = ("eager", "sdpa"),
    **fields: Any,
) -> Spec:
    """Return a decoder of transformers that reads a prompt."""

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = getattr(transformers, f"{family}Config")(**({} if full else {**SMALL, **fields}))
        config.use_cache = False
        model = build(getattr(transformers, f"{family}{causal}"), config, variant)
        return wrap(model.eval(), lambda out: out[0], named(TOKENS, use_cache=False))

    return Spec(make, TOKENS, TEXT_SIZES, variants)


def cached(family: str, kv_heads: int, size: int, **fields: Any) -> Spec:
    """Return a decoder of transformers with its keys and values of the past as inputs."""
    inputs: dict[str, tuple[Shape, str]] = {
        "input_ids": (("batch", "seq"), "int64"),
        "attention_mask": (("batch", "past+seq"), "int64"),
    }
    for layer in range(2):
        for what in ("key", "value"):
            inputs[f"past_{what}_{layer}"] = (("batch", kv_heads, "past", size), "float32")

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = getattr(transformers, f"{family}Config")(**{**SMALL, **fields})
        model = build(getattr(transformers, f"{family}ForCausalLM"), config, variant)

        def call(module: Any, ids: Any, mask: Any, *past: Any) -> Any:
            cache = transformers.DynamicCache(list(zip(past[::2], past[1::2], strict=True)))
            out = module(input_ids=ids, attention_mask=mask, past_key_values=cache, use_cache=True)
            layers = out.past_key_values.layers
            return (out[0], *(t for layer in layers for t in (layer.keys, layer.values)))

        return wrap(model.eval(), lambda out: out, call)

    sizes = (
        {"batch": 1, "seq": 1, "past": 16},
        {"batch": 3, "seq": 1, "past": 33},
        {"batch": 2, "seq": 5, "past": 7},
    )
    return Spec(make, inputs, sizes)


def vision(
    family: str,
    config: str | None = None,
    size: int = 64,
    variants: tuple[str, ...] = ("eager", "sdpa"),
    **fields: Any,
) -> Spec:
    """Return an encoder of images of transformers."""
    inputs = {"pixel_values": (("batch", 3, size, size), "float32")}

    def make(variant: str, full: bool) -> Any:
        import transformers

        made = getattr(transformers, config or f"{family}Config")(**({} if full else fields))
        model = build(getattr(transformers, f"{family}Model"), made, variant)
        return wrap(model.eval(), lambda out: out[0], named(inputs))

    return Spec(make, inputs, IMAGE_SIZES, variants)


def fill_zeros(model: Any) -> None:
    """Give random numbers to matrices that begin as zeros: behind them any result is equal."""
    for weight in model.parameters():
        if weight.dim() > 1 and not weight.any():
            weight.data.normal_(std=0.02)


def timm(name: str, size: int, variants: tuple[str, ...] = ("sdpa",), **fields: Any) -> Spec:
    """Return a network of timm; its fused attention is what is called sdpa here."""

    def make(variant: str, full: bool) -> Any:
        import timm as library

        library.layers.set_fused_attn(variant == "sdpa")
        model = library.create_model(name, pretrained=False, **({} if full else fields))
        fill_zeros(model)
        return wrap(model.eval(), lambda out: out)

    return Spec(
        make, {"pixel_values": (("batch", 3, size, size), "float32")}, IMAGE_SIZES, variants
    )


def torchvision(name: str, size: int = 64) -> Spec:
    """Return a network of torchvision."""

    def make(variant: str, full: bool) -> Any:
        import torchvision.models

        module: Any = torchvision.models
        for part in name.split("."):
            module = getattr(module, part)
        if "segmentation" in name:
            return wrap(module(weights=None, weights_backbone=None).eval(), lambda out: out["out"])
        return wrap(module(weights=None).eval(), lambda out: out)

    return Spec(
        make, {"pixel_values": (("batch", 3, size, size), "float32")}, IMAGE_SIZES, ("eager",)
    )


def t5_encoder() -> Spec:
    """Return the encoder of T5."""

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = transformers.T5Config(
            **small(
                full, d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=1000
            )
        )
        return wrap(transformers.T5EncoderModel(config).eval(), lambda out: out[0], named(TOKENS))

    return Spec(make, TOKENS, TEXT_SIZES, ("eager",))


def t5_decoder() -> Spec:
    """Return the decoder of T5 with what it attends to."""
    inputs: dict[str, tuple[Shape, str]] = {
        "decoder_input_ids": (("batch", "seq"), "int64"),
        "encoder_hidden": (("batch", "source", 128), "float32"),
        "encoder_mask": (("batch", "source"), "int64"),
    }

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = transformers.T5Config(
            d_model=128, d_kv=32, d_ff=256, num_layers=2, num_heads=4, vocab_size=1000
        )
        model = transformers.T5ForConditionalGeneration(config).eval()

        def call(module: Any, ids: Any, hidden: Any, mask: Any) -> Any:
            return module(
                decoder_input_ids=ids,
                encoder_outputs=(hidden,),
                attention_mask=mask,
                use_cache=False,
            )

        return wrap(model, lambda out: out[0], call)

    sizes = (
        {"batch": 1, "seq": 7, "source": 5},
        {"batch": 3, "seq": 33, "source": 17},
        {"batch": 2, "seq": 1, "source": 64},
    )
    return Spec(make, inputs, sizes, ("eager",))


WHISPER = {
    "d_model": 128,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 256,
    "decoder_ffn_dim": 256,
    "vocab_size": 1000,
    "max_source_positions": 100,
    "pad_token_id": 0,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "decoder_start_token_id": 1,
}


def whisper_encoder() -> Spec:
    """Return the encoder of Whisper."""
    inputs = {"input_features": (("batch", 80, 200), "float32")}

    def make(variant: str, full: bool) -> Any:
        import transformers

        model = build(transformers.WhisperModel, transformers.WhisperConfig(**WHISPER), variant)
        return wrap(model.encoder.eval(), lambda out: out[0], named(inputs))

    return Spec(make, inputs, IMAGE_SIZES)


def whisper_decoder() -> Spec:
    """Return the decoder of Whisper with what it attends to."""
    inputs: dict[str, tuple[Shape, str]] = {
        "input_ids": (("batch", "seq"), "int64"),
        "hidden": (("batch", "source", 128), "float32"),
    }

    def make(variant: str, full: bool) -> Any:
        import transformers

        model = build(transformers.WhisperModel, transformers.WhisperConfig(**WHISPER), variant)

        def call(module: Any, ids: Any, hidden: Any) -> Any:
            return module(input_ids=ids, encoder_hidden_states=hidden, use_cache=False)

        return wrap(model.decoder.eval(), lambda out: out[0], call)

    sizes = (
        {"batch": 1, "seq": 7, "source": 5},
        {"batch": 3, "seq": 33, "source": 100},
        {"batch": 2, "seq": 1, "source": 64},
    )
    return Spec(make, inputs, sizes)


def clip_text() -> Spec:
    """Return CLIP's encoder of text."""

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = transformers.CLIPTextConfig(**SMALL)
        model = build(transformers.CLIPTextModel, config, variant)
        return wrap(model.eval(), lambda out: out[0], named(TOKENS))

    return Spec(make, TOKENS, tuple({**s, "seq": min(s["seq"], 77)} for s in TEXT_SIZES))


def detr() -> Spec:
    """Return a detector with its convolutional network."""
    inputs = {"pixel_values": (("batch", 3, 64, 64), "float32")}

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = transformers.DetrConfig(
            use_timm_backbone=False,
            use_pretrained_backbone=False,
            backbone=None,
            backbone_config=transformers.ResNetConfig(
                embedding_size=16,
                hidden_sizes=[16, 32, 32, 64],
                depths=[1, 1, 1, 1],
                layer_type="basic",
                out_features=["stage4"],
            ),
            d_model=64,
            encoder_layers=2,
            decoder_layers=2,
            encoder_attention_heads=4,
            decoder_attention_heads=4,
            encoder_ffn_dim=128,
            decoder_ffn_dim=128,
            num_queries=20,
            num_labels=10,
        )
        model = build(transformers.DetrForObjectDetection, config, variant)
        return wrap(model.eval(), lambda out: (out.logits, out.pred_boxes), named(inputs))

    return Spec(make, inputs, IMAGE_SIZES)


def sam() -> Spec:
    """Return the encoder of images of Segment Anything."""
    inputs = {"pixel_values": (("batch", 3, 64, 64), "float32")}

    def make(variant: str, full: bool) -> Any:
        import transformers

        config = transformers.SamVisionConfig(
            hidden_size=128,
            num_hidden_layers=2,
            num_attention_heads=4,
            image_size=64,
            patch_size=8,
            window_size=4,
            global_attn_indexes=[1],
            output_channels=32,
            mlp_dim=256,
        )
        model = build(transformers.SamVisionModel, config, variant)
        return wrap(model.eval(), lambda out: out[0], named(inputs))

    return Spec(make, inputs, IMAGE_SIZES)


VIT = {
    "hidden_size": 128,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 256,
    "image_size": 64,
    "patch_size": 8,
}
GROUPED = {"num_key_value_heads": 2, "head_dim": 32}

SPECS: dict[str, Spec] = {
    "bert": encoder("Bert"),
    "distilbert": encoder("DistilBert", dim=128, n_layers=2, n_heads=4, hidden_dim=256),
    "roberta": encoder("Roberta"),
    "electra": encoder("Electra", embedding_size=64),
    "albert": encoder("Albert", embedding_size=64),
    "deberta_v2": encoder(
        "DebertaV2",
        variants=("eager",),
        relative_attention=True,
        pos_att_type=["p2c", "c2p"],
        max_relative_positions=-1,
        position_buckets=32,
    ),
    "mpnet": encoder("MPNet", variants=("eager",)),
    "modernbert": encoder(
        "ModernBert",
        global_attn_every_n_layers=2,
        local_attention=16,
        pad_token_id=0,
        eos_token_id=1,
        bos_token_id=2,
        cls_token_id=2,
        sep_token_id=1,
    ),
    "xlm_roberta": encoder("XLMRoberta"),
    "t5_encoder": t5_encoder(),
    "t5_decoder": t5_decoder(),
    "gpt2": decoder("GPT2", "LMHeadModel", n_embd=128, n_layer=2, n_head=4),
    "gpt_neox": decoder("GPTNeoX"),
    "llama": decoder("Llama", **GROUPED),
    "qwen2": decoder("Qwen2", num_key_value_heads=2),
    "qwen3": decoder("Qwen3", **GROUPED),
    "mistral": decoder("Mistral", sliding_window=16, **GROUPED),
    "gemma2": decoder(
        "Gemma2", variants=("eager",), sliding_window=16, query_pre_attn_scalar=32, **GROUPED
    ),
    "phi": decoder("Phi"),
    "phi3": decoder("Phi3", num_key_value_heads=2, pad_token_id=0),
    "opt": decoder("OPT", ffn_dim=256, word_embed_proj_dim=128, max_position_embeddings=512),
    "bloom": decoder("Bloom", n_layer=2, n_head=4, variants=("eager",)),
    "falcon": decoder("Falcon"),
    "llama_cache": cached("Llama", 2, 32, **GROUPED),
    "qwen3_cache": cached("Qwen3", 2, 32, **GROUPED),
    "gpt2_cache": cached("GPT2", 4, 32, n_embd=128, n_layer=2, n_head=4),
    "whisper_encoder": whisper_encoder(),
    "whisper_decoder": whisper_decoder(),
    "clip_text": clip_text(),
    "clip_vision": vision("CLIPVision", **VIT),
    "siglip_vision": vision("SiglipVision", **VIT),
    "vit": vision("ViT", **VIT),
    "deit": vision("DeiT", **VIT),
    "dinov2": vision("Dinov2", **{**VIT, "patch_size": 8, "mlp_ratio": 2}),
    "beit": vision("Beit", **VIT),
    "swin": vision(
        "Swin",
        image_size=64,
        embed_dim=32,
        depths=[2, 2],
        num_heads=[2, 4],
        window_size=4,
        variants=("eager",),
    ),
    "segformer": vision(
        "Segformer",
        depths=[1, 1, 1, 1],
        hidden_sizes=[32, 64, 96, 128],
        num_attention_heads=[1, 2, 3, 4],
        variants=("eager",),
    ),
    "mobilevit": vision(
        "MobileViT",
        image_size=64,
        hidden_sizes=[48, 64, 80],
        neck_hidden_sizes=[16, 32, 48, 64, 80, 96, 128],
        variants=("eager",),
    ),
    "convnext": vision(
        "ConvNext", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], variants=("eager",)
    ),
    "convnextv2": vision(
        "ConvNextV2", hidden_sizes=[32, 64, 96, 128], depths=[1, 1, 2, 1], variants=("eager",)
    ),
    "efficientnet_hf": vision(
        "EfficientNet",
        image_size=64,
        width_coefficient=0.5,
        depth_coefficient=0.3,
        variants=("eager",),
    ),
    "detr": detr(),
    "sam": sam(),
    "timm_vit": timm("vit_small_patch16_224", 64, ("eager", "sdpa"), img_size=64, depth=2),
    "timm_swin": timm(
        "swin_tiny_patch4_window7_224",
        112,
        ("eager", "sdpa"),
        img_size=112,
        depths=(2, 2),
        num_heads=(3, 6),
    ),
    "timm_mobilevit": timm("mobilevit_xxs", 64, ("eager", "sdpa")),
    "timm_efficientformer": timm("efficientformer_l1", 224),
    "timm_dinov2": timm("vit_small_patch14_dinov2", 70, img_size=70, depth=2),
    "timm_beit": timm("beit_base_patch16_224", 64, img_size=64, depth=2),
    "timm_convnext": timm("convnext_atto", 64),
    "timm_efficientnet": timm("efficientnet_b0", 64),
    "timm_maxvit": timm("maxvit_rmlp_pico_rw_256", 256),
    "timm_mixer": timm("mixer_s32_224", 224),
    "timm_levit": timm("levit_128s", 224),
    "timm_xcit": timm("xcit_nano_12_p16_224", 224),
    "timm_poolformer": timm("poolformer_s12", 224),
    "timm_pvt": timm("pvt_v2_b0", 224),
    "timm_hiera": timm("hiera_tiny_224", 224),
    "timm_eva": timm("eva02_tiny_patch14_224", 224, ("eager", "sdpa")),
    "timm_repvit": timm("repvit_m0_9", 64),
    "timm_coatnet": timm("coatnet_nano_rw_224", 224),
    "timm_mobilenetv4": timm("mobilenetv4_conv_small", 64),
    "tv_mobilenet_v3": torchvision("mobilenet_v3_small"),
    "tv_resnet18": torchvision("resnet18"),
    "tv_efficientnet": torchvision("efficientnet_b0"),
    "tv_vit": torchvision("vit_b_16", 224),
    "tv_swin": torchvision("swin_t", 224),
    "tv_lraspp": torchvision("segmentation.lraspp_mobilenet_v3_large"),
}

FULL: dict[str, Spec] = {
    "vit_small": timm("vit_small_patch16_224", 224),
    "deit_small": timm("deit_small_patch16_224", 224),
    "swin_tiny": timm("swin_tiny_patch4_window7_224", 224),
    "mobilevit_s": timm("mobilevit_s", 256),
    "efficientformer_l1": timm("efficientformer_l1", 224),
    "convnext_tiny": timm("convnext_tiny", 224),
    "dinov2_small": timm("vit_small_patch14_dinov2", 518),
    "beit_base": timm("beit_base_patch16_224", 224),
    "segformer_b0": vision("Segformer", size=224, variants=("eager",)),
}
"""Whole networks with one image, whose speed `native_transformers.py --exports` compares."""


# Export


def make_feeds(
    inputs: dict[str, tuple[Shape, str]], sizes: dict[str, int], seed: int
) -> dict[str, np.ndarray]:
    """Return inputs of some sizes: small indices, masks that end in zeros, normal numbers."""
    random, feeds = np.random.default_rng(seed), {}
    for name, (shape, dtype) in inputs.items():
        extents = [
            sum(sizes.get(part, 0) for part in dim.split("+")) if isinstance(dim, str) else dim
            for dim in shape
        ]
        if "mask" in name:
            feeds[name] = np.ones(extents, dtype)
            if len(extents) == 2 and extents[0] > 1 and extents[1] > 4:
                feeds[name][-1, -2:] = 0
        elif dtype == "int64":
            feeds[name] = random.integers(3, 90, extents)
        else:
            feeds[name] = random.standard_normal(extents, dtype=np.float32)
    return feeds


def export_all(
    folder: Path,
    names: list[str],
    opset: int | None,
    full: bool,
    exporters: list[str],
    pairs: list[str],
) -> None:
    """Write each network by each exporter and spelling of attention, with a file of facts."""
    import torch

    let_torchvision_in()
    table = FULL if full else SPECS
    for name in names or list(table):
        spec = table[name]
        for variant in spec.variants:
            for exporter in exporters:
                if pairs and f"{variant}-{exporter}" not in pairs and len(spec.variants) > 1:
                    continue
                stem = f"{name}-{variant}-{exporter}" + (f"-{opset}" if opset else "")
                if (folder / f"{stem}.onnx").exists():
                    continue
                torch.manual_seed(0)
                try:
                    module = spec.make(variant, full)
                    export(module, spec, folder / f"{stem}.onnx", exporter, opset, full)
                except Exception as error:  # an exporter may fail in any way
                    (folder / f"{stem}.failed").write_text(traceback.format_exc())
                    print(
                        f"{stem}: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True
                    )
                    continue
                facts = {"inputs": spec.inputs, "sizes": [] if full else spec.sizes}
                (folder / f"{stem}.json").write_text(json.dumps(facts))
                print(f"{stem}: exported", flush=True)


def export(
    module: Any, spec: Spec, path: Path, exporter: str, opset: int | None, full: bool
) -> None:
    """Write one network."""
    import torch

    sizes = {"batch": 1} if full else {"batch": 2, "seq": 12, "past": 9, "source": 14}
    feeds = make_feeds(spec.inputs, sizes, 0)
    args = tuple(torch.from_numpy(array) for array in feeds.values())
    options: dict[str, Any] = {"input_names": list(spec.inputs), "opset_version": opset}
    if exporter == "dynamo":
        shapes = []
        for shape, _ in spec.inputs.values():
            dims: dict[int, Any] = {}
            for axis, dim in enumerate(shape):
                if isinstance(dim, str):
                    dims[axis] = torch.export.Dim.DYNAMIC if "+" in dim else torch.export.Dim(dim)
            shapes.append(dims)
        options |= {"dynamo": True, "external_data": False, "verbose": False}
        if not full:
            options["dynamic_shapes"] = (tuple(shapes),)
    else:
        axes = {
            name: {
                axis: dim.replace("+", "_")
                for axis, dim in enumerate(shape)
                if isinstance(dim, str)
            }
            for name, (shape, _) in spec.inputs.items()
        }
        options |= {"dynamo": False}
        if not full:
            options["dynamic_axes"] = axes
    with torch.no_grad(), warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.onnx.export(module, args, path, **options)


# Analysis


@dataclass
class Finding:
    """What became of one file.

    Attributes:
        name: Of the file.
        nodes: How many the prepared model has.
        trouble: Why it does not compile or run; empty if it does.
        why_not_free: Why there is no program for all sizes.
        fallen: Nodes that `llvm` refuses, by operator.
        refusals: Why.
        kernels: Calls of kernels at the second sizes, by what they compute.
        moves: Of these, how many only move what they read.
        error: The largest difference from ONNX Runtime over the largest value, over all sizes.
    """

    name: str
    nodes: int = 0
    trouble: str = ""
    why_not_free: str = ""
    fallen: dict[str, int] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    kernels: dict[str, int] = field(default_factory=dict)
    moves: list[str] = field(default_factory=list)
    error: float = 0.0


def analyse(path: Path, target: str) -> Finding:
    """Compile one file, run it at its sizes, and compare."""
    import onnxruntime

    import intarsia

    finding = Finding(path.stem)
    facts = json.loads(path.with_suffix(".json").read_text())
    messages: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: messages.append(record.getMessage())  # type: ignore[method-assign]
    logger = logging.getLogger("intarsia")
    logger.addHandler(handler)
    logger.setLevel(logging.INFO)
    try:
        program = intarsia.compile(path, target, num_threads=1)
        finding.why_not_free = next(
            (m.partition(": ")[2] for m in messages if m.startswith("no program for all sizes")), ""
        )
        options = onnxruntime.SessionOptions()
        options.log_severity_level, options.intra_op_num_threads = 4, 1
        session = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
        names = [value.name for value in session.get_inputs()]
        outputs = [value.name for value in session.get_outputs()]
        for number, sizes in enumerate(facts["sizes"]):
            given = make_feeds(
                {name: (tuple(shape), dtype) for name, (shape, dtype) in facts["inputs"].items()},
                sizes,
                number,
            )
            feeds = {name: given[name] for name in names}
            wanted = dict(zip(outputs, session.run(outputs, feeds), strict=True))
            results = program.run(feeds)
            for name, want in wanted.items():
                got = results[name]
                if (got.shape, got.dtype) != (want.shape, want.dtype):
                    finding.trouble = (
                        f"{name} is {got.dtype}{got.shape}, wanted {want.dtype}{want.shape}"
                    )
                    continue
                if not want.size:
                    continue
                if want.dtype.kind != "f":
                    finding.error = max(finding.error, float(np.mean(got != want)))
                    continue
                scale = float(np.abs(want[np.isfinite(want)]).max(initial=1e-30))
                off = np.abs(got - want)[np.isfinite(want)].max(initial=0.0) / scale
                finding.error = max(
                    finding.error,
                    1.0 if np.isnan(off) or np.any(np.isnan(got) != np.isnan(want)) else float(off),
                )
            if number == 1 or len(facts["sizes"]) == 1:
                describe(program, finding)
    except Exception as error:  # whatever it is, it is what we want to know
        finding.trouble = f"{type(error).__name__}: {error}"[:600]
        if "IntarsiaError" not in [c.__name__ for c in type(error).__mro__]:
            finding.trouble += traceback.format_exc()[-1500:]
    finally:
        logger.removeHandler(handler)
    return finding


def describe(program: Any, finding: Finding) -> None:
    """Count nodes and kernels of the program that ran last."""
    import msgspec

    from intarsia.backends.native import CallRecord

    latest = getattr(program, "latest", program)
    placement = latest.placement
    finding.nodes = sum(len(region.nodes) for region in placement.regions)
    others = {
        node.name
        for region in placement.regions
        if region.backend != "llvm"
        for node in region.nodes
    }
    finding.refusals = [str(r) for r in placement.refusals if r.node in others]
    finding.fallen = dict(
        Counter(
            node.op_type
            for region in placement.regions
            if region.backend != "llvm"
            for node in region.nodes
        )
    )
    for artifact in latest.artifacts:
        if artifact.backend != "llvm":
            continue
        payload = msgspec.msgpack.decode(artifact.payload[32:])
        kernels = payload["kernels"]
        names = [name for name, _ in kernels]
        for call in msgspec.convert(payload["calls"], list[CallRecord]):
            name = str(names[call.kernel]).rpartition("_")[0]
            finding.kernels[name] = finding.kernels.get(name, 0) + 1
            if not call.flop and name in MOVES:
                finding.moves.append(f"{name} {call.shape}: {', '.join(call.nodes)}")


MOVES = ("transpose", "copy", "gather", "concat", "slice", "expand", "elementwise")


def main() -> int:
    """Export, or print a row for each file."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("folder", type=Path)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--export", action="store_true")
    parser.add_argument("--full", action="store_true")
    parser.add_argument("--opset", type=int)
    parser.add_argument("--exporters", nargs="+", default=["dynamo", "torchscript"])
    parser.add_argument("--pairs", nargs="*", default=[])
    parser.add_argument("--target", default="llvm, onnxruntime")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    options.folder.mkdir(exist_ok=True, parents=True)
    if options.export:
        export_all(
            options.folder,
            options.names,
            options.opset,
            options.full,
            options.exporters,
            options.pairs,
        )
        return 0
    findings = {}
    if options.json and options.json.exists():
        findings = json.loads(options.json.read_text())
    for path in sorted(options.folder.glob("*.onnx")):
        if not path.with_suffix(".json").exists():
            continue
        if options.names and not any(path.stem.startswith(name) for name in options.names):
            continue
        if not options.names and path.stem in findings:
            continue
        finding = analyse(path, options.target)
        findings[path.stem] = asdict(finding)
        print(f"{finding.name}: {finding.nodes} nodes, error {finding.error:.1e}", flush=True)
        for label in ("trouble", "why_not_free", "fallen", "kernels"):
            if getattr(finding, label):
                print(f"    {label}: {getattr(finding, label)}", flush=True)
        for line in (*sorted(set(finding.refusals)), *finding.moves):
            print(f"        {line}", flush=True)
        if options.json:
            options.json.write_text(json.dumps(findings, indent=1))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
