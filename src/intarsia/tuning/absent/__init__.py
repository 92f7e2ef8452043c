# SPDX-License-Identifier: Apache-2.0
"""Plans for machines that are not here, and what would be measured."""
