//! The configuration file: SPDK's JSON form, the data needed to continue the log, and a checksum.
//!
//! ```json
//! {"raceline":{"format":1,"state":"...","sequence":42,"identity":{}},
//! "subsystems":[
//! {"subsystem":"nvmf","config":[
//! {"method":"nvmf_create_transport","params":{"trtype":"TCP"}}]}],
//! "checksum":"crc32c:1a2b3c4d"}
//! ```
//!
//! The checksum, alone on the last line, covers all lines before it. Programs that read SPDK's
//! form look at `subsystems` only.

use raceline_crc32c::crc32c;
use serde::{Deserialize, Serialize};
use serde_json::Value;
use uuid::Uuid;

use super::{Configuration, SubsystemConfig};

/// The newest format that this program reads, and the one that it writes.
pub(super) const DOCUMENT_FORMAT: u32 = 1;

/// The last line up to the checksum.
const SUM_PREFIX: &str = "\"checksum\":\"crc32c:";
/// The last line after the checksum.
const SUM_SUFFIX: &str = "\"}\n";

/// A configuration, and the number of the last change in it.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Document {
    /// Names the state, so that files of two states are not mixed.
    pub(super) state: Uuid,
    /// The last change that it contains.
    pub(super) sequence: u64,
    /// The configuration.
    pub(super) configuration: Configuration,
}

#[derive(Serialize, Deserialize)]
struct Header {
    format: u32,
    state: Uuid,
    sequence: u64,
    #[serde(default)]
    identity: Value,
}

#[derive(Deserialize)]
struct Whole {
    raceline: Header,
    subsystems: Vec<SubsystemConfig>,
}

/// Why a document cannot be used.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum DocumentError {
    /// The file is damaged at this byte.
    Damaged {
        /// Offset of the damage.
        offset: usize,
        /// What is wrong there.
        problem: String,
    },
    /// It has this format, which is newer than this program.
    Version(u32),
}

impl Document {
    /// The file's bytes: one method to a line, so that line-based tools show what changed.
    pub(super) fn encode(&self) -> Vec<u8> {
        let header = Header {
            format: DOCUMENT_FORMAT,
            state: self.state,
            sequence: self.sequence,
            identity: self.configuration.identity.clone(),
        };
        let mut text = format!("{{\"raceline\":{},\n\"subsystems\":[", json(&header));
        for (index, subsystem) in self.configuration.subsystems.iter().enumerate() {
            text.push_str(if index == 0 { "\n" } else { ",\n" });
            let name = json(&subsystem.subsystem);
            text.push_str(&format!("{{\"subsystem\":{name},\"config\":["));
            for (index, call) in subsystem.config.iter().enumerate() {
                text.push_str(if index == 0 { "\n" } else { ",\n" });
                text.push_str(&json(call));
            }
            text.push_str("]}");
        }
        text.push_str("],\n");
        let sum = crc32c(text.as_bytes());
        text.push_str(&format!("{SUM_PREFIX}{sum:08x}{SUM_SUFFIX}"));
        text.into_bytes()
    }

    /// Reads a file's bytes.
    pub(super) fn decode(bytes: &[u8]) -> Result<Self, DocumentError> {
        let damaged = |offset, problem: String| DocumentError::Damaged { offset, problem };
        let whole: Result<Whole, _> = serde_json::from_slice(bytes);
        // The text first: its parser knows the place of an error, the checksum does not.
        let whole = whole.map_err(|error| {
            if let Some(format) = newer_format(bytes) {
                return DocumentError::Version(format);
            }
            damaged(offset_of(bytes, error.line(), error.column()), error.to_string())
        })?;
        if whole.raceline.format != DOCUMENT_FORMAT {
            return Err(DocumentError::Version(whole.raceline.format));
        }
        let line_bytes = SUM_PREFIX.len() + 8 + SUM_SUFFIX.len();
        let (covered, line) = bytes.split_at(bytes.len().saturating_sub(line_bytes));
        let sum = crc32c(covered);
        if line != format!("{SUM_PREFIX}{sum:08x}{SUM_SUFFIX}").as_bytes() {
            let problem = format!(
                "the checksum on the last line is not that of the lines before \
                                   it ({sum:08x}): something has changed the file"
            );
            return Err(damaged(covered.len(), problem));
        }
        let Whole { raceline: Header { state, sequence, identity, .. }, subsystems } = whole;
        Ok(Self { state, sequence, configuration: Configuration { subsystems, identity } })
    }
}

/// The newer format that a JSON text names, if its form is unknown.
fn newer_format(bytes: &[u8]) -> Option<u32> {
    let value: Value = serde_json::from_slice(bytes).ok()?;
    let format = value.get("raceline")?.get("format")?.as_u64()?;
    (format > u64::from(DOCUMENT_FORMAT)).then(|| u32::try_from(format).unwrap_or(u32::MAX))
}

/// The offset of a line and column, both from 1 (a column of 0 is the end of the line before).
fn offset_of(bytes: &[u8], line: usize, column: usize) -> usize {
    let before = bytes.split_inclusive(|byte| *byte == b'\n').take(line.saturating_sub(1));
    before.map(<[u8]>::len).sum::<usize>() + column.saturating_sub(1)
}

/// JSON on one line. Serialising our own types and `Value`s cannot fail: all keys are strings.
fn json(value: &impl Serialize) -> String {
    serde_json::to_string(value).unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::super::Call;
    use super::*;

    fn document() -> Document {
        let nvmf = vec![
            Call {
                method: "nvmf_create_transport".into(),
                params: Some(json!({ "trtype": "TCP" })),
            },
            Call { method: "nvmf_set_config".into(), params: None },
        ];
        let subsystems = vec![
            SubsystemConfig { subsystem: "bdev".into(), config: Vec::new() },
            SubsystemConfig { subsystem: "nvmf".into(), config: nvmf },
        ];
        let configuration =
            Configuration { subsystems, identity: json!({ "generation": 7, "odd": "\u{1}\n\"" }) };
        Document { state: Uuid::from_u128(5), sequence: 42, configuration }
    }

    #[test]
    fn a_document_is_read_as_it_was_written() {
        let bytes = document().encode();
        assert_eq!(Document::decode(&bytes), Ok(document()));
        let value: Value = serde_json::from_slice(&bytes).unwrap();
        assert_eq!(value["subsystems"][1]["config"][0]["params"]["trtype"], "TCP");
    }

    #[test]
    fn every_flipped_byte_and_every_cut_is_found() {
        let good = document().encode();
        for offset in 0..good.len() {
            let mut bytes = good.clone();
            bytes[offset] ^= 0x04;
            assert!(Document::decode(&bytes).is_err(), "byte {offset}");
            assert!(Document::decode(&good[..offset]).is_err(), "cut at {offset}");
        }
    }

    #[test]
    fn the_place_of_a_fault_is_named() {
        let mut bytes = document().encode();
        let at = bytes.windows(6).position(|window| window == b"trtype").unwrap() - 1;
        bytes[at] = b'\'';
        let Err(DocumentError::Damaged { offset, .. }) = Document::decode(&bytes) else {
            panic!("accepted");
        };
        assert_eq!(offset, at);
    }

    #[test]
    fn a_newer_format_says_so() {
        let text = r#"{"raceline":{"format":2,"else":1},"all":"different"}"#;
        assert_eq!(Document::decode(text.as_bytes()), Err(DocumentError::Version(2)));
    }

    #[test]
    fn a_subsystem_without_configuration_may_be_null() {
        let subsystem: SubsystemConfig =
            serde_json::from_str(r#"{"subsystem":"scsi","config":null}"#).unwrap();
        assert!(subsystem.config.is_empty());
    }
}
