"""The part averages."""
