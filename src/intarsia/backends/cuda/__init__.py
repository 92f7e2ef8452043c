# SPDX-License-Identifier: Apache-2.0
"""The kinds `cuda` and `nvptx`: PTX from the loop-level IR, run by the CUDA driver."""
