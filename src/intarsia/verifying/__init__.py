# SPDX-License-Identifier: Apache-2.0
"""Whether a program computes what its model says, and where it first does not."""
