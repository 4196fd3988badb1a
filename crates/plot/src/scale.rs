//! From values to places, and the ticks of an axis.

use crate::number::short;

/// How values become places on an axis.
#[derive(Clone, Debug, PartialEq)]
pub enum Kind {
    /// Equally spaced places with these names; values are their numbers, from 0.
    Places(Vec<String>),
    /// In proportion, from 0.
    Linear,
    /// In proportion, around the values.
    Near,
    /// By factors.
    Log,
    /// By how much is left to 100: 90, 99, 99.9 are equally spaced.
    Percentile,
}

/// Ticks of a linear axis, at most.
const STEPS_MAX: f64 = 6.0;
/// The highest percentile that an axis shows.
const PERCENTILE_MAX: f64 = 99.9999;

/// An axis with its range.
pub(crate) struct Scale {
    kind: Kind,
    low: f64,
    high: f64,
    from: f64,
    to: f64,
    pub(crate) ticks: Vec<(f64, String)>,
}

impl Scale {
    /// An axis for these values, which runs between two places. With `given`, these are its ticks.
    pub(crate) fn new(
        kind: &Kind,
        values: impl Iterator<Item = f64>,
        (from, to): (f64, f64),
        given: &[(f64, String)],
    ) -> Self {
        let usable = |value: &f64| crate::drawable(*value) && (*kind != Kind::Log || *value > 0.0);
        let all = values.chain(given.iter().map(|(value, _)| *value)).filter(usable);
        let (least, most) =
            all.fold((f64::INFINITY, f64::NEG_INFINITY), |(a, b), v| (a.min(v), b.max(v)));
        let (least, most) = if least > most { (1.0, 1.0) } else { (least, most) };
        let (low, high, ticks) = match kind {
            Kind::Places(names) => {
                let ticks = names.iter().enumerate().map(|(at, name)| (at as f64, name.clone()));
                (-0.5, names.len() as f64 - 0.5, ticks.collect())
            }
            Kind::Percentile => percentiles(most),
            _ if !given.is_empty() => within(kind, least, most, given),
            Kind::Log => by_factors(least, most),
            Kind::Linear => in_steps(least.min(0.0), most.max(0.0)),
            Kind::Near => in_steps(least, most),
        };
        Self { kind: kind.clone(), low, high, from, to, ticks }
    }

    pub(crate) fn place(&self, value: f64) -> f64 {
        let (low, high) = (self.stretched(self.low), self.stretched(self.high));
        let share = (self.stretched(value) - low) / (high - low).max(f64::MIN_POSITIVE);
        self.from + (self.to - self.from) * share.clamp(0.0, 1.0)
    }

    /// Whether a value has a place on the axis.
    pub(crate) fn shows(&self, value: f64) -> bool {
        crate::drawable(value) && (self.kind != Kind::Log || value > 0.0)
    }

    fn stretched(&self, value: f64) -> f64 {
        match self.kind {
            Kind::Log => value.max(f64::MIN_POSITIVE).log10(),
            Kind::Percentile => -(1.0 - value.min(PERCENTILE_MAX) / 100.0).log10(),
            Kind::Places(_) | Kind::Linear | Kind::Near => value,
        }
    }
}

/// The range and ticks of an axis.
type Range = (f64, f64, Vec<(f64, String)>);

/// Between the outermost ticks and values, with a little room.
fn within(kind: &Kind, least: f64, most: f64, given: &[(f64, String)]) -> Range {
    let (low, high) = if *kind == Kind::Log {
        let room = (most / least).powf(0.04).max(1.02);
        (least / room, most * room)
    } else {
        let room = ((most - least) * 0.04).max(most.abs() * 1e-3).max(1e-9);
        (least - room, most + room)
    };
    (low, high, given.to_vec())
}

/// The distance of ticks: 1, 2 or 5 times a power of ten.
pub(crate) fn step(most: f64) -> f64 {
    let rough = (most / STEPS_MAX).max(f64::MIN_POSITIVE);
    let power = 10f64.powf(rough.log10().floor());
    let steps = [1.0, 2.0, 5.0, 10.0].map(|factor| factor * power);
    steps.into_iter().find(|step| *step >= rough * 0.999).unwrap_or(rough)
}

fn in_steps(least: f64, most: f64) -> Range {
    let most = if most > least { most } else { least + least.abs().max(1.0) };
    let step = step(most - least);
    let (low, high) = ((least / step).floor() * step, (most / step).ceil() * step);
    let ticks =
        (0..=20u32).map(|at| low + step * f64::from(at)).take_while(|v| *v <= high + step / 2.0);
    // The sum of steps is not always 0 where it should be.
    let whole = |value: f64| if value.abs() < step / 1e6 { 0.0 } else { value };
    (low, high, ticks.map(whole).map(|value| (value, short(value))).collect())
}

/// Factors of ten and, where the range is small, values between them.
fn by_factors(least: f64, most: f64) -> Range {
    let decades = (most / least).log10();
    let factors: &[f64] = match decades {
        _ if decades > 3.0 => &[1.0],
        _ if decades > 1.2 => &[1.0, 2.0, 5.0],
        _ if decades > 0.5 => &[1.0, 1.5, 2.0, 3.0, 5.0, 7.0],
        _ if decades > 0.2 => &[1.0, 1.2, 1.5, 2.0, 2.5, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0],
        _ => return near_factors(least, most),
    };
    let skip = if decades > 7.0 { (decades / 6.0).ceil() } else { 1.0 };
    let mut power = (least.log10().floor() / skip).floor() * skip;
    let mut ticks = Vec::new();
    while power <= most.log10().ceil() && ticks.len() < 100 {
        ticks.extend(factors.iter().map(|factor| factor * 10f64.powf(power)));
        power += skip;
    }
    let low = ticks.iter().copied().filter(|v| *v <= least * 1.0001).fold(f64::NAN, f64::max);
    let high = ticks.iter().copied().filter(|v| *v >= most * 0.9999).fold(f64::NAN, f64::min);
    let low = if low.is_nan() { least } else { low };
    let high = if high.is_nan() { most } else { high };
    let high = if high > low { high } else { low * 2.0 };
    let shown = ticks.into_iter().filter(|v| *v >= low * 0.9999 && *v <= high * 1.0001);
    (low, high, shown.map(|value| (value, short(value))).collect())
}

/// Values that lie close together: ticks in steps.
fn near_factors(least: f64, most: f64) -> Range {
    let (least, most) = (least * 0.97, most * 1.03);
    let (low, high, ticks) = in_steps(least, most);
    if low > 0.0 {
        (low, high, ticks)
    } else {
        (least, most, ticks.into_iter().filter(|t| t.0 > least).collect())
    }
}

fn percentiles(most: f64) -> Range {
    let names = ["0", "90", "99", "99.9", "99.99", "99.999", "99.9999"];
    let all = [0.0, 90.0, 99.0, 99.9, 99.99, 99.999, 99.9999];
    let high =
        all.into_iter().find(|value| *value >= most - 1e-9).unwrap_or(PERCENTILE_MAX).max(99.0);
    let ticks = all.into_iter().zip(names).chain([(50.0, "50")]);
    (
        0.0,
        high,
        ticks.filter(|(v, _)| *v <= high).map(|(v, name)| (v, format!("{name} %"))).collect(),
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn scale(kind: &Kind, values: &[f64]) -> Scale {
        Scale::new(kind, values.iter().copied(), (0.0, 100.0), &[])
    }

    #[test]
    fn values_stand_where_they_belong() {
        let linear = scale(&Kind::Linear, &[90.0, 990.0]);
        assert_eq!([0.0, 500.0, 1000.0].map(|v| linear.place(v)), [0.0, 50.0, 100.0]);
        let log = scale(&Kind::Log, &[1.0, 10_000.0]);
        assert_eq!([1.0, 100.0, 10_000.0].map(|v| log.place(v)), [0.0, 50.0, 100.0]);
        assert!(!log.shows(0.0) && !log.shows(f64::NAN) && log.shows(0.1));
        let percent = scale(&Kind::Percentile, &[99.99]);
        let places = [0.0, 90.0, 99.0, 99.9, 99.99].map(|v| percent.place(v).round());
        assert_eq!(places, [0.0, 25.0, 50.0, 75.0, 100.0]);
        let places = scale(&Kind::Places(vec!["a".to_owned(), "b".to_owned()]), &[]);
        assert_eq!([places.place(0.0), places.place(1.0)], [25.0, 75.0]);
    }

    #[test]
    fn every_range_has_ticks_and_room_for_its_values() {
        let cases: [&[f64]; 9] = [
            &[1.0],
            &[0.97, 1.02],
            &[0.5, 2.0],
            &[1e-9, 1e9],
            &[0.1, 14_000.0],
            &[5.0, 5.0],
            &[3.1, 29.0],
            &[],
            &[f64::NAN, 2.0],
        ];
        for values in cases {
            for kind in [Kind::Linear, Kind::Near, Kind::Log] {
                let scale = scale(&kind, values);
                assert!(
                    (2..=15).contains(&scale.ticks.len()),
                    "{kind:?} {values:?} {:?}",
                    scale.ticks
                );
                assert!(scale.low < scale.high);
                for value in values.iter().filter(|v| v.is_finite()) {
                    assert!(scale.low <= *value * 1.001 && *value <= scale.high * 1.001);
                }
            }
        }
        assert_eq!([10.0, 59.0, 61.0, 1000.0].map(step), [2.0, 10.0, 20.0, 200.0]);
    }
}
