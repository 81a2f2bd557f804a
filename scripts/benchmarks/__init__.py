"""The benchmark: minigpt beside nanoGPT's own code and transformers, on this machine, in one run.

It is no part of the package. `scripts/benchmark.py` is its command, and a file imports only files above it:

machine             what the machine is, and how fast it multiplies matrices
report              medians, spreads and ratios; tables to read, and the same numbers as JSON
nanogpt             a copy of nanoGPT and its data, so that nothing is written into the user's checkout
setting             what all suites share
processes           starts workers and lets them take turns; times whole commands
trainings           minigpt's own training, started as a user starts it
worker              a process that runs one program and works only when it is told to
throughput, sampling, attention, startup, shared, time_to_loss, tricks      the suites, a file each
"""
