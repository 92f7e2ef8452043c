# SPDX-License-Identifier: Apache-2.0
"""What units and regions cost, and the problem that the search is given."""
