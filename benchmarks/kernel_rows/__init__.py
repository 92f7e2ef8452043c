# SPDX-License-Identifier: Apache-2.0
"""What `benchmarks/kernels.py` measures: a module for each family of kernels."""
