# SPDX-License-Identifier: Apache-2.0
"""The `arm_acl` kind: Arm Compute Library's functions, in a generated C++ program."""
