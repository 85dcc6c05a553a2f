"""Small jobs for a fresh process: ``python -m benchmarks.cold_jobs library`` or ``bare``.

Both sample 200 rounds of FA-HMC at 20 small sites. They print, as JSON, the seconds that JAX spent
compiling.
"""

from __future__ import annotations

import json
import sys

ROUNDS, SITES, ROWS, FEATURES = 200, 20, 50, 100
STEP_SIZE, LEAPFROG_STEPS, LOCAL_STEPS = 0.01, 10, 5


def library() -> None:
    """The job with consortia."""
    import numpy as np

    import consortia

    rng = np.random.default_rng(0)
    shards = [
        {
            "x": rng.normal(size=(ROWS, FEATURES)).astype(np.float32),
            "y": rng.integers(0, 2, ROWS).astype(np.float32),
        }
        for _ in range(SITES)
    ]
    model = consortia.models.logistic_regression(FEATURES)
    method = consortia.fa_hmc(STEP_SIZE, LEAPFROG_STEPS, LOCAL_STEPS)
    sites = consortia.Sites.from_list(shards)
    tree = consortia.sample(model, sites, method, rounds=ROUNDS, progress=False, chains=1)
    assert np.isfinite(tree["posterior"]["coefficients"].to_numpy()).all()


def bare() -> None:
    """The job with nothing but JAX."""
    import jax
    import jax.numpy as jnp
    import numpy as np

    rng = np.random.default_rng(0)
    x = jnp.asarray(rng.normal(size=(SITES, ROWS, FEATURES)).astype(np.float32))
    y = jnp.asarray(rng.integers(0, 2, (SITES, ROWS)).astype(np.float32))

    def force(theta, x, y):
        def potential(theta):
            fit = jnp.sum(jax.nn.log_sigmoid((2 * y - 1) * (x @ theta)))
            return -fit + 0.5 / SITES * jnp.sum(theta**2)

        return SITES * jax.grad(potential)(theta)

    def at_site(theta, momenta, x, y):
        def iteration(theta, momentum):
            momentum = momentum - STEP_SIZE / 2 * force(theta, x, y)

            def leap(state, _):
                theta, momentum = state
                theta = theta + STEP_SIZE * momentum
                return (theta, momentum - STEP_SIZE * force(theta, x, y)), None

            steps = LEAPFROG_STEPS - 1
            (theta, momentum), _ = jax.lax.scan(leap, (theta, momentum), None, length=steps)
            return theta + STEP_SIZE * momentum, None

        return jax.lax.scan(iteration, theta, momenta)[0]

    @jax.jit
    def chain(theta, key, x, y):
        def body(theta, key):
            momenta = jax.random.normal(key, (LOCAL_STEPS, FEATURES))
            moved = jax.vmap(at_site, in_axes=(None, None, 0, 0))(theta, momenta, x, y)
            theta = jnp.mean(moved, axis=0)
            return theta, theta

        return jax.lax.scan(body, theta, jax.random.split(key, ROUNDS))[1]

    assert np.isfinite(np.asarray(chain(jnp.zeros(FEATURES), jax.random.key(0), x, y))).all()


def main(job: str) -> None:
    """Runs a job and prints what JAX spent compiling."""
    import jax.monitoring

    seconds = []

    def listen(event: str, duration: float, **details: object) -> None:
        if event == "/jax/core/compile/backend_compile_duration":
            seconds.append(duration)

    jax.monitoring.register_event_duration_secs_listener(listen)
    {"library": library, "bare": bare}[job]()
    print(json.dumps({"compile_seconds": sum(seconds), "programs": len(seconds)}))


if __name__ == "__main__":
    main(sys.argv[1])
