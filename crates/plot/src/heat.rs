//! Ratios by two variables: a table whose cells are coloured by how far they are from 1.

use crate::Mark;
use crate::canvas::{Anchor, Canvas, SIZE, WIDTH, nothing};
use crate::legend::{self, Sign};
use crate::number::ratio;
use crate::picture::Picture;
use crate::text::{LINE, lines, width};

const LEFT: f64 = 14.0;
const NAMES: f64 = 150.0;
/// The narrowest and the widest cell.
const CELL: (f64, f64) = (62.0, 136.0);
const TEXT: f64 = SIZE * LINE;
const HEIGHT: f64 = 3.0 * TEXT + 12.0;
/// The ratio, or one over it, with the full colour.
const FULL: f64 = 2.0;

/// A ratio.
#[derive(Clone, Debug, Default)]
pub struct Cell {
    /// Ours; `None`: not measured.
    pub ours: Option<Mark>,
    /// What the source prints.
    pub published: Option<f64>,
    /// The cell is hatched: it does not show what it should.
    pub hatched: bool,
}

/// Ratios by two variables.
#[derive(Clone, Debug)]
pub struct Heat {
    /// Of the rows.
    pub rows: Vec<String>,
    /// Of the columns.
    pub columns: Vec<String>,
    /// What varies from column to column.
    pub title: String,
    /// What hatched cells mean.
    pub hatched: String,
    /// A row of cells for each of `rows`.
    pub cells: Vec<Vec<Cell>>,
}

impl Heat {
    /// The drawing. Columns that do not fit beside each other stand below.
    #[must_use]
    pub fn draw(&self) -> Picture {
        if self.rows.is_empty() || self.columns.is_empty() {
            return nothing();
        }
        let mut canvas = Canvas::default();
        let mut signs = Vec::new();
        if self.cells.iter().flatten().any(|cell| cell.hatched) {
            signs.push((Sign::Hatch, self.hatched.clone()));
        }
        let mut top = legend::draw(&mut canvas, 4.0, &signs);
        let title = lines(&self.title, SIZE, WIDTH - 2.0 * LEFT, 2);
        canvas.lines((LEFT, top + SIZE + 2.0), Anchor::Start, &title);
        top += TEXT * title.len() as f64 + 6.0;
        let room = WIDTH - 2.0 * LEFT - NAMES;
        let most = (room / CELL.0).floor();
        let count = self.columns.len() as f64;
        let wide = (room / count.min(most)).min(CELL.1);
        let mut from = 0;
        while from < self.columns.len() {
            let fits = self.columns.iter().skip(from).scan(0.0, |used: &mut f64, _| {
                *used += wide;
                (*used <= room + 0.5).then_some(())
            });
            let to = from + fits.count().max(1);
            top = self.block(&mut canvas, top, wide, from..to.min(self.columns.len()));
            from = to;
        }
        canvas.finished(top)
    }

    /// Some columns of all rows; gives the foot of them.
    fn block(
        &self,
        canvas: &mut Canvas,
        top: f64,
        wide: f64,
        columns: std::ops::Range<usize>,
    ) -> f64 {
        let heads: Vec<Vec<String>> = self.columns[columns.clone()]
            .iter()
            .map(|name| lines(name, SIZE, wide - 6.0, 3))
            .collect();
        let rows = heads.iter().map(Vec::len).max().unwrap_or(1);
        let left = LEFT + NAMES;
        for (at, head) in heads.iter().enumerate() {
            canvas.lines((left + wide * (at as f64 + 0.5), top + SIZE), Anchor::Middle, head);
        }
        let mut y = top + TEXT * rows as f64 + 4.0;
        for (name, cells) in self.rows.iter().zip(&self.cells) {
            let name = lines(name, SIZE, NAMES - 10.0, 3);
            let first = y + HEIGHT / 2.0 - TEXT * name.len() as f64 / 2.0 + SIZE - 1.0;
            canvas.lines((LEFT, first), Anchor::Start, &name);
            for (at, cell) in cells.iter().skip(columns.start).take(columns.len()).enumerate() {
                cell.draw(canvas, (left + wide * at as f64, y), wide);
            }
            y += HEIGHT;
        }
        y + 12.0
    }
}

impl Cell {
    fn draw(&self, canvas: &mut Canvas, (x, y): (f64, f64), wide: f64) {
        let (at, size) = ((x + 1.0, y + 1.0), (wide - 2.0, HEIGHT - 2.0));
        let usable = |mark: &Mark| mark.values().all(|value| crate::drawable(value) && value > 0.0);
        let ours = self.ours.filter(usable);
        let middle = x + wide / 2.0;
        if let Some(mark) = ours {
            let far = (mark.middle.ln() / FULL.ln()).clamp(-1.0, 1.0);
            canvas.rect(if far >= 0.0 { "up" } else { "down" }, 0.06 + 0.64 * far.abs(), at, size);
        } else {
            canvas.rect("up", 0.0, at, size);
        }
        if self.hatched {
            canvas.hatch(at, size);
        }
        let whole = |mark: Mark| ratio(mark.middle);
        let words = ours.map_or("\u{2013}".to_owned(), whole);
        canvas.bold((middle, y + 6.0 + SIZE), Anchor::Middle, &words);
        if let Some((low, high)) = ours.and_then(|mark| mark.ends) {
            let ends = format!("{} \u{2013} {}", ratio(low), ratio(high));
            if width(&ends, SIZE) <= wide {
                canvas.text((middle, y + 6.0 + SIZE + TEXT), Anchor::Middle, &ends);
            }
        }
        if let Some(value) = self.published.filter(|value| value.is_finite()) {
            let long = format!("published {}", ratio(value));
            let short = format!("publ. {}", ratio(value));
            let words = if width(&long, SIZE) <= wide { long } else { short };
            if width(&words, SIZE) <= wide {
                canvas.faint((middle, y + 6.0 + SIZE + 2.0 * TEXT), Anchor::Middle, &words);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::assert_readable;

    #[test]
    fn any_size_is_readable_and_complete() {
        for (rows, columns) in [(1, 1), (3, 4), (3, 9), (2, 21)] {
            let cell = |r: usize, c: usize| Cell {
                ours: (r + c != 1).then(|| {
                    let middle = 0.5 + 0.17 * (r + c) as f64;
                    Mark::between(middle * 0.95, middle, middle * 1.04)
                }),
                published: c.is_multiple_of(2).then_some(1.71),
                hatched: r == 0 && c == 0,
            };
            let heat = Heat {
                rows: (0..rows).map(|r| format!("{} KiB sequential read, long", 4 << r)).collect(),
                columns: (0..columns).map(|c| format!("{} in flight", 128 << c.min(8))).collect(),
                title: "Commands in flight at the target".to_owned(),
                hatched: "the target was not the bottleneck".to_owned(),
                cells: (0..rows).map(|r| (0..columns).map(|c| cell(r, c)).collect()).collect(),
            };
            let picture = heat.draw();
            assert_readable(&picture);
            let svg = picture.inline("");
            assert_eq!(svg.matches("<rect").count(), rows * columns);
            assert!(svg.contains("not the bottleneck"));
        }
    }

    #[test]
    fn bad_values_are_not_measured() {
        let cell =
            Cell { ours: Some(Mark::alone(f64::NAN)), published: Some(f64::NAN), hatched: false };
        let heat = Heat {
            rows: vec!["a".to_owned()],
            columns: vec!["b".to_owned()],
            title: String::new(),
            hatched: String::new(),
            cells: vec![vec![cell]],
        };
        assert!(heat.draw().inline("").contains(">\u{2013}<"));
    }
}
