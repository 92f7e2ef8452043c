# SPDX-License-Identifier: Apache-2.0
"""The contract (`backend`, `values`, `device`), the registry, and concrete backends as leaves."""
