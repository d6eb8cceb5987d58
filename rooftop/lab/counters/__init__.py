"""Hardware counters of kernels through Nsight Compute, and the simulator's counts beside them."""
