"""Several processes, one a GPU: groups, memory that they share, collectives and products that overlap with them. `rooftop.comm` is the
public face."""
