# SPDX-License-Identifier: Apache-2.0
"""The kind `cutlass`: products by kernels of NVIDIA's CUTLASS, which nvcc compiles for a target."""
