# SPDX-License-Identifier: Apache-2.0
"""Triton: tile IR to Triton source, for NVIDIA and AMD GPUs."""
