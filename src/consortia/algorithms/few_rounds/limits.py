"""Numbers of parameters that change the algorithm, and of chains that a message carries."""

from consortia.core.queries import Noise

WALKERS, MOST_NUMBERS, FEWEST_WALKERS = 2048, 2**21, 64
"""Chains of Hamiltonian Monte Carlo at most, numbers of their positions, and chains at least."""

NOISE = Noise(each=0.15, most=0.4)
"""What sites add to a log-density between institutions: at .06 every second run of three sites, one
of which had 50 rows, settled one of them. Importance weights are worth exp(−σ²) of what they are
without, σ being the standard deviation of the sum."""

MOST_CURVED, GROUPS = 200, 8
"""Parameters up to which curvatures are sent; and places where chains begin with more of them."""

HIGHEST = 2.0**16
"""Height of a site's potential above that at the reference from which on it counts as infinite."""
