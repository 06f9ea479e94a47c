"""One self-contained page to explore results in: Python gathers the numbers, the browser draws them.

The page is written by hand, inline SVG and plain JavaScript: it stays under 100 kB where a plotting library's
export takes megabytes, its cells and points can be reached by keyboard and read out, and nothing in it can
load anything. Never imports torch.
"""
