# SPDX-License-Identifier: Apache-2.0
"""Measuring in worker processes."""
