# SPDX-License-Identifier: Apache-2.0
"""Which plan ships, and how that is told."""
