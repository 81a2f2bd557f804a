"""Programs that somebody else wrote: found in their files, built, called, read, measured, and judged."""
