"""Triton kernels on a CPU."""
