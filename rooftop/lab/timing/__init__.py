"""How fast a kernel is: the timer and its clocks, statistics, sensors, ceilings, and `rooftop bench`."""
