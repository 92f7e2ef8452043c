# SPDX-License-Identifier: Apache-2.0
"""What may run where."""
