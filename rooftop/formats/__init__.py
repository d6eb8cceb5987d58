"""Data types that ops, kernels and classes share: number formats and their codes, quantised and packed tensors, 2:4 matrices, the container
of compressed arrays, messages between ranks, random bits. Modules that use ops are outside: rooftop.quant, sparse, codecs, comm."""
