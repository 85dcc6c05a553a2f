"""The experiments of the paper on stale gradients."""
