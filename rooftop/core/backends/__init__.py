"""The languages in which a kernel may be written. `rooftop.core.backends.table` lists the backends; each has a module here that reads,
compiles and launches."""
