"""The parameters of travelling chains as a value, and the algorithm that they describe."""

from __future__ import annotations

from functools import partial
from typing import Any

import numpy as np

from consortia import schedules, surrogates
from consortia.algorithms import travelling_phases as phases
from consortia.core import arguments
from consortia.core.contract import Algorithm, Claims, Cost, Draws, Method, Phase, Route, Site
from consortia.core.target import Target
from consortia.errors import InputError

MOST_NUMBERS = 2**28
"""Entries of all sites' covariances together: 1 GB in single precision."""


CLAIMS = {
    "dsgld": Claims(
        samples="a law between the posterior and a mixture of local posteriors",
        bias="variance: the spread of the sites' pulls, growing with T, and that of the "
        "minibatches, O(h); mean O(h T) with unlike curvatures",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source="El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equations 3 and 4, "
        "after Ahn, Shahbaba, Welling (2014)",
    ),
    "fsgld": Claims(
        samples="a law near the posterior, the nearer the better the surrogates",
        bias="variance O(h) from minibatches, often many times the posterior's; mean and the rest "
        "in the measure of the surrogates' error",
        draw="the position after each visit, or after each update (record='updates')",
        step_size="h: drift h/2, noise variance h, h' = h/2",
        source="El Mekkaoui, Mesquita, Blomstedt, Kaski (2021), equation 5, algorithm 1",
    ),
}


class TravellingLangevin(phases.Settings, Method):
    """The parameters of `dsgld` and `fsgld`; compares and hashes by value."""

    @property
    def claims(self) -> Claims:
        """What the method samples, by its name."""
        return CLAIMS[self.name]

    @property
    def corrects(self) -> bool:
        """Whether conducive gradients are added."""
        return self.surrogate is not None and self.strength > 0

    def check(self, sizes: np.ndarray, names: tuple[str, ...], dimension: int) -> None:
        """Refuse probabilities or surrogates that do not fit, and batches too large."""
        sites = len(names)
        given = self.given_probabilities
        if given is not None and len(given) != sites:
            raise InputError(f"probabilities has {len(given)} values for {sites} sites: one each.")
        arguments.batch_within(self.batch_size, sizes, names)
        if isinstance(self.surrogate, tuple):
            if len(self.surrogate) != sites:
                raise InputError(
                    f"surrogate has {len(self.surrogate)} Gaussians for {sites} sites: one each."
                )
            found = self.surrogate[0].dimension
            if found != dimension:
                raise InputError(
                    f"surrogate: the Gaussian of site {names[0]!r} is for {found} parameters, the "
                    f"model has {dimension}."
                )
        elif self.corrects and self.covariance == "full" and sites * dimension**2 > MOST_NUMBERS:
            raise InputError(
                f"covariance='full' of {dimension} parameters at {sites} sites takes "
                f"{sites * dimension**2:.2g} numbers: use covariance='diagonal'."
            )

    def check_fitted(self, fitted: Any, names: tuple[str, ...]) -> tuple[str, ...]:
        """Refuse surrogates with which the chain diverges; warnings about those that come near.

        Args:
            fitted: what the fit phases left at all sites, node axis first.
            names: of the sites.

        Raises:
            InputError: a surrogate could not be computed, or the linearised chain diverges.
        """
        if not self.corrects:
            return ()
        steps: dict[str, Any] = {"step_size": self._first_step, "local_steps": self.local_steps}
        kind = "given"
        if isinstance(self.surrogate, surrogates.Recipe):
            kind = repr(self.surrogate.kind)
        elif self.surrogate is not None:
            fitted = surrogates.examined(self.surrogate, fitted[0], strength=self.strength, **steps)
        reason, warnings = surrogates.explain_divergence(fitted, names, **steps)
        if reason is not None:
            raise InputError(f"surrogate {kind}: {reason}")
        return warnings

    def explain_end(self, target: Target, site: Site, name: str, position: Any) -> str:
        """What the surrogates have to do with a chain that ended at a site; empty without them.

        Args:
            target: the posterior.
            site: where the chain ended.
            name: of the site.
            position: the last finite one, (d,).
        """
        correct, _ = self._correction(target)
        if correct is None:
            return ""
        recipe = self.surrogate
        kind = recipe.curvature if isinstance(recipe, surrogates.Recipe) else "hessian"
        reason = surrogates.explain_end(
            target,
            site,
            name,
            correct(site),
            position,
            kind=kind,
            strength=self.strength,
            step_size=self._first_step,
        )
        return (
            "A chain a thousand times further out than its start and the surrogates counts as "
            f"non-finite. {reason}"
        )

    @property
    def step_schedules(self) -> tuple[schedules.Schedule, ...]:
        """h of the rounds."""
        return (self.step_size,)

    @property
    def dimension(self) -> int | None:
        """That of given surrogates."""
        return self.surrogate[0].dimension if isinstance(self.surrogate, tuple) else None

    def site_weights(self, sizes: np.ndarray) -> np.ndarray:
        """f_s: as given, else n_s/n."""
        if self.given_probabilities is not None:
            return np.asarray(self.given_probabilities, np.float64)
        return sizes / sizes.sum()

    def prior_shares(self, sizes: np.ndarray) -> np.ndarray:
        """λ_s = f_s, so that ∇U_s/f_s holds the whole prior at every site."""
        return self.site_weights(sizes)

    def cost(self, sizes: np.ndarray) -> Cost:
        """T gradients, at one site."""
        rows = self.batch_size
        if rows is None:
            rows = round(float(self.site_weights(sizes) @ sizes))
        return Cost(self.local_steps, self.local_steps * rows)

    def step_weights(self, iterations: np.ndarray) -> np.ndarray | None:
        """h' = h/2 of each round, or None when h is constant."""
        if isinstance(self.step_size, schedules.Constant):
            return None
        return schedules.evaluate(self.step_size, iterations) / 2

    def parameters(self) -> dict[str, Any]:
        """The parameters as plain values, given surrogates by their numbers."""
        plain = arguments.plain_parameters(self)
        if isinstance(self.surrogate, tuple):
            plain["surrogate"] = [
                {"mean": gaussian.mean.tolist(), "precision": gaussian.precision.tolist()}
                for gaussian in self.surrogate
            ]
        return plain

    def build(self, target: Target) -> Algorithm:
        """Fit the surrogates where there are any; then T updates and on to the next site."""
        correct, fit = self._correction(target)
        phase = Phase(
            partial(phases.visit, self, target, correct),
            Route(),
            noise=partial(phases.noise, self, target),
            shared=partial(phases.shared, self, target),
        )
        draws = Draws(hub=_end)
        if self.keeps_path:
            draws = Draws(hub=_updates, per_iteration=self.local_steps)
        return Algorithm(partial(phases.init, self), (phase,), draws, fit=fit)

    def _correction(self, target: Target) -> tuple[phases.Correct | None, tuple[Phase, ...]]:
        """What a site knows of the surrogates, and the phases that find or examine them."""
        if not self.corrects or self.surrogate is None:
            return None, ()
        if isinstance(self.surrogate, surrogates.Recipe):
            settings = self._for_surrogates()
            fit = surrogates.fit_phases(self.surrogate, target, settings, _position)
            return surrogates.correction_of, fit
        look = surrogates.look_phase(self.surrogate, target, _position)
        return surrogates.given_correction(self.surrogate), (look,)

    @property
    def _first_step(self) -> float:
        return float(schedules.evaluate(self.step_size, range(1))[0])

    def _for_surrogates(self) -> surrogates.Settings:
        return surrogates.Settings(
            self.covariance,
            self.strength,
            self._first_step,
            self.local_steps,
            self.batch_size,
            self.replace,
        )


def _position(inbox: Any) -> Any:
    return inbox[0]


def _end(hub: Any, inbox: Any) -> Any:
    return inbox[0]


def _updates(hub: Any, inbox: Any) -> Any:
    return inbox[1]
