"""The benchmark: minigpt beside nanoGPT's own code and transformers, on this machine, in one run.

hardware            what the machine is, and how fast it multiplies matrices
ledger              medians, spreads and ratios; tables to read, and the same numbers as JSON
checkout            a copy of nanoGPT and its data, so that nothing is written into the user's checkout
setting             what all suites share
worker              a process that runs one program and works only when it is told to
processes           starts workers and lets them take turns; times whole commands
ours                minigpt's own training, started as a user starts it
throughput, sampling, attention, startup, shared, time_to_loss, tricks      the suites, a file each
"""
