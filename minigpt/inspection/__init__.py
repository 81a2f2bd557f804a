"""A look inside a model: every intermediate of a pass, the causality check, what it costs, pictures."""
