# SPDX-License-Identifier: Apache-2.0
"""What running costs: values and where they come from."""
