"""Shows a trained model in a browser: one HTML file, made from the model, a tokenizer and a text."""
