# SPDX-License-Identifier: Apache-2.0
"""Kernels, each family in a module: from a frozen description of shapes to a function of the IR."""
