# SPDX-License-Identifier: Apache-2.0
"""The cheapest cover of a graph by labelled operators: pure, measures nothing, knows no backend."""
