"""One file a figure: draw(frame, ax) -> Axes. Never imports torch."""
