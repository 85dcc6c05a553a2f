"""Studies of "Decentralized Bayesian learning with Metropolis-adjusted HMC" (2023), appendix 2."""
