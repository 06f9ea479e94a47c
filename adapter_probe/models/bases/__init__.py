"""Pretrained base models: the table of families, their parts, attention and heads."""
