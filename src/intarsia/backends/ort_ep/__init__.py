# SPDX-License-Identifier: Apache-2.0
"""Accelerators that ONNX Runtime reaches by its execution providers, one leaf for all of them."""
