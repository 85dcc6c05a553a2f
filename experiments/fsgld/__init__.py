"""The experiments of El Mekkaoui et al. (2021), section 5; see README.md here."""
