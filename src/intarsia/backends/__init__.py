# SPDX-License-Identifier: Apache-2.0
"""Backends: the contract (`api`), the registry, and concrete backends as leaves beside them."""
