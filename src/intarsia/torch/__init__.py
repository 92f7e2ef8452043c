# SPDX-License-Identifier: Apache-2.0
"""The entry point for PyTorch: programs of exported models, and a backend of `torch.compile`.

Both go by way of PyTorch's own ONNX exporter, and share the memory of parameters with it.
"""
