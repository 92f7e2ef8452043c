# SPDX-License-Identifier: Apache-2.0
"""The `cmsis-nn` kind: Arm's kernels of int8 for Cortex-M, called by C that is generated."""
