"""What the compiled binary says of a kernel, without a GPU."""
