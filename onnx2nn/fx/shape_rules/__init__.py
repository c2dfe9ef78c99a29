"""Shape rules: the symbolic shapes of the results of torch's functions."""
