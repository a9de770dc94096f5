"""Triton: tile IR to Triton source, for NVIDIA and AMD GPUs."""
