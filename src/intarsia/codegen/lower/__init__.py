# SPDX-License-Identifier: Apache-2.0
"""From a region's operators to a program of kernels: fusion, layouts, memory."""
