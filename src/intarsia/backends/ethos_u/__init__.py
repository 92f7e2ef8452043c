# SPDX-License-Identifier: Apache-2.0
"""The kind `ethos-u`: Arm's Ethos-U processors, by Arm's compiler Vela."""
