"""A policy to begin with: it permits one study as it is, and lists what can be added."""

from __future__ import annotations

from consortia.federation.governance.terms import KINDS, StudyTerms

MINIMUM_ROWS = 50
"""Of a proposal. A statistic of fewer rows says much of each."""

APPS = """\
# The Flower app that brings the code; others are not unpacked by `consortia flower node`.
apps = ["{app}"]

"""


def proposed(terms: StudyTerms, app: str | None = None, rows: int = MINIMUM_ROWS) -> str:
    """Return the text of a ``site-policy.toml`` that permits a study and nothing else.

    Args:
        terms: what the study requires.
        app: hash of the Flower app that runs it.
        rows: fewest rows of the site.
    """
    apps = "" if app is None else APPS.format(app=app)
    kinds = "\n".join(f"#   {kind}: {KINDS[kind]}" for kind in terms.messages)
    names = ", ".join(f'"{kind}"' for kind in terms.messages)
    return f"""\
# What this site permits. It is checked before data are read; what is not permitted is refused.

# The study, with all that decides what is computed, and the code of its model.
studies = ["{terms.study}"]
models = ["{terms.model}"]
algorithms = ["{terms.algorithm}"]

{apps}# Most rounds of a run, the warm-up included, and fewest rows of the site.
maximum_rounds = {terms.rounds}
minimum_rows = {rows}

# Kinds of messages that may leave:
{kinds}
messages = [{names}]

# Further limits:
# maximum_runs = 3           # runs in the ledger
# maximum_messages = 10_000  # of a run, repeated ones included
# maximum_bytes = 100_000    # of a message
# maximum_norm = 1e6         # of an array of a message
# minimum_batch = 32         # rows of a minibatch
# [noise]                    # least gradient_noise, temperature, private_momentum
"""
