"""Numbers of parameters that change the algorithm, and of chains that a message carries."""

WALKERS, MOST_NUMBERS, FEWEST_WALKERS = 2048, 2**21, 64
"""Chains of Hamiltonian Monte Carlo at most, numbers of their positions, and chains at least."""

MOST_CURVED, GROUPS = 200, 8
"""Parameters up to which curvatures are sent; and places where chains begin with more of them."""
