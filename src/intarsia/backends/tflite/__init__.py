# SPDX-License-Identifier: Apache-2.0
"""Regions of integer operators as TFLite networks, for backends that take these."""
