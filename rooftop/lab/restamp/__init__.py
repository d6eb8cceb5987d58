"""Records of kernels whose text has changed and whose machine code has not."""
