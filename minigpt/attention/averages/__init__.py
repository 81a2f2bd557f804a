"""The mean of the past, three ways: a loop, a triangular matrix, a softmax of masked zeros. All three are equal."""
