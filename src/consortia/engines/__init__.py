"""Engines: they move the data of an algorithm, and know no algorithm."""
