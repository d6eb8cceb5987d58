"""What a kernel may be written in. `rooftop.core.backends.table` lists the backends; each has a module here that reads, compiles and launches."""
