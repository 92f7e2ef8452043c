# SPDX-License-Identifier: Apache-2.0
"""Placement as an optimisation problem."""
