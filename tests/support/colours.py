"""How well one colour stands out from another, as WCAG counts it."""

from __future__ import annotations

import re


def luminance(colour: str) -> float:
    channels = [float(part) / 255 for part in re.findall(r"[\d.]+", colour)[:3]]
    linear = [c / 12.92 if c <= 0.03928 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def contrast(one: str, other: str) -> float:
    """From 1, not at all, to 21; 4.5 is enough for a text. Colours as a browser tells them: `rgb(1, 2, 3)`."""
    brighter, darker = sorted((luminance(one), luminance(other)), reverse=True)
    return (brighter + 0.05) / (darker + 0.05)
