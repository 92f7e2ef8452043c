# SPDX-License-Identifier: Apache-2.0
"""Placement by measured cost."""
