"""Study files: what they say, and what is built from them."""
