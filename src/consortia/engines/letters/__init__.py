"""Letters: files that carry the messages of `consortia.engines.messages` in place of a network."""
