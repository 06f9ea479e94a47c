"""Figures, one module each: draw(frame, ax) -> Axes. Never imports torch."""
