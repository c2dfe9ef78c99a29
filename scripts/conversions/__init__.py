"""Real models converted and measured: the rows of convert_models.md, one mechanism for all sources and directions."""
