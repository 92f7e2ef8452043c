# SPDX-License-Identifier: Apache-2.0
"""What the plug-in's own tests would be: run by test_plugin.py where the plug-in is installed."""

from intarsia_plugin_example import BACKEND

from intarsia.testing import conformance

test_conformance = conformance(BACKEND, target="plugin-kind")
