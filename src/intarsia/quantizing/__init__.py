# SPDX-License-Identifier: Apache-2.0
"""A door to quantisers of others: a model in narrow numbers, with its error checked by region."""
