"""The playground: your own runs in the browser, on this computer; every number is computed by the model, in Python."""
