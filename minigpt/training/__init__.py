"""A config becomes a run on disk: settings and memory, many processes, the loop, the run folder.

In: a config. Out: a run folder that resumes bit for bit and can be opened as a `Run`. Imports: the parts up to seeing.
"""
