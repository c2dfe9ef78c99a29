"""What the importers of both frameworks share: the plan of a model, what its inputs are, what its nodes say."""
