//! Values over an axis: lines with intervals, dots with intervals, curves.

use crate::Mark;
use crate::canvas::{Anchor, Canvas, SIZE, WIDTH, nothing};
use crate::legend::{self, Sign};
use crate::picture::Picture;
use crate::scale::{Kind, Scale};
use crate::text::{LINE, lines, width};

/// The height of the plot itself.
const HEIGHT: f64 = 270.0;
/// The room right of the plot when names stand in a legend, and the most when they stand beside their lines.
const RIGHT: f64 = 24.0;
const NAMES: f64 = 190.0;
/// How far the markers of two series at one place are apart.
const ASIDE: f64 = 6.0;
/// The height of a row of text.
const ROW: f64 = SIZE * LINE;
/// Series whose names stand beside their lines, at most.
const DIRECT_MAX: usize = 8;

/// An axis.
#[derive(Clone, Debug)]
pub struct Axis {
    /// What it shows, with its unit.
    pub title: String,
    /// How values become places.
    pub kind: Kind,
    /// Its ticks; without any, they are chosen.
    pub ticks: Vec<(f64, String)>,
}

/// How a chart shows its values.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// Connected, each with its interval.
    Lines,
    /// Side by side, each with its interval.
    Dots,
    /// Connected, with the area of the intervals.
    Bands,
}

/// One of the compared.
#[derive(Clone, Debug)]
pub struct Line {
    /// Its name.
    pub name: String,
    /// Values by place.
    pub points: Vec<(f64, Mark)>,
}

/// Values over an axis.
#[derive(Clone, Debug)]
pub struct Chart {
    /// Along the bottom.
    pub x: Axis,
    /// Along the left.
    pub y: Axis,
    /// How values are shown.
    pub way: Way,
    /// The compared. Position decides colour and marker, also of those without points.
    pub lines: Vec<Line>,
    /// Horizontal rules, such as a link's rate, with their names.
    pub rules: Vec<(f64, String)>,
}

/// The inner edges.
struct Frame {
    left: f64,
    right: f64,
    top: f64,
    foot: f64,
}

impl Chart {
    /// The drawing.
    #[must_use]
    pub fn draw(&self) -> Picture {
        let shown = self.shown();
        if shown.iter().all(|(_, points)| points.is_empty()) {
            return nothing();
        }
        let mut canvas = Canvas::default();
        let direct = self.is_direct(&shown);
        let entries: Vec<(Sign, String)> = shown
            .iter()
            .filter(|(_, points)| !points.is_empty() && !direct)
            .map(|(at, _)| (Sign::Marker(*at), self.lines[*at].name.clone()))
            .collect();
        let top = legend::draw(&mut canvas, 4.0, &entries);
        let titles = lines(&self.y.title, SIZE, WIDTH - 28.0, 2);
        canvas.lines((14.0, top + SIZE + 2.0), Anchor::Start, &titles);
        let top = top + ROW * titles.len() as f64 + 14.0;
        let frame = self.frame(&shown, top, direct);
        let marks = shown.iter().flat_map(|(_, points)| points);
        let ys = marks.clone().flat_map(|(_, mark)| mark.values());
        let ys = ys.chain(self.rules.iter().map(|(value, _)| *value));
        let y = Scale::new(&self.y.kind, ys, (frame.foot, frame.top), &self.y.ticks);
        let inner = (frame.left + 12.0, frame.right - 12.0);
        let x = Scale::new(&self.x.kind, marks.map(|(x, _)| *x), inner, &self.x.ticks);
        horizontal_grid(&mut canvas, &y, &frame);
        let below = self.bottom(&mut canvas, &x, &frame);
        self.rules(&mut canvas, &y, &frame);
        self.series(&mut canvas, &shown, &x, &y);
        if direct {
            self.names(&mut canvas, &shown, (&x, &y), &frame);
        }
        canvas.finished(below + 8.0)
    }

    /// The drawable points of each series, in order.
    fn shown(&self) -> Vec<(usize, Vec<(f64, Mark)>)> {
        let positive = |axis: &Axis, value: f64| axis.kind != Kind::Log || value > 0.0;
        let drawable = |(x, mark): &&(f64, Mark)| {
            crate::drawable(*x)
                && positive(&self.x, *x)
                && mark.is_finite()
                && mark.values().all(|value| positive(&self.y, value))
        };
        let of = |line: &Line| line.points.iter().filter(drawable).copied().collect();
        self.lines.iter().enumerate().map(|(at, line)| (at, of(line))).collect()
    }

    /// Whether names may stand beside the ends of their lines.
    fn is_direct(&self, shown: &[(usize, Vec<(f64, Mark)>)]) -> bool {
        let ends = || shown.iter().filter_map(|(_, points)| points.last()).map(|(x, _)| *x);
        let all = || shown.iter().flat_map(|(_, points)| points.iter().map(|(x, _)| *x));
        let scale = Scale::new(&self.x.kind, all(), (0.0, 1.0), &self.x.ticks);
        let many = shown.iter().filter(|(_, points)| !points.is_empty()).count();
        let most = all().map(|x| scale.place(x)).fold(0.0, f64::max);
        self.way != Way::Dots && many <= DIRECT_MAX && ends().all(|x| most - scale.place(x) <= 0.12)
    }

    fn frame(&self, shown: &[(usize, Vec<(f64, Mark)>)], top: f64, direct: bool) -> Frame {
        let named = shown.iter().filter(|(_, points)| !points.is_empty());
        let names = named.map(|(at, _)| width(&self.lines[*at].name, SIZE)).fold(0.0, f64::max);
        let right = if direct { names.min(NAMES) + 36.0 } else { RIGHT };
        // Labels of the axis have at most seven letters; they are measured when they are known.
        Frame { left: 62.0, right: WIDTH - right, top, foot: top + HEIGHT }
    }

    /// Ticks, their labels and the title of the horizontal axis; gives the foot of them.
    fn bottom(&self, canvas: &mut Canvas, x: &Scale, frame: &Frame) -> f64 {
        canvas.line("axis", (frame.left, frame.foot), (frame.right, frame.foot));
        let labels: Vec<(f64, &str)> =
            x.ticks.iter().map(|(value, label)| (x.place(*value), label.as_str())).collect();
        for (at, _) in &labels {
            canvas.line("axis", (*at, frame.foot), (*at, frame.foot + 4.0));
        }
        let below = match self.x.kind {
            Kind::Places(_) => place_labels(canvas, &labels, frame),
            _ => value_labels(canvas, &labels, frame),
        };
        let title = lines(&self.x.title, SIZE, frame.right - frame.left, 2);
        let middle = frame.left.midpoint(frame.right);
        canvas.lines((middle, below + SIZE + 6.0), Anchor::Middle, &title);
        below + 6.0 + ROW * title.len() as f64
    }

    fn rules(&self, canvas: &mut Canvas, y: &Scale, frame: &Frame) {
        for (value, name) in &self.rules {
            if y.shows(*value) {
                let at = y.place(*value);
                canvas.line("axis", (frame.left, at), (frame.right, at));
                let name = lines(name, SIZE, frame.right - frame.left - 10.0, 1).concat();
                canvas.faint((frame.right - 4.0, at - 4.0), Anchor::End, &name);
            }
        }
    }

    fn series(
        &self,
        canvas: &mut Canvas,
        shown: &[(usize, Vec<(f64, Mark)>)],
        x: &Scale,
        y: &Scale,
    ) {
        let present: Vec<_> = shown.iter().filter(|(_, points)| !points.is_empty()).collect();
        let slot = match &self.x.kind {
            Kind::Places(_) => x.place(1.0) - x.place(0.0),
            _ => f64::INFINITY,
        };
        let room = match self.way {
            Way::Dots => (slot / (present.len() as f64 + 1.0)).min(18.0),
            Way::Lines => ASIDE.min(slot / (present.len() as f64 + 1.0)),
            Way::Bands => 0.0,
        };
        let most = (present.len() as f64 - 1.0) / 2.0;
        for (number, (at, points)) in present.iter().enumerate() {
            let has_ends = points.iter().any(|(_, mark)| mark.ends.is_some());
            // Where nothing can hide behind something else, values stand exactly at their places.
            let aside = if has_ends || self.way == Way::Dots { room } else { 0.0 };
            let aside = (number as f64 - most) * aside;
            let places: Vec<(f64, f64)> = points
                .iter()
                .map(|(v, mark)| (x.place(*v) + aside, y.place(mark.middle)))
                .collect();
            if self.way == Way::Bands {
                canvas.area(*at, &area(points, x, y));
            }
            if self.way != Way::Dots {
                canvas.polyline(*at, &places);
            }
            for ((place, _), (_, mark)) in places.iter().zip(points) {
                if self.way != Way::Bands {
                    canvas.upright(*at, *place, mark, |value| y.place(value));
                }
            }
            if let (Way::Bands, Some(last)) = (self.way, places.last()) {
                canvas.marker(*at, *last);
            }
        }
    }

    /// Names beside the ends of the lines, moved apart where lines end close together.
    fn names(
        &self,
        canvas: &mut Canvas,
        shown: &[(usize, Vec<(f64, Mark)>)],
        (x, y): (&Scale, &Scale),
        frame: &Frame,
    ) {
        let room = WIDTH - frame.right - 34.0;
        let most = if shown.len() > 4 { 2 } else { 3 };
        let mut names: Vec<(usize, (f64, f64), Vec<String>)> = shown
            .iter()
            .filter_map(|(at, points)| {
                let (value, mark) = points.last()?;
                let name = lines(&self.lines[*at].name, SIZE, room.max(40.0), most);
                Some((*at, (x.place(*value), y.place(mark.middle)), name))
            })
            .collect();
        names.sort_by(|a, b| a.1.1.total_cmp(&b.1.1));
        let heights: Vec<f64> =
            names.iter().map(|(_, _, name)| ROW * name.len() as f64 + 2.0).collect();
        let wanted: Vec<f64> = names.iter().map(|(_, (_, y), _)| *y).collect();
        let middles = apart(&wanted, &heights, frame.top - 8.0, frame.foot + 8.0);
        for (((at, end, name), middle), height) in names.iter().zip(middles).zip(heights) {
            let left = frame.right + 14.0;
            canvas.leader((end.0 + 6.0, end.1), (left - 8.0, middle));
            canvas.marker(*at, (left, middle));
            canvas.lines((left + 10.0, middle - height / 2.0 + SIZE), Anchor::Start, name);
        }
    }
}

/// The outline of the area between the ends of points.
fn area(points: &[(f64, Mark)], x: &Scale, y: &Scale) -> Vec<(f64, f64)> {
    let end = |pick: fn((f64, f64)) -> f64| {
        move |(v, mark): &(f64, Mark)| (x.place(*v), y.place(mark.ends.map_or(mark.middle, pick)))
    };
    let low = points.iter().map(end(|(low, _)| low));
    let high = points.iter().rev().map(end(|(_, high)| high));
    low.chain(high).collect()
}

fn horizontal_grid(canvas: &mut Canvas, y: &Scale, frame: &Frame) {
    let mut last = f64::INFINITY;
    for (value, label) in &y.ticks {
        let at = y.place(*value);
        canvas.line("grid", (frame.left, at), (frame.right, at));
        if last - at >= ROW {
            canvas.text((frame.left - 8.0, at + 4.0), Anchor::End, label);
            last = at;
        }
    }
}

/// Labels of values: those that would touch the one before are left out. Gives their foot.
fn value_labels(canvas: &mut Canvas, labels: &[(f64, &str)], frame: &Frame) -> f64 {
    let mut sorted = labels.to_vec();
    sorted.sort_by(|a, b| a.0.total_cmp(&b.0));
    let mut free = f64::NEG_INFINITY;
    for (at, label) in sorted {
        let half = width(label, SIZE) / 2.0;
        if at - half >= free {
            canvas.text((at, frame.foot + 18.0), Anchor::Middle, label);
            free = at + half + 8.0;
        }
    }
    frame.foot + 20.0
}

/// Names of places: in lines below them, or slanted where they have no room. Gives their foot.
fn place_labels(canvas: &mut Canvas, labels: &[(f64, &str)], frame: &Frame) -> f64 {
    let slot = (frame.right - frame.left) / labels.len().max(1) as f64 - 8.0;
    let longest_word = labels
        .iter()
        .flat_map(|(_, label)| label.split_whitespace())
        .map(|word| width(word, SIZE))
        .fold(0.0, f64::max);
    if longest_word <= slot {
        let wrapped: Vec<_> =
            labels.iter().map(|(at, label)| (at, lines(label, SIZE, slot, 3))).collect();
        let rows = wrapped.iter().map(|(_, lines)| lines.len()).max().unwrap_or(0);
        for (at, lines) in wrapped {
            canvas.lines((*at, frame.foot + 18.0), Anchor::Middle, &lines);
        }
        return frame.foot + 6.0 + ROW * rows as f64;
    }
    // Rows of slanted text are as far apart as their places are, times the sine.
    let mut free = f64::NEG_INFINITY;
    let mut deepest: f64 = 0.0;
    for (at, label) in labels {
        if *at < free {
            continue;
        }
        // The first labels must not leave the picture on the left.
        let room = ((*at - 6.0) / 0.72).min(170.0);
        let label = lines(label, SIZE, room, 1).concat();
        canvas.slanted((*at + 4.0, frame.foot + 14.0), 40.0, &label);
        deepest = deepest.max(width(&label, SIZE) * 0.65);
        free = at + ROW / 0.64;
    }
    frame.foot + 18.0 + deepest
}

/// Places near the wanted ones (ascending) at which things of these heights do not overlap.
fn apart(wanted: &[f64], heights: &[f64], top: f64, foot: f64) -> Vec<f64> {
    let mut places = wanted.to_vec();
    let mut free = top;
    for (place, height) in places.iter_mut().zip(heights) {
        *place = place.max(free + height / 2.0);
        free = *place + height / 2.0;
    }
    // From below again, so that the last ones are not pushed out of the picture.
    let mut free = foot.max(top + heights.iter().sum::<f64>());
    for (place, height) in places.iter_mut().zip(heights).rev() {
        *place = place.min(free - height / 2.0);
        free = *place - height / 2.0;
    }
    places
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::overlap::{assert_readable, markers};

    fn chart(kind: Kind, way: Way, series: usize, columns: usize) -> Chart {
        let name =
            |at| format!("Series {at} with placement by queue and busy polling of the socket");
        let point = |at: usize, x: usize| {
            let value = 100.0 * (at as f64 + 1.0) + 30.0 * x as f64;
            (x as f64 + 1.0, Mark::between(value * 0.9, value, value * 1.1))
        };
        let points = |at| match kind {
            Kind::Places(_) => (0..columns).map(|x| (x as f64, point(at, x).1)).collect(),
            _ => (0..columns).map(|x| point(at, x)).collect(),
        };
        let lines = (0..series).map(|at| Line { name: name(at), points: points(at) }).collect();
        let title = "What varies along the horizontal axis, in units of something".to_owned();
        let y = Axis {
            title: "Thousand IOPS <per core>".to_owned(),
            kind: Kind::Linear,
            ticks: vec![],
        };
        Chart {
            x: Axis { title, kind, ticks: vec![] },
            y,
            way,
            lines,
            rules: vec![(250.0, "line rate".to_owned())],
        }
    }

    #[test]
    fn no_text_meets_another_whatever_is_shown() {
        let places = |count: usize, name: &str| {
            Kind::Places((0..count).map(|at| format!("{name} {at}")).collect())
        };
        for series in [1, 2, 5, 8, 9] {
            for columns in [1, 2, 7, 24] {
                for way in [Way::Lines, Way::Dots, Way::Bands] {
                    let kinds = [
                        Kind::Linear,
                        Kind::Log,
                        places(columns, "x"),
                        places(columns, "128 KiB sequential-read-with-long-name"),
                    ];
                    for kind in kinds {
                        assert_readable(&chart(kind, way, series, columns).draw());
                    }
                }
            }
        }
    }

    #[test]
    fn every_value_has_its_marker_and_bad_ones_have_none() {
        let mut chart = chart(Kind::Linear, Way::Lines, 2, 3);
        chart.lines[0].points.push((f64::NAN, Mark::alone(1.0)));
        chart.lines[0].points.push((3.0, Mark::alone(f64::INFINITY)));
        // Three values each, and the marker beside the name.
        assert_eq!(markers(&chart.draw()), 2 * (3 + 1));
        chart.y.kind = Kind::Log;
        chart.lines[1].points[0].1 = Mark::alone(0.0);
        assert_eq!(markers(&chart.draw()), 2 * (3 + 1) - 1);
        chart.lines.clear();
        assert!(chart.draw().inline("x").contains("not measured"));
    }
}
