"""Whether a kernel is right: inputs, guard zones, the comparison with float64, and compute-sanitizer."""
