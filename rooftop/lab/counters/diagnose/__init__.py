"""From a profiler's report, or from less, to what bounds a kernel, what is wasted, and what each step may gain."""
