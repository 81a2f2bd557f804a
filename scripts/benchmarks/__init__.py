"""The benchmark: minigpt beside nanoGPT's own code and transformers, on this machine, in one run.

It is no part of the package; `scripts/benchmark.py` is its command. A file imports only files above it:

machine         what the machine is, how fast it multiplies matrices, and a clock
trainings       whole trainings as users start them, minigpt's and nanoGPT's
report          medians, spreads and ratios; tables to read, and the same numbers as JSON
processes       starts workers and lets them take turns; times whole commands
worker          a process that runs one program and works only when it is told to
throughput, commands, attention, tricks, shared      the suites
"""
