"""The part languages."""
