//! A line plot of figures as SVG: a logarithmic x axis, medians with their ends.

use raceline_plot::{Axis, Chart, Kind, Line, Mark, Way};

use crate::spdk::Spread;

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

impl Plot {
    /// The whole file.
    pub(super) fn svg(&self) -> String {
        let mut xs: Vec<u32> =
            self.series.iter().flat_map(|series| series.values.iter().map(|(x, _)| *x)).collect();
        xs.sort_unstable();
        xs.dedup();
        let ticks = xs.into_iter().map(|x| (f64::from(x), x.to_string())).collect();
        let axis = |title: &str, kind, ticks| Axis { title: title.to_owned(), kind, ticks };
        let line = |series: &Series| {
            let point = |(x, value): &(u32, Spread)| {
                (f64::from(*x), Mark::between(value.low, value.median, value.high))
            };
            let points = series.values.iter().map(point).collect();
            Line { name: series.name.to_owned(), points }
        };
        let chart = Chart {
            x: axis(self.x_title, Kind::Log, ticks),
            y: axis(self.y_title, Kind::Linear, Vec::new()),
            way: Way::Lines,
            lines: self.series.iter().map(line).collect(),
            rules: Vec::new(),
        };
        chart.draw().file(&self.title, &self.notes)
    }
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
    fn the_file_has_every_value_and_no_open_text() {
        let svg = plot().svg();
        assert!(svg.contains("IOPS &amp; more") && svg.contains("prefers-color-scheme: dark"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        // A marker for each value and for each name.
        assert_eq!(svg.matches("<circle").count(), 4);
        let labels = [">1<", ">32<", ">127<", ">1000<", ">ours<", ">theirs<", ">depth<"];
        assert!(labels.iter().all(|label| svg.contains(label)), "{svg}");
    }
}
