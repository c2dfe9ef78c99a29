"""Torch's tools on originals and on their imports: what a tool shows of the one it has to show of the other."""
