"""Settings of the process: the compiler, the collector of garbage, and a fault of jaxlib."""
