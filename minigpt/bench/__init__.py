"""The benchmark: minigpt beside nanoGPT's own code and transformers, on this machine, in one run.

ledger              medians, spreads and ratios; a table to read, the same numbers as JSON
yardstick           the machine in words, and how fast it multiplies matrices
driver              a rival in a process of its own, which works when it is told to
worker              the other side of it: start, interleave, stop
checkout            a copy of nanoGPT, with its data, that may be written into
time_to_loss, throughput, sampling, attention, startup, shared      the suites, a file each
"""
