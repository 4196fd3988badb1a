//! A line plot as SVG: a logarithmic x axis, medians with their ends, legible on light and dark pages.

use std::fmt::Write as _;

use crate::spdk::Spread;

/// Size of the whole, and of the margins around the plot: title and legend, axis and source line.
const WIDTH: f64 = 760.0;
const HEIGHT: f64 = 456.0;
const LEFT: f64 = 72.0;
const RIGHT: f64 = 24.0;
const TOP: f64 = 84.0;
const BOTTOM: f64 = 94.0;
/// How far the values of two lines at one x are apart, so that their ends can be distinguished.
const ASIDE: f64 = 7.0;
/// Half of the width of an end, and the size of a marker.
const CAP: f64 = 4.0;
const MARKER: f64 = 5.0;
/// Grid lines above 0, at most.
const STEPS_MAX: f64 = 6.0;
/// The room of a label of the x axis, and of a legend's entry.
const LABEL_WIDTH: f64 = 20.0;
const LEGEND_WIDTH: f64 = 150.0;

/// Colours of a light page in the attributes, of a dark one in the style. A background of its own makes
/// it legible where a page's colours do not follow the system's.
const STYLE: &str = "\
text { font-family: system-ui, sans-serif; fill: #1f2328 }
.page { fill: #ffffff } .grid { stroke: #d1d9e0 } .faint { fill: #59636e }
.s0 { stroke: #0969da; fill: #0969da } .s1 { stroke: #bc4c00; fill: #bc4c00 } .s2 { stroke: #59636e; fill: #59636e }
@media (prefers-color-scheme: dark) {
text { fill: #f0f6fc } .page { fill: #0d1117 } .grid { stroke: #3d444d } .faint { fill: #9198a1 }
.s0 { stroke: #58a6ff; fill: #58a6ff } .s1 { stroke: #f0883e; fill: #f0883e } .s2 { stroke: #9198a1; fill: #9198a1 }
}";

/// A plot and the file that it goes into.
pub(super) struct Plot {
    pub(super) file: &'static str,
    pub(super) title: String,
    pub(super) x_title: &'static str,
    pub(super) y_title: &'static str,
    /// The description of the figures, and their source.
    pub(super) notes: [String; 2],
    pub(super) series: Vec<Series>,
}

/// A line.
pub(super) struct Series {
    pub(super) name: &'static str,
    /// The values, by x.
    pub(super) values: Vec<(u32, Spread)>,
}

/// Maps values to places in the plot.
struct Scale {
    x_low: f64,
    x_high: f64,
    y_high: f64,
}

impl Plot {
    /// The whole file.
    pub(super) fn svg(&self) -> String {
        let scale = self.scale();
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {WIDTH} {HEIGHT}\" role=\"img\">\n\
             <title>{}</title>\n<style>\n{STYLE}\n</style>\n\
             <rect class=\"page\" width=\"{WIDTH}\" height=\"{HEIGHT}\" rx=\"6\"/>\n",
            escaped(&self.title)
        );
        let middle = LEFT.midpoint(WIDTH - RIGHT);
        put(&mut text, "", (LEFT, 28.0), "start", 17, &self.title);
        self.axes(&mut text, &scale);
        put(&mut text, "", (middle, HEIGHT - BOTTOM + 40.0), "middle", 13, self.x_title);
        for (note, up) in self.notes.iter().zip([28.0, 12.0]) {
            put(&mut text, "faint", (LEFT, HEIGHT - up), "start", 11, note);
        }
        put(&mut text, "faint", (LEFT, TOP - 12.0), "start", 12, self.y_title);
        for (at, series) in self.series.iter().enumerate() {
            let place = f64::from(u32::try_from(at).unwrap_or(0));
            series.draw(&mut text, &scale, at, (place - 1.0) * ASIDE);
            let x = LEFT + LEGEND_WIDTH * place + MARKER;
            marker(&mut text, at, (x, 48.0));
            put(&mut text, "", (x + 12.0, 52.0), "start", 13, series.name);
        }
        text + "</svg>\n"
    }

    fn scale(&self) -> Scale {
        let values = || self.series.iter().flat_map(|series| &series.values);
        let xs = || values().map(|(x, _)| f64::from(*x).log2());
        let (x_low, x_high) = (xs().fold(f64::INFINITY, f64::min), xs().fold(0.0, f64::max));
        let most = values().map(|(_, value)| value.high).fold(0.0, f64::max);
        let step = step(most);
        Scale { x_low, x_high, y_high: step * (most / step).ceil().max(1.0) }
    }

    fn axes(&self, text: &mut String, scale: &Scale) {
        let step = step(scale.y_high);
        let mut value = 0.0;
        while value <= scale.y_high * 1.001 {
            let y = scale.y(value);
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{LEFT}\" y1=\"{y:.1}\" x2=\"{:.1}\" y2=\"{y:.1}\"/>",
                WIDTH - RIGHT
            );
            put(text, "", (LEFT - 8.0, y + 4.0), "end", 12, &format!("{value:.0}"));
            value += step;
        }
        let mut xs: Vec<u32> =
            self.series.iter().flat_map(|series| series.values.iter().map(|(x, _)| *x)).collect();
        xs.sort_unstable();
        xs.dedup();
        // 127 and 128 would overlap.
        for near in xs.chunk_by(|a, b| scale.x(*b) - scale.x(*a) < LABEL_WIDTH) {
            let Some(x) = near.first() else { continue };
            let label: Vec<String> = near.iter().map(ToString::to_string).collect();
            let (at, foot) = (scale.x(*x), HEIGHT - BOTTOM);
            let _ = writeln!(
                text,
                "<line class=\"grid\" x1=\"{at:.1}\" y1=\"{foot}\" x2=\"{at:.1}\" y2=\"{}\"/>",
                foot + 5.0
            );
            put(text, "", (at, foot + 20.0), "middle", 12, &label.join(", "));
        }
    }
}

impl Scale {
    /// The outermost values are placed a little inside the plot.
    fn x(&self, x: u32) -> f64 {
        let (from, to) = (LEFT + 30.0, WIDTH - RIGHT - 30.0);
        let width = (self.x_high - self.x_low).max(f64::MIN_POSITIVE);
        from + (to - from) * (f64::from(x).log2() - self.x_low) / width
    }

    fn y(&self, value: f64) -> f64 {
        let foot = HEIGHT - BOTTOM;
        foot - (foot - TOP) * value / self.y_high
    }
}

impl Series {
    fn draw(&self, text: &mut String, scale: &Scale, number: usize, aside: f64) {
        let places: Vec<(f64, &Spread)> =
            self.values.iter().map(|(x, value)| (scale.x(*x) + aside, value)).collect();
        let line: Vec<String> = places
            .iter()
            .map(|(x, value)| format!("{x:.1},{:.1}", scale.y(value.median)))
            .collect();
        let _ = writeln!(
            text,
            "<polyline class=\"s{number}\" style=\"fill: none\" stroke-width=\"2\" points=\"{}\"/>",
            line.join(" ")
        );
        for (x, value) in places {
            let (low, high) = (scale.y(value.low), scale.y(value.high));
            let (left, right) = (x - CAP, x + CAP);
            let _ = writeln!(
                text,
                "<path class=\"s{number}\" d=\"M{x:.1} {low:.1}V{high:.1}M{left:.1} {low:.1}H{right:.1}\
                 M{left:.1} {high:.1}H{right:.1}\"/>"
            );
            marker(text, number, (x, scale.y(value.median)));
        }
    }
}

/// Lines differ in their markers, too: a circle, a square, a triangle.
fn marker(text: &mut String, number: usize, (x, y): (f64, f64)) {
    let (left, top) = (x - MARKER, y - MARKER);
    let size = 2.0 * MARKER;
    let _ = match number {
        0 => writeln!(text, "<circle class=\"s0\" cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"{MARKER}\"/>"),
        1 => writeln!(
            text,
            "<rect class=\"s1\" x=\"{left:.1}\" y=\"{top:.1}\" width=\"{size}\" height=\"{size}\"/>"
        ),
        _ => writeln!(
            text,
            "<path class=\"s{number}\" d=\"M{x:.1} {top:.1}l{MARKER} {size}h-{size}z\"/>"
        ),
    };
}

/// The distance of grid lines: 1, 2 or 5 times a power of ten.
fn step(most: f64) -> f64 {
    let rough = (most / STEPS_MAX).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    [1.0, 2.0, 5.0, 10.0]
        .map(|factor| factor * power)
        .into_iter()
        .find(|step| *step >= rough * 0.999)
        .unwrap_or(rough)
}

fn put(text: &mut String, class: &str, (x, y): (f64, f64), anchor: &str, size: u32, words: &str) {
    let class = if class.is_empty() { String::new() } else { format!(" class=\"{class}\"") };
    let _ = writeln!(
        text,
        "<text{class} x=\"{x:.1}\" y=\"{y:.1}\" text-anchor=\"{anchor}\" font-size=\"{size}\">{}</text>",
        escaped(words)
    );
}

fn escaped(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn plot() -> Plot {
        let value = |median: f64| Spread { median, low: median - 10.0, high: median + 10.0 };
        let line = |name, values: &[(u32, f64)]| Series {
            name,
            values: values.iter().map(|(x, median)| (*x, value(*median))).collect(),
        };
        Plot {
            file: "a.svg",
            title: "IOPS & more".to_owned(),
            x_title: "depth",
            y_title: "thousand IOPS",
            notes: ["n".to_owned(), "m".to_owned()],
            series: vec![
                line("ours", &[(1, 90.0), (32, 700.0), (128, 990.0)]),
                line("theirs", &[(1, 70.0), (127, 600.0)]),
            ],
        }
    }

    #[test]
    fn values_stand_where_they_belong() {
        let plot = plot();
        let scale = plot.scale();
        assert!((scale.y_high - 1000.0).abs() < 1e-9);
        // Halving the depth is the same distance everywhere.
        let half = |x| scale.x(x) - scale.x(x / 2);
        assert!((half(128) - half(2)).abs() < 1e-9 && scale.x(1) < scale.x(2));
        assert!((scale.y(0.0) - (HEIGHT - BOTTOM)).abs() < 1e-9);
        assert!((scale.y(1000.0) - TOP).abs() < 1e-9 && scale.y(500.0) > scale.y(501.0));
        assert_eq!([10.0, 59.0, 61.0, 1000.0].map(step), [2.0, 10.0, 20.0, 200.0]);
    }

    #[test]
    fn the_file_has_every_value_and_no_open_text() {
        let svg = plot().svg();
        assert!(svg.contains("IOPS &amp; more") && svg.contains("prefers-color-scheme: dark"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        // A marker for each value and for each entry of the legend.
        assert_eq!(
            (svg.matches("<circle").count(), svg.matches("<rect class=\"s1\"").count()),
            (4, 3)
        );
        let labels = [">1<", ">32<", ">127, 128<", ">1000<", ">ours<", ">theirs<", ">depth<"];
        assert!(labels.iter().all(|label| svg.contains(label)), "{svg}");
    }
}
