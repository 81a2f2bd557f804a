"""What is checked before the first step: the laws of attention, and the whole model as it will be trained."""
