# SPDX-License-Identifier: Apache-2.0
"""A server of models: the Open Inference Protocol, version 2, over HTTP and gRPC."""
