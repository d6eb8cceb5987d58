"""The package for Hugging Face's `kernels` library that `rooftop export-hf` writes: a folder that `LocalLayerRepository`, and Transformers with
`KernelConfig(..., use_local_kernel=True)`, load layers from."""
