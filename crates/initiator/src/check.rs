//! What a target reports with CHECK CONDITION: sense data in both formats (SPC-5, 4.5).

use std::fmt;

/// Sense key of a unit attention.
const UNIT_ATTENTION: u8 = 0x6;
/// Sense key of a command that the target has given up.
const ABORTED_COMMAND: u8 = 0xb;

/// Sense key and code of a CHECK CONDITION.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct CheckCondition {
    /// Sense key, 0 to 15.
    pub key: u8,
    /// Additional sense code.
    pub asc: u8,
    /// Its qualifier.
    pub ascq: u8,
    /// INFORMATION, where the target gives it.
    pub information: Option<u64>,
}

impl CheckCondition {
    /// Reads sense data; those of a format that is not known, or that are too short, are a sense key of 0.
    #[must_use]
    pub fn parse(sense: &[u8]) -> Self {
        let at = |index: usize| sense.get(index).copied().unwrap_or(0);
        match at(0) & 0x7f {
            0x70 | 0x71 => Self {
                key: at(2) & 0xf,
                asc: at(12),
                ascq: at(13),
                information: (at(0) & 0x80 != 0)
                    .then(|| sense.get(3..7)?.first_chunk().map(|it| u32::from_be_bytes(*it)))
                    .flatten()
                    .map(u64::from),
            },
            0x72 | 0x73 => {
                Self { key: at(1) & 0xf, asc: at(2), ascq: at(3), information: described(sense) }
            }
            _ => Self { key: 0, asc: 0, ascq: 0, information: None },
        }
    }

    /// Whether something has changed, and the command was not executed (SPC-5, 6.48; SAM-5, 5.14).
    #[must_use]
    pub fn is_unit_attention(&self) -> bool {
        self.key == UNIT_ATTENTION
    }

    /// Whether the target has given the command up, which may be sent again.
    #[must_use]
    pub fn is_aborted(&self) -> bool {
        self.key == ABORTED_COMMAND
    }

    /// Whether the capacity of the logical unit has changed.
    #[must_use]
    pub fn is_capacity_change(&self) -> bool {
        self.is_unit_attention() && (self.asc, self.ascq) == (0x2a, 0x09)
    }

    /// Sense key and code alone.
    #[must_use]
    pub fn code(&self) -> (u8, u8, u8) {
        (self.key, self.asc, self.ascq)
    }
}

/// INFORMATION of the information descriptor (SPC-5, 4.5.2.2).
fn described(sense: &[u8]) -> Option<u64> {
    let mut rest = sense.get(8..)?;
    while let [kind, len, ..] = *rest {
        let (descriptor, next) = rest.split_at_checked(2 + usize::from(len))?;
        if kind == 0 {
            return descriptor.get(4..12)?.first_chunk().map(|it| u64::from_be_bytes(*it));
        }
        rest = next;
    }
    None
}

impl fmt::Display for CheckCondition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let key = match self.key {
            0x0 => "no sense",
            0x1 => "recovered error",
            0x2 => "not ready",
            0x3 => "medium error",
            0x4 => "hardware error",
            0x5 => "illegal request",
            UNIT_ATTENTION => "unit attention",
            0x7 => "data protect",
            0x8 => "blank check",
            ABORTED_COMMAND => "aborted command",
            0xd => "volume overflow",
            0xe => "miscompare",
            _ => "an unknown sense key",
        };
        let about = match (self.asc, self.ascq) {
            (0x20, 0x00) => ": there is no such command",
            (0x21, 0x00) => ": the blocks are beyond the end of the logical unit",
            (0x24, 0x00) => ": a field of the command is not supported",
            (0x25, 0x00) => ": there is no such logical unit",
            (0x27, _) => ": the logical unit is write protected",
            (0x3a, _) => ": there is no medium",
            _ => "",
        };
        write!(f, "{key}{about} (sense {:x}/{:02x}/{:02x})", self.key, self.asc, self.ascq)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_formats_are_read() {
        let mut fixed = [0; 18];
        (fixed[0], fixed[2], fixed[6], fixed[12], fixed[13]) = (0xf0, 0x0e, 9, 0x1d, 1);
        let check = CheckCondition::parse(&fixed);
        assert_eq!((check.code(), check.information), ((0xe, 0x1d, 1), Some(9)));
        let mut described = vec![0x72, 0x05, 0x21, 0x00, 0, 0, 0, 16];
        described.extend([2, 2, 0, 0]); // another descriptor
        described.extend([0, 10, 0x80, 0, 0, 0, 0, 1, 0, 0, 0, 2]);
        let check = CheckCondition::parse(&described);
        assert_eq!((check.code(), check.information), ((5, 0x21, 0), Some((1 << 32) + 2)));
        assert!(check.to_string().contains("beyond the end"), "{check}");
    }

    #[test]
    fn short_and_odd_sense_never_panics() {
        for sense in [&[][..], &[0x72], &[0x70, 0, 6], &[0x72, 6, 0x2a, 9, 0, 0, 0, 9, 0, 255]] {
            let check = CheckCondition::parse(sense);
            assert_eq!(check.information, None);
        }
        assert!(CheckCondition::parse(&[0x72, 6, 0x2a, 9]).is_capacity_change());
        assert_eq!(CheckCondition::parse(&[0x55; 20]).code(), (0, 0, 0));
    }
}
