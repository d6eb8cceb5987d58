"""Every shipped Triton, Gluon and CUDA kernel compiled for every target: what is committed of it, and the page. Nothing here needs a GPU."""
