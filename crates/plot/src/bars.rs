//! Parts on top of each other: a bar for each row, from 0, with the interval of its whole.

use crate::Mark;
use crate::canvas::{Anchor, Canvas, SIZE, WIDTH, nothing};
use crate::legend::{self, Sign};
use crate::number::plain;
use crate::picture::{COLOURS, Picture};
use crate::scale::{Kind, Scale};
use crate::text::{LINE, lines, width};

const LEFT: f64 = 14.0;
const NAMES: f64 = 196.0;
const NUMBERS: f64 = 96.0;
const TEXT: f64 = SIZE * LINE;
const THICK: f64 = 18.0;

/// A bar.
#[derive(Clone, Debug)]
pub struct Bar {
    /// What it belongs to.
    pub name: String,
    /// Its parts, from 0 up; `None`: not measured.
    pub parts: Vec<Option<Mark>>,
}

/// Bars of parts.
#[derive(Clone, Debug)]
pub struct Bars {
    /// What is measured, with its unit.
    pub title: String,
    /// The names of the parts.
    pub parts: Vec<String>,
    /// The bars.
    pub bars: Vec<Bar>,
}

impl Bars {
    /// The drawing.
    #[must_use]
    pub fn draw(&self) -> Picture {
        if self.bars.iter().all(|bar| bar.whole().is_none()) {
            return nothing();
        }
        let mut canvas = Canvas::default();
        let signs: Vec<(Sign, String)> = self
            .parts
            .iter()
            .enumerate()
            .map(|(at, name)| (Sign::Fill(at), name.clone()))
            .collect();
        let top = legend::draw(&mut canvas, 4.0, &signs) + 6.0;
        let values = self.bars.iter().filter_map(Bar::whole);
        let (left, right) = (LEFT + NAMES + 10.0, WIDTH - NUMBERS);
        let scale = Scale::new(&Kind::Linear, values, (left, right), &[]);
        let names: Vec<Vec<String>> =
            self.bars.iter().map(|bar| lines(&bar.name, SIZE, NAMES, 2)).collect();
        let heights: Vec<f64> =
            names.iter().map(|name| (TEXT * name.len() as f64).max(THICK) + 10.0).collect();
        let foot = top + heights.iter().sum::<f64>();
        let mut free = f64::NEG_INFINITY;
        for (value, label) in &scale.ticks {
            let at = scale.place(*value);
            canvas.line(if *value == 0.0 { "axis" } else { "grid" }, (at, top), (at, foot));
            let half = width(label, SIZE) / 2.0;
            if at - half >= free {
                canvas.text((at, foot + 16.0), Anchor::Middle, label);
                free = at + half + 6.0;
            }
        }
        let mut above = top;
        for ((bar, name), height) in self.bars.iter().zip(&names).zip(&heights) {
            let middle = above + height / 2.0;
            let first = middle - TEXT * name.len() as f64 / 2.0 + SIZE - 1.0;
            canvas.lines((LEFT, first), Anchor::Start, name);
            bar.draw(&mut canvas, &scale, middle);
            above += height;
        }
        let title = lines(&self.title, SIZE, WIDTH - 2.0 * LEFT, 2);
        canvas.lines((left.midpoint(right), foot + 36.0), Anchor::Middle, &title);
        canvas.finished(foot + 28.0 + TEXT * title.len() as f64)
    }
}

impl Bar {
    /// The usable parts, by their numbers. A part below 0 cannot be drawn on top of others.
    fn usable(&self) -> impl Iterator<Item = (usize, Mark)> + '_ {
        let drawable = |mark: &Mark| mark.is_finite() && mark.middle >= 0.0;
        let part = move |(at, part): (usize, &Option<Mark>)| Some((at, part.filter(drawable)?));
        self.parts.iter().enumerate().filter_map(part)
    }

    /// The farthest place that the bar needs.
    fn whole(&self) -> Option<f64> {
        let mut sum = 0.0;
        let mut most: Option<f64> = None;
        for (_, mark) in self.usable() {
            let high = sum + mark.ends.map_or(mark.middle, |(_, high)| high.max(mark.middle));
            sum += mark.middle;
            most = Some(most.unwrap_or(0.0).max(high));
        }
        most
    }

    fn draw(&self, canvas: &mut Canvas, scale: &Scale, middle: f64) {
        let mut sum = 0.0;
        let parts: Vec<(usize, Mark)> = self.usable().collect();
        for (at, mark) in &parts {
            let (from, to) = (scale.place(sum), scale.place(sum + mark.middle));
            let paint = format!("c{}", at % COLOURS);
            canvas.rect(&paint, 0.85, (from, middle - THICK / 2.0), (to - from, THICK));
            sum += mark.middle;
        }
        let mut far = scale.place(sum);
        if let Some((_, mark)) = parts.last()
            && let Some((low, high)) = mark.ends
        {
            let below = sum - mark.middle;
            let ends = (scale.place((below + low).max(0.0)), scale.place(below + high));
            canvas.line("axis", (ends.0, middle), (ends.1, middle));
            for end in [ends.0, ends.1] {
                canvas.line("axis", (end, middle - 5.0), (end, middle + 5.0));
            }
            far = far.max(ends.1);
        }
        let words = if parts.is_empty() { "not measured".to_owned() } else { plain(sum) };
        canvas.bold((far + 8.0, middle + 4.0), Anchor::Start, &words);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::assert_readable;

    #[test]
    fn parts_stand_end_to_end() {
        let bar = |name: &str, parts: Vec<Option<Mark>>| Bar { name: name.to_owned(), parts };
        let bars = Bars {
            title: "Mean latency (\u{b5}s)".to_owned(),
            parts: vec![
                "local".to_owned(),
                "added by the network and the target, with a long name".to_owned(),
            ],
            bars: vec![
                bar(
                    "Raceline, polling <read>",
                    vec![Some(Mark::alone(10.0)), Some(Mark::between(19.0, 20.0, 22.0))],
                ),
                bar("not there", vec![None, None]),
                bar("bad", vec![Some(Mark::alone(f64::NAN)), Some(Mark::alone(-4.0))]),
                bar(
                    "a name that is so long that it takes more than one line",
                    vec![None, Some(Mark::alone(35.0))],
                ),
            ],
        };
        let picture = bars.draw();
        assert_readable(&picture);
        let svg = picture.inline("");
        let document = roxmltree::Document::parse(&svg).unwrap();
        let number = |node: &roxmltree::Node, name: &str| -> f64 {
            node.attribute(name).and_then(|text| text.parse().ok()).unwrap()
        };
        let rects: Vec<(f64, f64)> = document
            .descendants()
            .filter(|node| node.attribute("height") == Some("18.0"))
            .map(|node| (number(&node, "x"), number(&node, "width")))
            .collect();
        assert_eq!(rects.len(), 3);
        assert!((rects[0].0 + rects[0].1 - rects[1].0).abs() < 0.2);
        assert!((rects[1].1 / rects[0].1 - 2.0).abs() < 0.02);
        assert_eq!(svg.matches("not measured").count(), 2);
    }
}
