# SPDX-License-Identifier: Apache-2.0
"""The `ncnn` kind: float32 networks of one image on this CPU, through ncnn's package of Python."""
