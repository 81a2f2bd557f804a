"""The pages of the documentation site, for scripts/docs.py: files, kinds, options, formulas, lessons, as Markdown."""
