//! Sets of CPUs as SPDK writes them: a hexadecimal mask, or a list in brackets.

/// Where SPDK's programs lock the cores that they use.
pub const LOCK_DIRECTORY: &str = "/var/tmp";

/// The greatest CPU number that a set may name, as in SPDK.
const MAX_CPU: usize = 1023;

/// Reads `0x5`, `5` (hexadecimal too), `[0,2]` or `[0-2,4]`: ascending, each once.
///
/// # Errors
/// When it is neither, or names no CPU.
pub fn parse_cores(text: &str) -> Result<Vec<usize>, String> {
    let mut cores = match text.strip_prefix('[') {
        Some(rest) => {
            let list = rest.strip_suffix(']').ok_or_else(|| wrong(text))?;
            parse_list(list).ok_or_else(|| wrong(text))?
        }
        None => parse_mask(text).ok_or_else(|| wrong(text))?,
    };
    cores.sort_unstable();
    cores.dedup();
    if cores.is_empty() {
        return Err(format!("`{}` names no core", text.escape_debug()));
    }
    match cores.last() {
        Some(last) if *last > MAX_CPU => Err(format!("there is no core {last}")),
        _ => Ok(cores),
    }
}

/// A mask of cores, as SPDK prints it.
#[must_use]
pub fn mask_text(cores: &[usize]) -> String {
    let digits = cores.iter().max().map_or(1, |last| last / 4 + 1);
    let mut nibbles = vec![0_u8; digits];
    for core in cores {
        nibbles[core / 4] |= 1 << (core % 4);
    }
    nibbles
        .iter()
        .rev()
        .map(|nibble| char::from_digit((*nibble).into(), 16).unwrap_or('0'))
        .collect()
}

fn wrong(text: &str) -> String {
    format!(
        "`{}` is no set of cores: write a mask like 0x3, or a list like [0,2-4]",
        text.escape_debug()
    )
}

fn parse_list(list: &str) -> Option<Vec<usize>> {
    let number = |text: &str| {
        let text = text.trim();
        let is_number = text.bytes().all(|byte| byte.is_ascii_digit());
        text.parse().ok().filter(|number| is_number && *number <= MAX_CPU)
    };
    let mut cores = Vec::new();
    for part in list.split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last): (usize, usize) = (number(first)?, number(last)?);
        if first > last {
            return None;
        }
        cores.extend(first..=last);
    }
    Some(cores)
}

fn parse_mask(text: &str) -> Option<Vec<usize>> {
    let digits = text.strip_prefix("0x").or_else(|| text.strip_prefix("0X")).unwrap_or(text);
    if digits.is_empty() || digits.len() > MAX_CPU / 4 + 1 {
        return None;
    }
    let mut cores = Vec::new();
    for (index, digit) in digits.chars().rev().enumerate() {
        let nibble = digit.to_digit(16)?;
        cores.extend((0..4).filter(|bit| nibble >> bit & 1 == 1).map(|bit| index * 4 + bit));
    }
    Some(cores)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn masks_and_lists() {
        for (text, cores) in [
            ("0x3", vec![0, 1]),
            ("5", vec![0, 2]),
            ("F0", vec![4, 5, 6, 7]),
            ("[0,1]", vec![0, 1]),
            ("[0-2, 4]", vec![0, 1, 2, 4]),
            ("[3,1,3]", vec![1, 3]),
        ] {
            assert_eq!(parse_cores(text).unwrap(), cores, "{text}");
        }
        for text in ["", "0", "0x", "[]", "[1", "[2-1]", "[+1]", "x", "[1024]", "[0-99999999999]"] {
            assert!(parse_cores(text).is_err(), "{text}");
        }
        assert_eq!(mask_text(&[0, 2, 8]), "105");
        assert_eq!(parse_cores(&mask_text(&[7, 1023])).unwrap(), [7, 1023]);
    }
}
