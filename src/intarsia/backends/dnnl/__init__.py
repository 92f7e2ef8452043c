# SPDX-License-Identifier: Apache-2.0
"""The `dnnl` kind: oneDNN's primitives, fused, in oneDNN's own layouts, one call per region."""
