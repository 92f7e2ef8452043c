# SPDX-License-Identifier: Apache-2.0
"""Rewrites of a whole model before placement."""
