# SPDX-License-Identifier: Apache-2.0
"""Runs Optimum's classes for ONNX Runtime through our provider, and compares their numbers.

    pip install optimum-onnx transformers -c constraints.txt; python benchmarks/optimum_classes.py

Each model is small, made from its configuration with seeded weights, and exported by Optimum;
nothing is downloaded. A row has how many nodes of how many are ours, and the largest difference of
what the class returns from PyTorch's and from ONNX Runtime's alone; of classes that generate text,
how many tokens are not the same. The answer is no (1) if no node is ours, or one difference is
above 1e-5.
"""

from __future__ import annotations

import sys
import tempfile
import warnings
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime

import intarsia

PROVIDER = "IntarsiaExecutionProvider"
TARGET = {"target": "llvm"}
TOLERANCE = 1e-5
TOKENS = 8
WIDTH = 32
BERT = {
    "vocab_size": 100,
    "hidden_size": WIDTH,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 64,
    "max_position_embeddings": 64,
}


def networks() -> Iterator[tuple[str, Any]]:
    """Yield the name of each of Optimum's classes with a model for it."""
    import transformers

    bert = transformers.BertConfig(**BERT)
    yield "ORTModelForSequenceClassification", transformers.BertForSequenceClassification(bert)
    yield "ORTModelForFeatureExtraction", transformers.BertModel(bert)
    gpt2 = transformers.GPT2Config(
        vocab_size=100,
        n_positions=64,
        n_embd=WIDTH,
        n_layer=2,
        n_head=4,
        bos_token_id=1,
        eos_token_id=2,
    )
    yield "ORTModelForCausalLM", transformers.GPT2LMHeadModel(gpt2)
    t5 = transformers.T5Config(
        vocab_size=100,
        d_model=WIDTH,
        d_kv=8,
        d_ff=64,
        num_layers=2,
        num_heads=4,
        decoder_start_token_id=0,
    )
    yield "ORTModelForSeq2SeqLM", transformers.T5ForConditionalGeneration(t5)


def settings() -> onnxruntime.SessionOptions:
    """Return options of sessions that say afterwards whose each node is."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3
    options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
    return options


def owned(model: Any) -> tuple[int, int]:
    """Return how many nodes of a model's sessions are ours, and how many there are."""
    parts = [model, *(getattr(model, name, None) for name in ("encoder", "decoder"))]
    parts.append(getattr(model, "decoder_with_past", None))
    sessions = [part.session for part in parts if getattr(part, "session", None) is not None]
    found = [part for one in sessions for part in one.get_provider_graph_assignment_info()]
    ours = sum(len(list(part.get_nodes())) for part in found if part.ep_name == PROVIDER)
    return ours, sum(len(list(part.get_nodes())) for part in found)


def answer(model: Any, ids: Any) -> np.ndarray:
    """Return what a model is for: its first result, or the text that it goes on with."""
    import torch

    mask = torch.ones_like(ids)
    with torch.no_grad():
        if model.can_generate():
            options = {"max_new_tokens": TOKENS, "do_sample": False, "pad_token_id": 0}
            return model.generate(input_ids=ids, attention_mask=mask, **options).numpy()
        return model(input_ids=ids, attention_mask=mask)[0].numpy()


def difference(one: np.ndarray, other: np.ndarray) -> float:
    """Return the largest difference; of texts, how many tokens differ, or all if lengths do."""
    if one.shape != other.shape:
        return float(one.size)
    if one.dtype.kind == "f":
        return float(np.abs(one - other).max())
    return float((one != other).sum())


def main() -> int:
    """Print a row for each class."""
    import torch
    import transformers
    from optimum import onnxruntime as optimum_ort

    warnings.simplefilter("ignore")
    transformers.logging.set_verbosity_error()
    onnxruntime.register_execution_provider_library("intarsia", intarsia.onnxruntime_library())
    is_right = True
    print(f"{'class':36}{'ours':>6}{'nodes':>7}{'to PyTorch':>13}{'to ONNX Runtime':>17}")
    for name, network in networks():
        torch.manual_seed(0)
        network.apply(network._init_weights)  # noqa: SLF001 - seeded, whatever came before
        kind = getattr(optimum_ort, name)
        with tempfile.TemporaryDirectory() as folder:
            made, exported = Path(folder) / "made", Path(folder) / "exported"
            network.eval().save_pretrained(made)
            kind.from_pretrained(made, export=True).save_pretrained(exported)
            alone = kind.from_pretrained(exported)
            ours = kind.from_pretrained(
                exported,
                provider=PROVIDER,
                provider_options=TARGET,
                session_options=settings(),
            )
        ids = torch.randint(3, 100, (2, 7), generator=torch.Generator().manual_seed(1))
        result = answer(ours, ids)
        far = [difference(result, answer(other, ids)) for other in (network, alone)]
        count, total = owned(ours)
        is_right &= count > 0 and max(far) <= TOLERANCE
        print(f"{name:36}{count:6}{total:7}{far[0]:13.2g}{far[1]:17.2g}", flush=True)
    return 0 if is_right else 1


if __name__ == "__main__":
    sys.exit(main())
