"""Letters: files that carry the messages of `consortia.engines.flower` in place of a network."""
