"""The interactive report, one self-contained page: Python collects the numbers, the browser draws them.

The page uses inline SVG and plain JavaScript instead of a plotting library: it stays below 100 kB, its cells
and points are accessible by keyboard and screen reader, and it cannot load anything. Never imports torch.
"""
