"""CUDA C++: tile IR to source for NVRTC."""
