# SPDX-License-Identifier: Apache-2.0
"""Processes beside this one: workers with limits, and self-tests; knows no model."""
