"""The lessons: predict, then see. Each is a file that runs as a script and opens as a notebook."""
