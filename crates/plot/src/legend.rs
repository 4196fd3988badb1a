//! The names of series above a plot, in as many rows as they need.

use crate::canvas::{Anchor, Canvas, SIZE, WIDTH};
use crate::text::{LINE, lines, width};

/// What stands before a name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Sign {
    /// The marker of a series.
    Marker(usize),
    /// The filled colour of a series.
    Fill(usize),
    /// The mark of published values.
    Published,
    /// The strokes of a hatched area.
    Hatch,
}

const SIGN: f64 = 16.0;
const GAP: f64 = 22.0;
const LEFT: f64 = 14.0;
const MOST: f64 = WIDTH - 2.0 * LEFT - SIGN;

/// Draws a legend from `top` down, and gives the foot of it.
pub(crate) fn draw(canvas: &mut Canvas, top: f64, entries: &[(Sign, String)]) -> f64 {
    let row = SIZE * LINE + 3.0;
    let (mut x, mut y) = (LEFT, top);
    for (sign, name) in entries {
        let name = lines(name, SIZE, MOST, 1).concat();
        let wide = SIGN + width(&name, SIZE);
        if x > LEFT && x + wide > WIDTH - LEFT {
            (x, y) = (LEFT, y + row);
        }
        let middle = (x + 5.0, y + row / 2.0);
        match sign {
            Sign::Marker(series) => canvas.marker(*series, middle),
            Sign::Fill(series) => {
                let paint = format!("c{}", series % crate::picture::COLOURS);
                canvas.rect(&paint, 0.85, (x, middle.1 - 5.0), (10.0, 10.0));
            }
            Sign::Published => canvas.published(middle),
            Sign::Hatch => canvas.hatch((x, middle.1 - 6.0), (12.0, 12.0)),
        }
        canvas.text((x + SIGN, middle.1 + 4.0), Anchor::Start, &name);
        x += wide + GAP;
    }
    if entries.is_empty() { top } else { y + row + 4.0 }
}
