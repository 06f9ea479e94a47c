"""The picture of the prefix tree for the page about the design, drawn from the spans of a small model."""

from __future__ import annotations

from adapter_probe.spans import contiguous_spans

N_LAYERS, WIDTH, HEIGHT, GAP, TOP, LEFT = 4, 96, 20, 60, 34, 100
ON, OFF, LINE = "#b2dfdb", "#ffab91", "#607d8b"


def prefix_tree(n_layers: int = N_LAYERS) -> str:
    """An SVG: one column of boxes per layer, one box per group of variants that agree so far."""
    rows = [(True,) * n_layers]
    rows += [
        tuple(not s.first <= layer <= s.last for layer in range(n_layers)) for s in contiguous_spans(n_layers)
    ]
    rows.sort(reverse=True)  # so that groups are neighbours and lines do not cross
    place = {row: TOP + 26 * i for i, row in enumerate(rows)}
    boxes, lines = [], []
    for depth in range(1, n_layers + 1):
        x = LEFT + (depth - 1) * (WIDTH + GAP)
        for prefix in dict.fromkeys(row[:depth] for row in rows):
            inside = [place[row] for row in rows if row[:depth] == prefix]
            y = sum(inside) / len(inside)
            boxes.append(_box(x, y, prefix[-1], len(inside)))
            above = [place[row] for row in rows if row[: depth - 1] == prefix[:-1]]
            start = (x - GAP, sum(above) / len(above) + HEIGHT / 2)
            bend = f"C {start[0] + GAP / 2} {start[1]} {x - GAP / 2} {y + HEIGHT / 2} {x} {y + HEIGHT / 2}"
            lines.append(f'<path d="M {start[0]} {start[1]} {bend}" fill="none" stroke="{LINE}"/>')
    width, height = LEFT + n_layers * (WIDTH + GAP) + 70, TOP + 26 * len(rows) + 8
    heads = [_text(LEFT + i * (WIDTH + GAP) + WIDTH / 2, 18, f"layer {i}", "middle") for i in range(n_layers)]
    ends = [_text(width - GAP - 66, place[row] + 15, _name(row), "start") for row in rows]
    root = sum(place.values()) / len(place) + HEIGHT / 2
    heads.append(_text(2, root + 4, "batch", "start"))
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" font-family="sans-serif" '
        f'font-size="12"><rect width="100%" height="100%" rx="4" fill="#fff"/>'
        + "".join([*lines, *boxes, *heads, *ends])
        + "</svg>\n"
    )


def _box(x: float, y: float, on: bool, variants: int) -> str:
    told = f"{variants} variants" if variants > 1 else "1 variant"
    return (
        f'<rect x="{x}" y="{y}" width="{WIDTH}" height="{HEIGHT}" rx="3" fill="{ON if on else OFF}"/>'
        + _text(x + WIDTH / 2, y + 14, told, "middle")
    )


def _text(x: float, y: float, text: str, anchor: str) -> str:
    return f'<text x="{x}" y="{y}" text-anchor="{anchor}" fill="#263238">{text}</text>'


def _name(row: tuple[bool, ...]) -> str:
    off = [layer for layer, on in enumerate(row) if not on]
    if not off:
        return "intact"
    return f"{off[0]} off" if len(off) == 1 else f"{off[0]} to {off[-1]} off"
