# SPDX-License-Identifier: Apache-2.0
"""The `xnnpack` kind: XNNPACK's float32 operators on this CPU, reached through LiteRT."""
