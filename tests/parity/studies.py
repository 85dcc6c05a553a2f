"""A small study of three flowers, as a file for the command line."""

STUDY = """
[data]
dataset = "iris"
test_share = 0.2
standardise = true
dtype = "float32"

[partition]
kind = "iid"
sites = {sites}

[model]
kind = "softmax_regression"

[algorithm]
name = "{algorithm}"
{arguments}

[run]
rounds = 60
chains = 2
seed = 4

[output]
figure = false
"""
