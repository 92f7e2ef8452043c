# SPDX-License-Identifier: Apache-2.0
"""Native code: the loop-level IR, kernels written on it, and what turns it into machine code."""
