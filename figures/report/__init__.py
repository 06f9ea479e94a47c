"""The interactive report of studies, one self-contained page. Never imports torch.

Python writes everything: the project's figures as SVG with a shape over every span, all words, all numbers.
The script only hovers, filters and slides; without it the page still shows every figure and table.
"""
