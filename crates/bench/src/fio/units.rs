//! fio's numbers: sizes, times, lists.

use std::time::Duration;

/// Most percentiles in a list, as in fio.
const PERCENTILES_MAX: usize = 20;
/// CPUs that a list can name.
const CPUS_MAX: usize = 1024;
/// Longest time: a year.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// What `k` means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KbBase {
    /// 1024, and `ki` is 1000: fio's default.
    Binary,
    /// 1000, and `ki` is 1024.
    Decimal,
}

/// A number with an optional suffix.
pub(super) fn size(text: &str, base: KbBase) -> Result<u64, String> {
    let wrong = || format!("`{text}` is not a size: write 4096, 4k, 1m, 2g or 0x1000");
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map_err(|_| wrong());
    }
    let digits = lower.len() - lower.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, suffix) = lower.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let suffix = suffix.strip_suffix('b').unwrap_or(suffix);
    let (letter, other) = match suffix.strip_suffix('i') {
        Some(letter) if !letter.is_empty() => (letter, true),
        _ => (suffix, false),
    };
    let power = ["", "k", "m", "g", "t", "p"].iter().position(|&known| known == letter);
    let power = power.and_then(|power| u32::try_from(power).ok()).ok_or_else(wrong)?;
    let factor: u64 = if (base == KbBase::Binary) == other { 1000 } else { 1024 };
    let bytes = factor.checked_pow(power).and_then(|factor| number.checked_mul(factor));
    bytes.ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))
}

/// A time; without a unit in seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || format!("`{text}` is not a time: write 90 (seconds), 90s, 500ms, 2m or 1h");
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = text.split_at(digits);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let us: u64 = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" | "sec" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    let time = number.checked_mul(us).map(Duration::from_micros);
    time.filter(|&time| time <= TIME_MAX).ok_or_else(|| "at most a year".to_owned())
}

/// A number between two others.
pub(super) fn number<T: TryFrom<u64>>(text: &str, least: u64, most: u64) -> Result<T, String> {
    let number = text.parse().ok().filter(|number| (least..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("`{text}` is not a number from {least} to {most}"))
}

/// `0,2-4`.
pub(super) fn cpus(text: &str) -> Result<Vec<usize>, String> {
    let wrong = || format!("`{text}` is not a list of CPUs: write 0,2-4");
    let mut cpus = Vec::new();
    for part in text.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let one = |text: &str| {
            let number = text.trim().parse::<usize>().ok();
            number.filter(|&cpu| cpu < CPUS_MAX).ok_or_else(wrong)
        };
        let (first, last) = (one(first)?, one(last)?);
        if first > last {
            return Err(wrong());
        }
        cpus.extend((first..=last).filter(|cpu| !cpus.contains(cpu)).collect::<Vec<_>>());
    }
    Ok(cpus)
}

/// Percentiles with colons between, as fio has them: `99:99.9:99.99`.
///
/// # Errors
/// What is wrong with it.
pub fn percentile_list(text: &str) -> Result<Vec<f64>, String> {
    let wrong = || format!("`{text}` is not a list of percentiles: write 99:99.9:99.99");
    let mut list = Vec::new();
    for part in text.split(':') {
        let value: f64 = part.trim().parse().map_err(|_| wrong())?;
        if !(value > 0.0 && value <= 100.0) {
            return Err(format!(
                "a percentile is more than 0 and at most 100, and `{part}` is not"
            ));
        }
        list.push(value);
    }
    if list.len() > PERCENTILES_MAX {
        return Err(format!("at most {PERCENTILES_MAX} percentiles"));
    }
    list.sort_by(f64::total_cmp);
    list.dedup();
    Ok(list)
}

/// `filename` names several files with colons between; `\:` is a colon in a name.
pub(super) fn filenames(text: &str) -> Result<Vec<String>, String> {
    let mut names = vec![String::new()];
    let mut letters = text.chars().peekable();
    while let Some(letter) = letters.next() {
        let name = names.last_mut().expect("there is always a last one");
        match letter {
            '\\' if letters.next_if_eq(&':').is_some() => name.push(':'),
            ':' => names.push(String::new()),
            _ => name.push(letter),
        }
    }
    if names.iter().any(String::is_empty) {
        return Err(format!("`{text}` has an empty name: write NAME or NAME:NAME"));
    }
    Ok(names)
}
