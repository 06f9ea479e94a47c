"""The pretrained models under the adapters: the table of families, their parts, attention and heads."""
