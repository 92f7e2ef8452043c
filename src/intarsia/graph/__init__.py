# SPDX-License-Identifier: Apache-2.0
"""Graphs, regions, their hashes; loading a model and cutting regions out of it."""

from intarsia.graph.deferred import defer

defer("sympy")
defer("onnx_ir._symbolic_shapes")  # has a table of functions of sympy
