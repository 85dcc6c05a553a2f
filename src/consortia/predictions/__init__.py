r"""What a method will return at these settings: its bias, predicted before it runs.

Near its mode a posterior is close to a Gaussian law, and on Gaussian targets `consortia.oracles`
holds the exact law of the draws. `predict_bias` puts the two together: it finds the mode on the
pooled rows, expands every site's potential to second order there and asks the method's oracle.
Where the posterior is Gaussian the answer is exact, elsewhere it is as good as the expansion.

It reads the rows of all sites in one place, as a simulation can; sites that may not pool their data
cannot ask it.
"""

from __future__ import annotations

from consortia.predictions.bias import Prediction, predict_bias

__all__ = ["Prediction", "predict_bias"]
