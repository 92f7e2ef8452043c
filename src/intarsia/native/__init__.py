# SPDX-License-Identifier: Apache-2.0
"""Generated code on a machine: compiling, linking, calling, threads."""
