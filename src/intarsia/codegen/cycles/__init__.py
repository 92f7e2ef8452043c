# SPDX-License-Identifier: Apache-2.0
"""Cycles that kernels take, from the description of a CPU: nothing is run."""
