"""Softmax attention to some of the past: a window, a stride, a chunk, or keys that are chosen. One kind a file."""
