"""Regressions by a formula: from tables at the sites to a model, and back to odds ratios."""
