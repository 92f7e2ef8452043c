# SPDX-License-Identifier: Apache-2.0
"""The `opencl` kind: OpenCL C from the loop-level IR, run on any OpenCL 1.2 device."""
