"""Softmax attention to some of the past: a window, a stride, a chunk, or chosen keys. One kind in each file."""
