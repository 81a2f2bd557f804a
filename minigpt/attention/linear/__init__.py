"""The past as a state of fixed size: attention without a softmax, as a matrix, as chunks and as a recurrence."""
