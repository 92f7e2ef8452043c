# SPDX-License-Identifier: Apache-2.0
"""Views of values made below: what a node's placement, a target or a tensor looks like."""
