"""A trained model looked at in a browser: one HTML file, made from the model, a tokenizer and a text."""
