# SPDX-License-Identifier: Apache-2.0
"""Plans that were accepted: the verdict, the lock file and the kept program."""
