"""Numbers of parameters that change the algorithm, and of chains that a message carries."""

WALKERS, MOST_NUMBERS, FEWEST_WALKERS = 2048, 2**21, 64
"""Chains of Hamiltonian Monte Carlo at most, numbers of their positions, and chains at least."""

MOST_CURVED, GROUPS = 200, 8
"""Parameters up to which curvatures are sent; and places where chains begin with more of them."""

FITS, STARTS, FEW_COORDINATES = 3, 12, 12
"""Starts of local fits, of a formula or of many parameters; and those of another model, which may
have several modes, up to so many parameters: the prior's draws lead to fewer of its modes with
more."""

FIRST_REACH = 12.0
"""Standard deviations that the first rays of a formula reach where sites protect their rows: far
out single rows decide. A ray that has not fallen by there reaches farther in the next message."""
