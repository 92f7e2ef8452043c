# SPDX-License-Identifier: Apache-2.0
"""The kind `cublas`: matrix products by NVIDIA's cuBLASLt, beside the kernels of `cuda`."""
