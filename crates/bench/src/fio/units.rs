//! fio's numbers: sizes, times, lists.

use std::time::Duration;

/// Most percentiles in a list, as in fio.
const PERCENTILES_MAX: usize = 20;
/// Number of CPUs that a list can name.
const CPUS_MAX: usize = 1024;
/// Longest time: a year.
const TIME_MAX: Duration = Duration::from_secs(365 * 86_400);

/// The meaning of `k`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum KbBase {
    /// 1024, and `kib` is 1000: fio's default.
    Binary,
    /// 1000, and `kib` is 1024.
    Decimal,
}

/// A number with an optional suffix, as fio reads it: `k`, `ki` and `kb` mean the same, and only `kib` has
/// the other base. A text that fio reads as another value than it suggests is refused.
pub(super) fn size(text: &str, base: KbBase) -> Result<u64, String> {
    let lower = text.to_ascii_lowercase();
    if let Some(hex) = lower.strip_prefix("0x") {
        return u64::from_str_radix(hex, 16).map_err(|_| not_a_size(text));
    }
    let (number, suffix) = digits(&lower);
    let number: u64 = number.parse().map_err(|_| not_a_size(text))?;
    let mut letters = suffix.chars();
    let power = match letters.next() {
        None => 0,
        Some('b') if suffix == "b" => 0,
        Some(letter) => {
            let power = "kmgtp".find(letter).and_then(|power| u32::try_from(power).ok());
            power.ok_or_else(|| not_a_size(text))? + 1
        }
    };
    let other = match letters.as_str() {
        "" | "b" | "i" => false,
        "ib" => true,
        _ => return Err(not_a_size(text)),
    };
    let factor: u64 = if (base == KbBase::Binary) == other { 1000 } else { 1024 };
    let bytes = factor.checked_pow(power).and_then(|factor| number.checked_mul(factor));
    bytes.ok_or_else(|| format!("`{text}` is more than 2^64 bytes"))
}

/// The digits at the beginning, and the rest.
fn digits(text: &str) -> (&str, &str) {
    text.split_at(text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit()).len())
}

/// Why a text is not a number of bytes, and what to write instead.
fn not_a_size(text: &str) -> String {
    let (number, rest) = digits(text);
    if text.starts_with('(') {
        return format!("`{text}`: an expression is not computed here: write its result");
    }
    match rest.chars().next() {
        Some('.') => format!(
            "`{text}`: a size has no fraction, and fio would take it for {number}: write a smaller unit"
        ),
        Some('%') => {
            format!("`{text}`: only size may be a percentage here: write a number of bytes")
        }
        Some('z') if rest == "z" => {
            format!("`{text}`: zones are not supported: write a number of bytes")
        }
        _ => format!("`{text}` is not a size: write 4096, 4k, 1m, 2g or 0x1000"),
    }
}

/// A time; without a unit it is in seconds.
pub(super) fn time(text: &str) -> Result<Duration, String> {
    let wrong = || {
        format!(
            "`{text}` is not a time: write 90 (seconds), 90s, 500ms, 500us, 2m, 1h or 1d, one number \
             with one unit; fio takes a unit that it does not know for microseconds"
        )
    };
    let (number, unit) = digits(text);
    let number: u64 = number.parse().map_err(|_| wrong())?;
    let us: u64 = match unit.to_ascii_lowercase().as_str() {
        "us" | "usec" => 1,
        "ms" | "msec" => 1_000,
        "" | "s" => 1_000_000,
        "m" => 60_000_000,
        "h" => 3_600_000_000,
        "d" => 86_400_000_000,
        _ => return Err(wrong()),
    };
    let time = number.checked_mul(us).map(Duration::from_micros);
    time.filter(|&time| time <= TIME_MAX).ok_or_else(|| "at most a year".to_owned())
}

/// A number within bounds; all of fio's numbers may have the suffixes of sizes.
pub(super) fn number<T: TryFrom<u64>>(
    text: &str,
    least: u64,
    most: u64,
    base: KbBase,
) -> Result<T, String> {
    let number = size(text, base).ok().filter(|number| (least..=most).contains(number));
    number
        .and_then(|number| T::try_from(number).ok())
        .ok_or_else(|| format!("`{text}` is not a number from {least} to {most}"))
}

/// The values of a key that fio has for reads, writes and trims separately: `4k` is for all of them,
/// `4k,8k` for reads and for the others, and an omitted value (`,8k`) stays as it was. Gives the values of
/// reads and of writes.
pub(super) fn sides(
    text: &str,
    parse: &dyn Fn(&str) -> Result<u64, String>,
) -> Result<[Option<u64>; 2], String> {
    let mut values = [None; 3];
    let (mut rest, mut filled) = (Some(text), 0);
    while let Some(part) = rest {
        // fio also accepts a colon or a minus, which in front is a sign: `4k-8k` is not a range.
        let separators = if part.starts_with('-') { &[',', ':'][..] } else { &[',', ':', '-'] };
        let found = separators.iter().find_map(|&separator| part.split_once(separator));
        let (first, after) = found.map_or((part, None), |(first, after)| (first, Some(after)));
        let value = values.get_mut(filled).ok_or_else(|| {
            format!("`{text}` has more than three values: write READS,WRITES,TRIMS")
        })?;
        *value = if first.is_empty() { None } else { Some(parse(first)?) };
        (rest, filled) = (after, filled + 1);
    }
    if values == [None; 3] {
        return Err("a value is needed".to_owned());
    }
    let writes = if filled == 1 { values[0] } else { values[1] };
    Ok([values[0], writes])
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

/// Percentiles separated by colons, as in fio: `99:99.9:99.99`.
///
/// # Errors
/// When it is not such a list; the error says why.
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

/// `filename` names several files, separated by colons; `\:` is a colon in a name. As in fio, two colons
/// count as one.
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
    let names = names.iter().map(|name| name.trim().to_owned());
    let names: Vec<String> = names.filter(|name| !name.is_empty()).collect();
    if names.is_empty() { Err("a value is needed".to_owned()) } else { Ok(names) }
}
