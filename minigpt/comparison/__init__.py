"""Which attention is better, and by how much? Variants on equal terms, confidence intervals, a table and a page."""
