# SPDX-License-Identifier: Apache-2.0
"""Graphs, regions, their hashes; loading a model and cutting regions out of it."""
