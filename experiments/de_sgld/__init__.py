"""Studies of the paper on DE-SGLD and DE-SGHMC, one program each."""
