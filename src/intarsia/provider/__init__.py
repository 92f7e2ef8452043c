# SPDX-License-Identifier: Apache-2.0
"""An execution provider for ONNX Runtime, as a plug-in library that its programs register."""
