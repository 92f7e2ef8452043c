# SPDX-License-Identifier: Apache-2.0
"""Runs plans and keeps them in packages; imports neither onnx_ir nor onnxscript."""
