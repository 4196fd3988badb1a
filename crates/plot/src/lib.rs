//! Plots of measurements as SVG, for reports: legible on light and dark pages and on paper.
//!
//! Each plot is plain data with a `draw` method that gives a [`Picture`]. A picture goes into an HTML page
//! ([`Picture::inline`], with [`STYLE`] once in the page) or into a file of its own ([`Picture::file`]).
//! Every text is escaped. Texts keep their distance: labels are measured by [`text::width`], wrapped and
//! moved apart.

#![forbid(unsafe_code)]

mod bars;
mod canvas;
mod chart;
mod forest;
mod heat;
mod legend;
pub mod number;
mod picture;
mod scale;
pub mod text;

#[cfg(test)]
mod overlap;

pub use bars::{Bar, Bars};
pub use chart::{Axis, Chart, Line, Way};
pub use forest::{Forest, Row};
pub use heat::{Cell, Heat};
pub use picture::{Picture, STYLE};
pub use scale::Kind;

/// Numbers beyond this size are no measurements, and their sums may be no numbers.
const SIZE_MAX: f64 = 1e100;

/// Whether a number can be drawn.
fn drawable(value: f64) -> bool {
    value.abs() <= SIZE_MAX
}

/// A value, and the ends of its interval or range if there are any.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Mark {
    /// The value itself, e.g. a median.
    pub middle: f64,
    /// Lower and upper end.
    pub ends: Option<(f64, f64)>,
}

impl Mark {
    /// A value without ends.
    #[must_use]
    pub const fn alone(middle: f64) -> Self {
        Self { middle, ends: None }
    }

    /// A value with its ends.
    #[must_use]
    pub const fn between(low: f64, middle: f64, high: f64) -> Self {
        Self { middle, ends: Some((low, high)) }
    }

    /// All numbers of the mark.
    fn values(&self) -> impl Iterator<Item = f64> + use<> {
        let ends = self.ends.map(|(low, high)| [low, high]).into_iter().flatten();
        std::iter::once(self.middle).chain(ends)
    }

    /// Whether every number can be drawn.
    fn is_finite(&self) -> bool {
        self.values().all(drawable)
    }
}
