"""A methods paragraph that a paper can take over, with its references."""

from __future__ import annotations

import math
from collections.abc import Mapping

from consortia.diagnostics.prediction import in_sd
from consortia.models.regression.question import RESPONSE
from consortia.report.effects import LEVEL, SURE, Response, estimates, response_of
from consortia.report.items import POLICIES, quadrature_in, weighting
from consortia.report.run_report import RunReport

SOFTWARE = "The consortia developers. consortia {}: federated Bayesian sampling in JAX. Software."
RHAT = (
    "Vehtari A, Gelman A, Simpson D, Carpenter B, Bürkner P-C. Rank-normalization, folding, and "
    "localization: an improved R-hat for assessing convergence of MCMC. Bayesian Analysis 2021; "
    "16(2): 667–718."
)
ARVIZ = (
    "Kumar R, Carroll C, Hartikainen A, Martin O. ArviZ: a unified library for exploratory "
    "analysis of Bayesian models in Python. Journal of Open Source Software 2019; 4(33): 1143."
)
WORKS = {
    "few_rounds": "Tierney L. Markov chains for exploring posterior distributions. The Annals of "
    "Statistics 1994; 22(4): 1701–1728.",
    "federated_hmc": "Duane S, Kennedy AD, Pendleton BJ, Roweth D. Hybrid Monte Carlo. Physics "
    "Letters B 1987; 195(2): 216–222.",
}
"""Work that an algorithm goes back to, by its name."""

COX = (
    "Cox DR. Regression models and life-tables. Journal of the Royal Statistical Society B 1972; "
    "34(2): 187–220."
)
EFRON = (
    "Efron B. The efficiency of Cox's likelihood function for censored data. Journal of the "
    "American Statistical Association 1977; 72(359): 557–565."
)
BRESLOW = "Breslow N. Covariance analysis of censored survival data. Biometrics 1974; 30(1): 89–99."
BASELINES = {
    "cox": "Each site has its own baseline hazard, which the partial likelihood does not specify "
    "[5]; tied times are treated as {} does [6]. ",
    "weibull": "The baseline hazard is that of a Weibull distribution. ",
    "piecewise_exponential": "The baseline hazard is piecewise constant, with the same "
    "cut points at all sites. ",
}
"""Sentences on the baseline hazard and on ties, by family."""


def paragraph(report: RunReport) -> str:
    """Describe the analysis in the past tense, with numbers of the references in brackets."""
    record, response = report.record, response_of(report)
    sites, rows = record.get("sites") or (), record.get("site_rows") or ()
    where = f"{sum(rows):,} rows at {len(sites)} sites" if rows else "the rows of all sites"
    described = report.fitted_settings.get("participants", {}).get("sites", {})
    persons = [site.get("persons") for site in described.values()]
    if persons and None not in persons:
        where = f"{sum(persons):,} persons in {where}"
    regression = report.settings.get("regression")
    if isinstance(regression, dict) and response is not None:
        text = (
            f"We fitted a Bayesian {response.regression} (family {response.family}) with the "
            f"formula {regression.get('formula')} to {where}"
        )
    elif response is not None:
        text = f"We fitted a Bayesian {response.regression} of {response.name} to {where}"
    else:
        text = f"We sampled the posterior of {report.title!r} from {where}"
    version = record.get("versions", {}).get("consortia", "")
    text += f"; rows stayed at their sites (consortia {version} [1]). "
    bias = str(record.get("bias", "")).partition(",")[0].partition(";")[0]
    bias = "" if quadrature_in(report) is not None else bias
    text += (
        f"The algorithm was {record.get('algorithm', 'not recorded')} [2], which samples "
        f"{record.get('samples', 'a law that is not recorded')}"
    )
    text += ", without bias. " if bias == "none" else ". "
    chains = "one chain" if report.chains == 1 else f"{report.chains} chains"
    text += (
        f"We kept {report.draws:,} draws of {'it' if report.chains == 1 else 'each'} of {chains}"
    )
    if record.get("warmup"):
        text += f", after {record['warmup']:,} rounds of warm-up"
    worst = report.worst
    if not math.isnan(worst.r_hat) and not math.isnan(worst.ess):
        text += (
            f"; the largest R-hat was {worst.r_hat:.3f} and the smallest effective sample size "
            f"{worst.ess:,.0f} [3, 4]"
        )
    text += ". "
    text += _of_rows(report, response)
    if response is not None and response.priors:
        priors = "; ".join(f"{name} {words}" for name, words in response.priors.items())
        text += f"Priors were, on the scale of the link: {priors}. "
    if response is not None:
        text += "".join(f"{note[0].upper()}{note[1:]}. " for note in response.notes)
    effects = estimates(report)
    if effects is not None:
        text += (
            f"Effects are {effects.effect}s, given as posterior medians with central "
            f"{100 * LEVEL:.0f} % intervals; a direction is stated if its posterior probability "
            f"is at least {SURE:g}."
        )
    return text.strip()


def _of_rows(report: RunReport, response: Response | None) -> str:
    """Return reference levels, denominators, missing values and the seed, as far as recorded."""
    fitted, text = report.fitted_settings, ""
    used = {} if response is None else response.references
    named = [f"{level} of {name}" for name, level in used.items() if name != RESPONSE]
    if named:
        text += f"Levels are compared with {', '.join(named)}. "
    if "keep" in fitted:
        text += f"Only rows with {fitted['keep']} were analysed. "
    columns = fitted.get("beside", {})
    trial = weighting(report)
    for name, column in columns.items() if isinstance(columns, Mapping) else ():
        if name == "weights" and trial:
            text += f"Rows have {trial}. "
            continue
        text += (
            f"Rows are weighted by {column}. "
            if name == "weights" and "weights_are" not in fitted
            else f"The {name} {'is' if name == 'exposure' else 'are'} the column {column}. "
        )
    if response is not None:
        ties = str(fitted.get("ties", "efron")).capitalize()
        text += BASELINES.get(response.family, "").format(ties)
        if response.name.startswith("Surv(") and len(response.name.split(",")) > 2:
            whose = f" of the person in column {fitted['persons']}" if "persons" in fitted else ""
            text += f"A row is an interval{whose} from a start to a stop, at risk in between. "
    if "cluster" in fitted:
        text += f"Intervals count each {fitted['cluster']}, not each row, as independent. "
    policy = str(fitted.get("missing", ""))
    if policy in POLICIES:
        sentence = POLICIES[policy]
        text += f"{sentence[0].upper()}{sentence[1:]}. "
    kept = quadrature_in(report)
    if kept is not None:
        text += f"Group levels were integrated out by quadrature with {kept['nodes']} nodes, "
        text += (
            f"which moves means by at most {in_sd(kept['shift'])}. "
            if "shift" in kept
            else "whose error was not measured. "
        )
    if "seed" in report.record:
        text += f"The seed was {report.record['seed']}. "
    return text


def references(report: RunReport) -> list[str]:
    """Return the references of the paragraph, in the order of their numbers."""
    version = report.record.get("versions", {}).get("consortia", "")
    source = "" if report.algorithm is None else str(report.algorithm.claims.source)
    source = source or f"Reference of {report.record.get('algorithm')}: see `consortia algorithms`."
    source = WORKS.get(str(report.record.get("algorithm")), source)
    response = response_of(report)
    ties = BRESLOW if report.fitted_settings.get("ties") == "breslow" else EFRON
    of_family = [COX, ties] if response is not None and response.family == "cox" else []
    return [SOFTWARE.format(version), source, RHAT, ARVIZ, *of_family]
