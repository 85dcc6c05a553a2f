"""The experiments of El Mekkaoui, Mesquita, Blomstedt and Kaski (2021), section 5."""
