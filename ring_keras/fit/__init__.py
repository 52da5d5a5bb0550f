"""What makes a `fit` one of several ranks: the optimizer, which brings the rest."""
