"""Architectures that neither `paddle.vision` nor PaddleClas holds."""
