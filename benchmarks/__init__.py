"""Speed of consortia against bare JAX loops of the same design and against other libraries.

``python -m benchmarks`` runs all of it on one core and one thread; ``make bench`` does so in the
project's environment. Each figure is a ratio, the median of interleaved pairs (A B A B) in CPU
time, because ratios move from machine to machine far less than seconds do.
"""
