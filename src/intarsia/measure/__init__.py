# SPDX-License-Identifier: Apache-2.0
"""Measuring: things that take turns in rounds, and what the rounds decide."""
