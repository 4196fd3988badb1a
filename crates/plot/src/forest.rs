//! Ratios, one below the other, with a rule at 1 and published values.

use crate::Mark;
use crate::canvas::{Anchor, Canvas, SIZE, WIDTH, nothing};
use crate::legend::{self, Sign};
use crate::number::ratio;
use crate::picture::Picture;
use crate::scale::{Kind, Scale};
use crate::text::{LINE, lines};

const LEFT: f64 = 14.0;
/// The room of names, and of numbers at the right.
const NAMES: f64 = 216.0;
const NUMBERS: f64 = 178.0;
const TEXT: f64 = SIZE * LINE;

/// A ratio.
#[derive(Clone, Debug)]
pub struct Row {
    /// What is compared, and where.
    pub name: String,
    /// Ours; `None`: not measured.
    pub ours: Option<Mark>,
    /// What the source prints.
    pub published: Option<f64>,
}

/// Ratios below each other.
#[derive(Clone, Debug)]
pub struct Forest {
    /// What the ratios are, for the axis.
    pub title: String,
    /// The ratios.
    pub rows: Vec<Row>,
}

impl Forest {
    /// The drawing.
    #[must_use]
    pub fn draw(&self) -> Picture {
        let usable = |value: f64| crate::drawable(value) && value > 0.0;
        let ours = |row: &Row| row.ours.filter(|mark| mark.values().all(usable));
        let published = |row: &Row| row.published.filter(|value| usable(*value));
        if self.rows.is_empty() {
            return nothing();
        }
        let mut canvas = Canvas::default();
        let mut signs = vec![(Sign::Marker(0), "ours, with its interval".to_owned())];
        if self.rows.iter().any(|row| published(row).is_some()) {
            signs.push((Sign::Published, "published".to_owned()));
        }
        let top = legend::draw(&mut canvas, 4.0, &signs) + 6.0;
        let marks = self.rows.iter().filter_map(ours).flat_map(|mark| mark.values());
        let values = marks.chain(self.rows.iter().filter_map(published)).chain([0.97, 1.03]);
        let (left, right) = (LEFT + NAMES + 14.0, WIDTH - NUMBERS - 14.0);
        let scale = Scale::new(&Kind::Log, values, (left, right), &[]);
        let names: Vec<Vec<String>> =
            self.rows.iter().map(|row| lines(&row.name, SIZE, NAMES, 3)).collect();
        // The numbers at the right stand in two lines where something is published.
        let least = |row: &Row| if published(row).is_some() { 2 } else { 1 };
        let height =
            |(row, name): (&Row, &Vec<String>)| TEXT * name.len().max(least(row)) as f64 + 8.0;
        let heights: Vec<f64> = self.rows.iter().zip(&names).map(height).collect();
        let foot = top + heights.iter().sum::<f64>();
        grid(&mut canvas, &scale, (top, foot));
        let mut above = top;
        for ((row, name), height) in self.rows.iter().zip(&names).zip(&heights) {
            let middle = above + height / 2.0;
            let first = middle - TEXT * name.len() as f64 / 2.0 + SIZE;
            canvas.lines((LEFT, first), Anchor::Start, name);
            let mut words = "not measured".to_owned();
            if let Some(mark) = ours(row) {
                if let Some((low, high)) = mark.ends {
                    canvas.bar(0, middle, scale.place(low), scale.place(high));
                }
                canvas.marker(0, (scale.place(mark.middle), middle));
                words = numbers(&mark);
            }
            let x = WIDTH - NUMBERS;
            if let Some(value) = published(row) {
                canvas.published((scale.place(value), middle));
                canvas.bold((x, middle - 3.0), Anchor::Start, &words);
                let beside = format!("published {}", ratio(value));
                canvas.faint((x, middle + TEXT - 3.0), Anchor::Start, &beside);
            } else {
                canvas.bold((x, middle + 4.0), Anchor::Start, &words);
            }
            above += height;
        }
        let title = lines(&self.title, SIZE, WIDTH - 2.0 * LEFT, 2);
        let middle = WIDTH / 2.0;
        canvas.lines((middle, foot + 36.0), Anchor::Middle, &title);
        canvas.finished(foot + 28.0 + TEXT * title.len() as f64)
    }
}

/// `1.31 (1.27 - 1.35)`.
pub(crate) fn numbers(mark: &Mark) -> String {
    let middle = ratio(mark.middle);
    mark.ends.map_or(middle.clone(), |(low, high)| {
        format!("{middle} ({} \u{2013} {})", ratio(low), ratio(high))
    })
}

fn grid(canvas: &mut Canvas, scale: &Scale, (top, foot): (f64, f64)) {
    let mut free = f64::NEG_INFINITY;
    for (value, label) in &scale.ticks {
        let at = scale.place(*value);
        canvas.line("grid", (at, top), (at, foot));
        let half = crate::text::width(label, SIZE) / 2.0;
        if at - half >= free {
            canvas.text((at, foot + 16.0), Anchor::Middle, label);
            free = at + half + 6.0;
        }
    }
    let one = scale.place(1.0);
    canvas.line("axis", (one, top - 4.0), (one, foot + 4.0));
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::{assert_readable, markers};

    #[test]
    fn rows_keep_their_distance_and_show_what_is_there() {
        let row = |name: &str, ours, published| Row { name: name.to_owned(), ours, published };
        let long = "IOPS with placement and busy polling over neither, four connections on one core, 5 target cores";
        let rows = vec![
            row(long, Some(Mark::between(1.27, 1.31, 1.35)), Some(1.36)),
            row("b", Some(Mark::alone(0.4)), None),
            row("c & <d>", None, Some(14.0)),
            row("e", Some(Mark::alone(f64::NAN)), Some(-1.0)),
        ];
        let picture = Forest { title: "ratio to the baseline".to_owned(), rows }.draw();
        assert_readable(&picture);
        let svg = picture.inline("x");
        assert_eq!(markers(&picture), 1 + 2);
        assert_eq!(svg.matches("class=\"mark\"").count(), 1 + 2);
        assert_eq!(svg.matches("not measured").count(), 2);
        assert!(svg.contains("1.31 (1.27 \u{2013} 1.35)") && svg.contains("published 14.00"));
        assert!(
            Forest { title: String::new(), rows: vec![] }
                .draw()
                .inline("")
                .contains("not measured")
        );
    }
}
