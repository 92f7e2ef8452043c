# SPDX-License-Identifier: Apache-2.0
"""Fair comparisons with other runtimes: each in a process of its own, taking turns."""
