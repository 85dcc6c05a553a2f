"""Metropolis-adjusted HMC and unadjusted Langevin over a network of agents."""
