//! A finished drawing: for a page, or as a file.

use std::fmt::Write as _;

use crate::canvas::WIDTH;
use crate::text::{LINE, escaped, lines};

/// The colours of pictures, for light and dark screens and for paper. A page that has pictures contains it once.
///
/// The series' colours are those of Okabe and Ito, darker or lighter where the page needs it: they can be told
/// apart by people with each kind of colour blindness. Series also differ in their markers and dashes.
pub const STYLE: &str = "\
.rl { font-family: Helvetica, Arial, 'Liberation Sans', 'DejaVu Sans', sans-serif; color: #1f2328 }
.rl text { fill: currentColor } .rl .faint { color: #59636e } .rl .paper { fill: #ffffff }
.rl .grid { stroke: #d8dee4 } .rl .axis { stroke: #59636e }
.rl .c0 { color: #0072b2 } .rl .c1 { color: #c04f00 } .rl .c2 { color: #00805d } .rl .c3 { color: #a8487f }
.rl .c4 { color: #8a6200 } .rl .c5 { color: #2a7fb8 } .rl .c6 { color: #4d4d4d } .rl .c7 { color: #7a3db8 }
.rl .up { fill: #56a0d3 } .rl .down { fill: #e69f00 }
@media screen and (prefers-color-scheme: dark) {
.rl { color: #f0f6fc } .rl .faint { color: #9da7b3 } .rl .paper { fill: #0d1117 }
.rl .grid { stroke: #30363d } .rl .axis { stroke: #9da7b3 }
.rl .c0 { color: #56b4e9 } .rl .c1 { color: #ff8f4a } .rl .c2 { color: #2fd3a0 } .rl .c3 { color: #e8a0cb }
.rl .c4 { color: #f0c945 } .rl .c5 { color: #8cc8ff } .rl .c6 { color: #c9d1d9 } .rl .c7 { color: #c9a3f5 }
.rl .up { fill: #2f7fb5 } .rl .down { fill: #b57700 }
}";

/// How many series differ in their colours.
pub(crate) const COLOURS: usize = 8;
/// Size of a title, and of a note.
const TITLE: f64 = 16.0;
const NOTE: f64 = 11.0;
/// Room around titles and notes.
const MARGIN: f64 = 14.0;

/// A finished drawing.
#[derive(Clone, Debug)]
pub struct Picture {
    pub(crate) body: String,
    pub(crate) height: f64,
}

impl Picture {
    /// The drawing for an HTML page that contains [`STYLE`]; `label` describes it to those who cannot see it.
    #[must_use]
    pub fn inline(&self, label: &str) -> String {
        format!(
            "<svg class=\"rl\" viewBox=\"0 0 {WIDTH} {:.0}\" role=\"img\" aria-label=\"{}\">\n{}</svg>\n",
            self.height,
            escaped(label),
            self.body
        )
    }

    /// The drawing as a file, with its title above it and notes below.
    #[must_use]
    pub fn file(&self, title: &str, notes: &[String]) -> String {
        let room = WIDTH - 2.0 * MARGIN;
        let head = lines(title, TITLE, room, 3);
        let foot: Vec<String> = notes.iter().flat_map(|note| lines(note, NOTE, room, 4)).collect();
        let above = MARGIN + TITLE * LINE * head.len() as f64;
        let below = MARGIN + NOTE * LINE * foot.len() as f64;
        let height = above + self.height + below;
        let mut text = format!(
            "<svg xmlns=\"http://www.w3.org/2000/svg\" class=\"rl\" viewBox=\"0 0 {WIDTH} {height:.0}\" role=\"img\">\n\
             <title>{}</title>\n<style>\n{STYLE}\n</style>\n\
             <rect class=\"paper\" width=\"{WIDTH}\" height=\"{height:.0}\" rx=\"6\"/>\n",
            escaped(title)
        );
        let mut put = |class: &str, y: f64, size: f64, words: &str| {
            // Writing into a String cannot fail.
            let _ = writeln!(
                text,
                "<text{class} x=\"{MARGIN}\" y=\"{y:.1}\" font-size=\"{size}\">{}</text>",
                escaped(words)
            );
        };
        for (at, line) in head.iter().enumerate() {
            put(" font-weight=\"bold\"", MARGIN + TITLE + TITLE * LINE * at as f64, TITLE, line);
        }
        for (at, line) in foot.iter().enumerate() {
            let y = above + self.height + NOTE + NOTE * LINE * at as f64;
            put(" class=\"faint\"", y, NOTE, line);
        }
        let _ =
            write!(text, "<g transform=\"translate(0 {above:.1})\">\n{}</g>\n</svg>\n", self.body);
        text
    }
}
