"""Settings of the process: compiler, threads, the collector of garbage, and a fault of jaxlib."""
