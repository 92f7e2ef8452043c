# SPDX-License-Identifier: Apache-2.0
"""Interleaved rounds, comparisons and decisions: for plans, kernels and benches alike."""
