//! Numbers for people.

/// A number for a table or a label, with three significant digits or more: `1.36`, `171`, `2,801,000`.
#[must_use]
pub fn plain(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    let size = value.abs();
    if size >= 1e15 {
        return format!("{value:.2e}");
    }
    let text = match size {
        0.0 => "0".to_owned(),
        _ if size >= 100.0 => format!("{value:.0}"),
        _ if size >= 10.0 => format!("{value:.1}"),
        _ if size >= 1.0 => format!("{value:.2}"),
        _ if size >= 0.1 => format!("{value:.3}"),
        _ if size >= 0.001 => format!("{value:.4}"),
        _ => format!("{value:.2e}"),
    };
    grouped(&text)
}

/// A ratio with two digits after the point.
#[must_use]
pub fn ratio(value: f64) -> String {
    if !value.is_finite() {
        "-".to_owned()
    } else if value.abs() >= 100.0 || value.abs() < 0.01 {
        plain(value)
    } else {
        format!("{value:.2}")
    }
}

/// A number for an axis: `500k`, `1.5M`, `0.02`.
#[must_use]
pub fn short(value: f64) -> String {
    let size = value.abs();
    let (divisor, unit) = match size {
        _ if size >= 1e12 => return format!("{value:.0e}"),
        _ if size >= 1e9 => (1e9, "G"),
        _ if size >= 1e6 => (1e6, "M"),
        _ if size >= 1e4 => (1e3, "k"),
        _ if size > 0.0 && size < 1e-4 => return format!("{value:.0e}"),
        _ => (1.0, ""),
    };
    let scaled = value / divisor;
    // As many digits as tell neighbours apart, and no zeros at the end.
    let text = format!("{scaled:.4}");
    let text =
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.') } else { &text };
    let text = if text == "-0" { "0" } else { text };
    format!("{text}{unit}")
}

/// Commas between groups of three digits before the point.
fn grouped(text: &str) -> String {
    let (sign, rest) = text.strip_prefix('-').map_or(("", text), |rest| ("-", rest));
    let (whole, fraction) = rest.split_once('.').map_or((rest, None), |(a, b)| (a, Some(b)));
    if whole.len() < 5 {
        return text.to_owned();
    }
    let mut groups = String::new();
    for (at, digit) in whole.chars().enumerate() {
        if at > 0 && (whole.len() - at).is_multiple_of(3) {
            groups.push(',');
        }
        groups.push(digit);
    }
    let fraction = fraction.map_or(String::new(), |digits| format!(".{digits}"));
    format!("{sign}{groups}{fraction}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_follow_the_size() {
        let cases = [
            (0.0, "0"),
            (1.3649, "1.36"),
            (17.72, "17.7"),
            (171.4, "171"),
            (2_801_499.7, "2,801,500"),
            (-12_345.0, "-12,345"),
            (0.4567, "0.457"),
            (0.0123, "0.0123"),
            (f64::NAN, "-"),
            (f64::INFINITY, "-"),
        ];
        for (value, text) in cases {
            assert_eq!(plain(value), text);
        }
        assert_eq!([1.299, 0.005, 140.0, f64::NAN].map(ratio), ["1.30", "0.0050", "140", "-"]);
    }

    #[test]
    fn axes_have_short_numbers() {
        let cases = [
            (0.0, "0"),
            (2_500_000.0, "2.5M"),
            (500_000.0, "500k"),
            (9000.0, "9000"),
            (0.05, "0.05"),
        ];
        for (value, text) in cases {
            assert_eq!(short(value), text);
        }
    }
}
