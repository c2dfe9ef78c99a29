"""Traced values: symbolic numbers and tensors, what is known of their elements, and the guards on their sizes."""
