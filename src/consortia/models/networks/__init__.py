"""Models whose predictor is a network of Flax or Equinox."""
