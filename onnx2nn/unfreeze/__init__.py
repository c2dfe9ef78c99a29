"""Dimensions that a file fixes, made dynamic: a model and names come in, a module with dynamic dimensions goes out."""
