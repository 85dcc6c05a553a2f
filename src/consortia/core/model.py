"""A Bayesian model: a log-prior and one log-likelihood value per row of data."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from consortia.core.arguments import Hinted
from consortia.core.host import HostDensity
from consortia.core.parameters import is_function, structure_of, variables
from consortia.core.tails import Tail
from consortia.errors import InputError, wrong

PyTree = Any


class Integration(NamedTuple):
    """Rules of quadrature inside a likelihood of a site.

    Attributes:
        default: nodes of the model's own ``site_log_likelihood``, along each dimension.
        choices: nodes that a run may take in their place, ascending.
        measured: the rules that are compared where one of so many nodes is in use, ascending; the
            last is what the others are measured against.
        with_nodes: returns the ``site_log_likelihood`` with so many nodes; of several how far each
            is from the last of them, (rules,).
    """

    default: int
    choices: tuple[int, ...]
    measured: Callable[[int], tuple[int, ...]]
    with_nodes: Callable[[int | tuple[int, ...]], Callable[[PyTree, PyTree, Any], Any]]


@dataclass(frozen=True, eq=False)
class Model(metaclass=Hinted):
    r"""A posterior density given by additive pieces, over any pytree of floating parameters.

    .. math:: \log\pi(\theta) = \log p(\theta) + \sum_i \log p(z_i \mid \theta) + \text{const}

    Nothing is averaged and nothing is divided by the number of rows: both pieces are at full
    scale, and the library sums the rows of a site (or rescales a minibatch of them) itself.

    Args:
        log_prior: ``log_prior(params) -> scalar``. ``None`` means a flat prior (a warning says so).
        log_likelihood: ``log_likelihood(params, batch) -> (rows,)``, one value per row of the
            batch, whatever the number of rows. A batch is a pytree of arrays of the same structure
            as a site's data, with a leading row axis. Returning a sum is refused: it would break
            minibatch scaling, without an error. None with ``site_log_likelihood``.
        init: the parameters to start from: a pytree of floating arrays, or a function of a JAX
            key that returns one (each chain gets its own key).
        predict: optional, ``predict(params, batch) -> (rows, ...)``; class probabilities
            ``(rows, classes)`` for a classifier, the mean ``(rows,)`` for a regression. Needed by
            `consortia.predict` only.
        check: optional, ``check(batch) -> str | None``, called on the host with every site's
            NumPy arrays before anything is compiled; returns what is wrong with them.
        arrange: optional, ``arrange(batch) -> batch``, called on the host with NumPy arrays that
            have one more leading axis, of sites: the same rows in a form that is faster to compute
            with, say with padded features. Sites are held in this form while they are sampled, and
            ``log_likelihood`` takes both forms.
        natural: optional, ``natural(params) -> {name: array}``: the parameters of one draw on the
            scale on which the model was written: what the group ``posterior`` of a result holds.

        site_log_likelihood: in the place of ``log_likelihood``,
            ``site_log_likelihood(params, rows, mask) -> scalar``, the log-likelihood of all rows of
            one site: for what is a sum over sites, but none over rows (a stratified partial
            likelihood, a level of the site integrated out, a Gaussian process within a site). Rows
            where ``mask`` (rows,) is False are padding and may not count. Methods that take all
            rows of a site take such a model; minibatches are refused.

        group_sd: optional, ``group_sd(params) -> params``, of a hierarchical model whose groups are
            the sites, integrated out: of each parameter that is their common level τ/√J, with τ the
            standard deviation between J sites; 0 of all others. It may depend on parameters log τ
            only, of which it is 0. `few_rounds` proposes wider where the spread is larger.

        recover: optional, ``recover(params, rows, key) -> {name: array}``, of a model with
            ``site_log_likelihood`` that integrates parameters of the site out: one draw of them
            given the others and all rows of the site, for `consortia.recover`.

        integration: optional, of a ``site_log_likelihood`` that is a rule of quadrature: the rules
            that may take its place, by which its error is measured.

        host: optional, of a model whose functions take NumPy's arrays with leading axes, of many
            points together: what evaluates it without compiling, where little is evaluated. A copy
            by `dataclasses.replace` with other functions has none.

        tails: laws by whose scores parameters are sampled, by the name of the scores; `few_rounds`
            also proposes in the parameters themselves, where these predict better.

        sandwich: optional, ``(params, rows, mask) -> (parts,)``: parts of a site's log-likelihood
            whose scores count as independent, of rows with weights of a sample, or of clusters of
            rows. Draws are then given the covariance of a sandwich, and are those of no posterior.

    Raises:
        InputError: a piece is missing or cannot be called, or both kinds of likelihood are given.

    Example:
        >>> import jax.numpy as jnp
        >>> model = Model(
        ...     log_prior=lambda p: -0.5 * p["mu"] ** 2,
        ...     log_likelihood=lambda p, rows: -0.5 * (rows["y"] - p["mu"]) ** 2,
        ...     init={"mu": jnp.zeros(())})
        >>> model.log_likelihood({"mu": 0.0}, {"y": jnp.array([1.0, 2.0])}).shape
        (2,)

    Models compare by identity: two models are equal when they are one object. A model is compiled
    once: what its functions close over, and global names in them, must not change afterwards
    (`consortia.sample` refuses it); make a new model instead.
    """

    log_prior: Callable[[PyTree], Any] | None
    log_likelihood: Callable[[PyTree, PyTree], Any] | Any
    init: PyTree
    predict: Callable[[PyTree, PyTree], Any] | None = None
    check: Callable[[PyTree], str | None] | None = None
    arrange: Callable[[PyTree], PyTree] | None = None
    natural: Callable[[PyTree], Mapping[str, Any]] | None = None
    site_log_likelihood: Callable[[PyTree, PyTree, Any], Any] | None = None
    group_sd: Callable[[PyTree], PyTree] | None = None
    recover: Callable[[PyTree, PyTree, Any], Mapping[str, Any]] | None = None
    integration: Integration | None = None
    sandwich: Callable[[PyTree, PyTree, Any], Any] | None = None
    host: HostDensity | None = None
    tails: Mapping[str, Tail] = field(default_factory=dict)
    _of_host: tuple[Any, ...] = ()  # the functions that the host's are those of

    def __post_init__(self) -> None:
        if self.site_log_likelihood is not None:
            if self.log_likelihood not in (None, no_rows):  # `dataclasses.replace` gives no_rows
                raise wrong("log_likelihood", ": give it, or site_log_likelihood, not both.")
            object.__setattr__(self, "log_likelihood", no_rows)
        functions = self.log_prior, self.log_likelihood, self.site_log_likelihood, self.predict
        if (self._of_host or functions) != functions:  # the host's are of another model
            object.__setattr__(self, "host", None)
        object.__setattr__(self, "_of_host", functions)

    def __repr__(self) -> str:
        """Return parameters with their shapes, and what else there is; nothing is called."""
        if is_function(self.init):
            shown = "parameters that init(key) returns"
        else:
            parameters = variables(structure_of(self.init))
            shown = ", ".join(f"{parameter.name} {parameter.shape}" for parameter in parameters)
        rows = "a log-likelihood of each site" if self.by_site else "a log-likelihood of each row"
        prior = "a flat prior" if self.log_prior is None else "a log-prior"
        more = [name for name in ("predict", "natural", "recover") if vars(self)[name] is not None]
        return f"Model of {shown}; {', '.join([prior, rows, *more])}"

    def check_posterior(self, what: str) -> None:
        """Refuse what is known of the draws of a posterior only.

        Raises:
            InputError: the draws have the spread of a sandwich.
        """
        if self.sandwich:
            raise InputError(
                f"{what}: with weights_are='sampling', or cluster(...), the draws are not from a "
                "posterior: they have the spread of estimates over samples. Leave both out."
            ).at("weights")

    @property
    def by_site(self) -> bool:
        """True if there is one log-likelihood a site, and none a row."""
        return self.site_log_likelihood is not None

    @property
    def has_rows(self) -> bool:
        """True if it is known what a site's log-likelihood tells of single rows."""
        return not self.by_site or (self.host is not None and self.host.has_rows)


def no_rows(params: PyTree, batch: PyTree) -> Any:
    """Raise: the model has a log-likelihood of each site."""
    raise InputError(
        "the model has a log-likelihood of each site (site_log_likelihood) and none of rows: "
        "minibatches, surrogates of rows and scores of rows cannot use it. Use few_rounds, "
        "federated_hmc, decentralized_hmc, or another method with batch_size=None."
    ).at("site_log_likelihood")
