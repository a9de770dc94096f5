# SPDX-License-Identifier: Apache-2.0
"""Tile IR to CUDA C++: an emitter for each family of kernels, NVRTC, and a launcher on the driver's own calls."""
