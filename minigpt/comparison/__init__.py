"""Which attention, and what does it buy? Variants on equal terms, intervals, a table and a page."""
