# SPDX-License-Identifier: Apache-2.0
"""The kind `cudnn`: convolutions, pooling, norms, products and attention by NVIDIA's cuDNN."""
