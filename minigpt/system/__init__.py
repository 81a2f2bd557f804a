"""Errors, the terminal, signals, processes, and files that are written whole or not at all."""
