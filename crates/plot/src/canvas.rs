//! What drawings are made of: lines, markers, texts.

use std::fmt::Write as _;

use crate::Mark;
use crate::picture::{COLOURS, Picture};
use crate::text::{LINE, escaped};

/// The width of every picture; a page scales it.
pub(crate) const WIDTH: f64 = 720.0;
/// Size of ordinary text in pictures.
pub(crate) const SIZE: f64 = 12.0;
/// Half of the width of an interval's end, and of a marker.
const CAP: f64 = 4.0;
const MARKER: f64 = 4.5;

/// Where a text begins, or what it stands around.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Anchor {
    Start,
    Middle,
    End,
}

/// A drawing in the making.
#[derive(Default)]
pub(crate) struct Canvas {
    body: String,
}

// Writing into a String cannot fail: the results of `writeln!` are dropped.
impl Canvas {
    pub(crate) fn finished(self, height: f64) -> Picture {
        Picture { body: self.body, height: height.ceil() }
    }

    pub(crate) fn line(&mut self, class: &str, (x1, y1): (f64, f64), (x2, y2): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<line class=\"{class}\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    /// A line that is no part of the data: from a label to what it names.
    pub(crate) fn leader(&mut self, from: (f64, f64), to: (f64, f64)) {
        let ((x1, y1), (x2, y2)) = (from, to);
        let _ = writeln!(
            self.body,
            "<line class=\"axis\" stroke-width=\"0.7\" stroke-dasharray=\"1 2\" x1=\"{x1:.1}\" y1=\"{y1:.1}\" \
             x2=\"{x2:.1}\" y2=\"{y2:.1}\"/>"
        );
    }

    pub(crate) fn text(&mut self, at: (f64, f64), anchor: Anchor, words: &str) {
        self.styled("", at, anchor, SIZE, words);
    }

    pub(crate) fn faint(&mut self, at: (f64, f64), anchor: Anchor, words: &str) {
        self.styled(" class=\"faint\"", at, anchor, SIZE, words);
    }

    pub(crate) fn bold(&mut self, at: (f64, f64), anchor: Anchor, words: &str) {
        self.styled(" font-weight=\"bold\"", at, anchor, SIZE, words);
    }

    /// Lines of text, the first with its foot at `y`.
    pub(crate) fn lines(&mut self, (x, y): (f64, f64), anchor: Anchor, lines: &[String]) {
        for (at, line) in lines.iter().enumerate() {
            self.text((x, y + SIZE * LINE * at as f64), anchor, line);
        }
    }

    /// A text that goes up to the right, ending at a place.
    pub(crate) fn slanted(&mut self, (x, y): (f64, f64), degrees: f64, words: &str) {
        let turn = format!(" transform=\"rotate(-{degrees} {x:.1} {y:.1})\"");
        self.styled(&turn, (x, y), Anchor::End, SIZE, words);
    }

    fn styled(&mut self, extra: &str, (x, y): (f64, f64), anchor: Anchor, size: f64, words: &str) {
        let anchor = match anchor {
            Anchor::Start => "start",
            Anchor::Middle => "middle",
            Anchor::End => "end",
        };
        let _ = writeln!(
            self.body,
            "<text{extra} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
            escaped(words)
        );
    }

    /// A line through places, in the colour and with the dashes of a series.
    pub(crate) fn polyline(&mut self, series: usize, places: &[(f64, f64)]) {
        let colour = series % COLOURS;
        let dash = ["", "7 3", "2 3", "9 3 2 3"][series % 4];
        let dash =
            if dash.is_empty() { String::new() } else { format!(" stroke-dasharray=\"{dash}\"") };
        let _ = writeln!(
            self.body,
            "<polyline class=\"c{colour}\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"2\"{dash} points=\"{}\"/>",
            points(places)
        );
    }

    /// The area between a series' ends.
    pub(crate) fn area(&mut self, series: usize, places: &[(f64, f64)]) {
        let colour = series % COLOURS;
        let _ = writeln!(
            self.body,
            "<polygon class=\"c{colour}\" fill=\"currentColor\" fill-opacity=\"0.15\" points=\"{}\"/>",
            points(places)
        );
    }

    /// A vertical interval with its ends.
    pub(crate) fn whisker(&mut self, series: usize, x: f64, low: f64, high: f64) {
        let (colour, left, right) = (series % COLOURS, x - CAP, x + CAP);
        let _ = writeln!(
            self.body,
            "<path class=\"c{colour}\" stroke=\"currentColor\" stroke-width=\"1.3\" fill=\"none\" \
             d=\"M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}M{left:.1} {high:.1}H{right:.1}\"/>"
        );
    }

    /// A horizontal interval with its ends.
    pub(crate) fn bar(&mut self, series: usize, y: f64, low: f64, high: f64) {
        let (colour, top, foot) = (series % COLOURS, y - CAP, y + CAP);
        let _ = writeln!(
            self.body,
            "<path class=\"c{colour}\" stroke=\"currentColor\" stroke-width=\"1.6\" fill=\"none\" \
             d=\"M{low:.1} {y:.1}H{high:.1}M{low:.1} {top:.1}V{foot:.1}M{high:.1} {top:.1}V{foot:.1}\"/>"
        );
    }

    /// The marker of a series: its shape differs, too.
    pub(crate) fn marker(&mut self, series: usize, (x, y): (f64, f64)) {
        let (colour, m) = (series % COLOURS, MARKER);
        let wide = 2.0 * m;
        let shape = match series % 6 {
            0 => format!("<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{m}\""),
            1 => format!(
                "<rect x=\"{:.1}\" y=\"{:.1}\" width=\"{wide}\" height=\"{wide}\"",
                x - m,
                y - m
            ),
            2 => format!("<path d=\"M{x:.1} {:.1}l{m} {wide}h-{wide}z\"", y - m),
            3 => format!("<path d=\"M{x:.1} {:.1}l{m} {m}l-{m} {m}l-{m} -{m}z\"", y - m),
            4 => format!("<path d=\"M{x:.1} {:.1}l{m} -{wide}h-{wide}z\"", y + m),
            _ => format!("<path d=\"M{x:.1} {:.1}l{m} 3.4l-1.7 5.6h-5.6l-1.7 -5.6z\"", y - m),
        };
        let _ = writeln!(self.body, "{shape} class=\"c{colour}\" fill=\"currentColor\"/>");
    }

    /// The mark of a published value: a hollow diamond.
    pub(crate) fn published(&mut self, (x, y): (f64, f64)) {
        let _ = writeln!(
            self.body,
            "<path class=\"mark\" fill=\"none\" stroke=\"currentColor\" stroke-width=\"1.5\" d=\"M{x:.1} {:.1}l5.5 5.5l-5.5 5.5l-5.5 -5.5z\"/>",
            y - 5.5
        );
    }

    /// A filled rectangle; `paint` is its class, and `opacity` how much of it shows.
    pub(crate) fn rect(
        &mut self,
        paint: &str,
        opacity: f64,
        (x, y): (f64, f64),
        (w, h): (f64, f64),
    ) {
        let fill = if paint.starts_with('c') { " fill=\"currentColor\"" } else { "" };
        let _ = writeln!(
            self.body,
            "<rect class=\"{paint}\"{fill} fill-opacity=\"{opacity:.2}\" x=\"{x:.1}\" y=\"{y:.1}\" width=\"{:.1}\" height=\"{h:.1}\"/>",
            w.max(0.0)
        );
    }

    /// Slanted strokes over a rectangle.
    pub(crate) fn hatch(&mut self, (x, y): (f64, f64), (w, h): (f64, f64)) {
        let mut d = String::new();
        let mut along = 8.0;
        while along < w + h {
            let (x1, y1) = if along <= h { (x, y + along) } else { (x + along - h, y + h) };
            let (x2, y2) = if along <= w { (x + along, y) } else { (x + w, y + along - w) };
            let _ = write!(d, "M{x1:.1} {y1:.1}L{x2:.1} {y2:.1}");
            along += 8.0;
        }
        let _ = writeln!(self.body, "<path class=\"grid\" fill=\"none\" d=\"{d}\"/>");
    }

    /// A value and its interval, upright.
    pub(crate) fn upright(&mut self, series: usize, x: f64, mark: &Mark, y: impl Fn(f64) -> f64) {
        if let Some((low, high)) = mark.ends {
            self.whisker(series, x, y(low), y(high));
        }
        self.marker(series, (x, y(mark.middle)));
    }
}

fn points(places: &[(f64, f64)]) -> String {
    let pairs: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1},{y:.1}")).collect();
    pairs.join(" ")
}

/// A picture that says that there is nothing to show.
pub(crate) fn nothing() -> Picture {
    let mut canvas = Canvas::default();
    canvas.faint((WIDTH / 2.0, 40.0), Anchor::Middle, "not measured");
    canvas.finished(64.0)
}
