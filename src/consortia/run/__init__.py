"""One run: checks, plan, the loop over chunks, the record."""
