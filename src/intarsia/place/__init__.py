# SPDX-License-Identifier: Apache-2.0
"""From a graph and a machine to a plan: constraints, capability, assignment, order, schedule."""
