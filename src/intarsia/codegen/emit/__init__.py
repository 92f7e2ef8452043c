# SPDX-License-Identifier: Apache-2.0
"""Emitters: from the loop-level IR to a language. They walk the same tree and know no operator."""
