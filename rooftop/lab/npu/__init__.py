"""Kernels for TPUs and Ascend: compiled by the vendors' compilers with no chip, and what these say of them."""
