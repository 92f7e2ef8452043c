# SPDX-License-Identifier: Apache-2.0
"""The `webgpu` kind: WGSL from the loop-level IR, run through Vulkan, Metal or Direct3D 12."""
