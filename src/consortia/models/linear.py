"""Linear regression with Gaussian noise."""

from __future__ import annotations

from functools import partial

import numpy as np

from consortia.core import arguments
from consortia.core.model import Model
from consortia.models._features import arranged, predictor
from consortia.models._shared import Array, PyTree, as_features, log_normal_density, wrong_batch
from consortia.runtime.late import jnp


@arguments.hinted
def linear_regression(
    features: int,
    *,
    noise_scale: float | None = 1.0,
    prior_scale: float = 1.0,
    intercept: bool = False,
    intercept_scale: float | None = None,
    log_noise_prior_scale: float = 1.0,
) -> Model:
    r"""Return Bayesian linear regression, with known or unknown noise.

    .. math:: y_i \sim N(a + x_i^\top\beta, \sigma^2), \quad \beta_j \sim N(0, s^2), \quad
              a \sim N(0, s_a^2), \quad \log\sigma \sim N(0, s_\sigma^2)

    Densities are normalised and at full scale. The parameters are a dict of

    - ``coefficients``: β, (features,), in units of y per unit of x;
    - ``intercept``: a, a scalar in units of y, when ``intercept=True``;
    - ``log_noise_scale``: log σ, a scalar, when ``noise_scale=None``. Its prior is the normal
      above, that is a log-normal σ with median 1: scale y so that this is sensible.

    A batch is ``dict(x=(rows, features), y=(rows,))``; `consortia.predict` gives the mean
    a + x'β, (rows,), without the noise.

    Args:
        features: columns of x.
        noise_scale: σ, in units of y; None to infer it.
        prior_scale: s, the standard deviation of each coefficient's normal prior.
        intercept: add an intercept to the model (or add a column of ones).
        intercept_scale: s_a, the same of the intercept; ``prior_scale`` by default.
        log_noise_prior_scale: s_σ, the same of log σ; used with ``noise_scale=None`` only.

    Returns:
        The model, starting at zero everywhere (σ = 1 when it is unknown).

    Raises:
        InputError: a scale that is not a finite number > 0, ``features`` < 1.

    Example:
        >>> model = linear_regression(3, noise_scale=None)
        >>> {name: value.shape for name, value in model.init.items()}
        {'coefficients': (3,), 'log_noise_scale': ()}
    """
    features = arguments.whole("features", features, 1)
    init, mean, log_coefficients = predictor((features,), prior_scale, intercept, intercept_scale)
    noise_prior = arguments.positive("log_noise_prior_scale", log_noise_prior_scale)
    noise = None if noise_scale is None else arguments.positive("noise_scale", noise_scale)

    if noise is None:
        init["log_noise_scale"] = np.zeros((), np.float32)

    def log_prior(params: PyTree) -> Array:
        total = log_coefficients(params)
        if noise is None:
            total = total + log_normal_density(params["log_noise_scale"], noise_prior)
        return total

    def log_likelihood(params: PyTree, batch: PyTree) -> Array:
        expected = mean(params, batch)
        spread = jnp.exp(params["log_noise_scale"]) if noise is None else noise
        return log_normal_density(as_features(batch["y"], expected) - expected, spread)

    check, arrange = (partial(of, features=features) for of in (wrong_batch, arranged))
    return Model(log_prior, log_likelihood, init, predict=mean, check=check, arrange=arrange)
