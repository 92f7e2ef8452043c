# SPDX-License-Identifier: Apache-2.0
"""Llamas in GGUF files, which llama.cpp reads, as ONNX models in the layout of GenAI."""
