# SPDX-License-Identifier: Apache-2.0
"""The fastest schedules of generated kernels."""
