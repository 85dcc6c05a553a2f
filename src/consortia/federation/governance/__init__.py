"""A site's own rules: its policy, the one gate through which messages leave, and their ledger.

What is here runs at a site, before it touches data. It needs neither JAX nor Flower.
"""

from consortia.federation.governance.gate import Gate, open_gate, refusal
from consortia.federation.governance.ledger import Entry, Ledger, Verification, verify
from consortia.federation.governance.policy import Policy, load_policy
from consortia.federation.governance.terms import StudyTerms, terms_of

__all__ = [
    "Entry",
    "Gate",
    "Ledger",
    "Policy",
    "StudyTerms",
    "Verification",
    "load_policy",
    "open_gate",
    "refusal",
    "terms_of",
    "verify",
]
