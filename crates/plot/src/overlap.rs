//! What tests ask of every picture: XML that parses, texts inside the picture that do not meet.

use roxmltree::{Document, Node};

use crate::canvas::WIDTH;
use crate::picture::Picture;
use crate::text::width;

/// The area of a text: edges in a system that is turned with it, and the turn.
#[derive(Debug)]
struct Area {
    words: String,
    turn: String,
    left: f64,
    right: f64,
    top: f64,
    foot: f64,
}

/// Fails unless the picture parses, and its texts keep apart and inside.
pub(crate) fn assert_readable(picture: &Picture) {
    let svg = picture.inline("label & <more>");
    let document = Document::parse(&svg).unwrap_or_else(|error| panic!("{error}: {svg}"));
    let areas: Vec<Area> = document
        .descendants()
        .filter(|node| node.has_tag_name("text"))
        .map(|node| area(&node))
        .collect();
    assert!(!areas.is_empty(), "{svg}");
    for (at, a) in areas.iter().enumerate() {
        if a.turn.is_empty() {
            let inside = a.left >= -0.5 && a.right <= WIDTH + 0.5 && a.top >= -0.5;
            assert!(
                inside && a.foot <= picture.height + 0.5,
                "outside: {a:?} of {}",
                picture.height
            );
        }
        for b in areas.iter().skip(at + 1).filter(|b| b.turn == a.turn) {
            let apart =
                a.right <= b.left || b.right <= a.left || a.foot <= b.top || b.foot <= a.top;
            assert!(apart, "{} meets {}: {a:?} {b:?}", a.words, b.words);
        }
    }
    let file = picture.file(
        "A title that is long enough to need more than one line, because it goes on & on, and on",
        &["A note".to_owned()],
    );
    Document::parse(&file).unwrap_or_else(|error| panic!("{error}: {file}"));
    assert!(!svg.contains("NaN") && !svg.contains("inf"), "{svg}");
}

/// How many series' markers are drawn.
pub(crate) fn markers(picture: &Picture) -> usize {
    let svg = picture.inline("");
    let document = Document::parse(&svg).unwrap();
    let is_marker = |node: &Node| {
        ["circle", "rect", "path"].contains(&node.tag_name().name())
            && node.attribute("class").is_some_and(|class| class.starts_with('c'))
            && node.attribute("fill") == Some("currentColor")
    };
    document.descendants().filter(is_marker).count()
}

fn area(node: &Node) -> Area {
    let number = |name: &str| -> f64 { node.attribute(name).unwrap().parse().unwrap() };
    let words = node.text().unwrap_or_default().to_owned();
    let (x, y, size) = (number("x"), number("y"), number("font-size"));
    let wide = width(&words, size);
    let left = match node.attribute("text-anchor") {
        Some("middle") => x - wide / 2.0,
        Some("end") => x - wide,
        _ => x,
    };
    let turn = node.attribute("transform").unwrap_or_default();
    let turn = turn.split_whitespace().next().unwrap_or_default().to_owned();
    // Slanted texts turn around their own ends: seen along them, they are lines beside each other.
    let (left, y) = if let Some(degrees) = turn.strip_prefix("rotate(-") {
        let angle = degrees.parse::<f64>().unwrap().to_radians();
        (x * angle.cos() - y * angle.sin() - wide, x * angle.sin() + y * angle.cos())
    } else {
        (left, y)
    };
    Area { words, turn, left, right: left + wide, top: y - size * 0.85, foot: y + size * 0.25 }
}
