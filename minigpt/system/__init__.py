"""What the operating system gives: errors as one line, the terminal, signals, processes, files that are whole."""
