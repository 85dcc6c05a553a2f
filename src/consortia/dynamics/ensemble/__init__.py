"""Many chains of Hamiltonian Monte Carlo that ask the sites together, in plain Python."""
