//! A configuration as users write it: SPDK's JSON with comments and batches, read and checked whole before
//! the first call is made.
//!
//! The JSON is what SPDK's parser accepts: comments between any two tokens, no trailing commas. Three
//! things differ. A byte order mark at the beginning is skipped. A comment to the end of the line may be
//! the last line without a line end. Text after the end of the object is refused, where SPDK ignores it.

mod comments;
mod look;

use serde::Deserialize;

pub use comments::{UnfinishedComment, blank_comments};
pub use look::{Looked, look, summary};

use crate::duplicates::without_duplicates;
use crate::state::SubsystemConfig;

/// A text that is no configuration.
#[derive(Debug, thiserror::Error)]
pub enum FormError {
    /// A comment does not end.
    #[error(transparent)]
    Comment(#[from] UnfinishedComment),
    /// It is not JSON, or has another form.
    #[error("{0}")]
    Json(#[from] serde_json::Error),
}

/// Reads a configuration in SPDK's form. A batch, which is a list in place of a call, counts as its calls,
/// one by one. Members beside `subsystems` are ignored.
///
/// # Errors
/// When it has another form; the error gives the line and column.
pub fn parse(text: &[u8]) -> Result<Vec<SubsystemConfig>, FormError> {
    #[derive(Deserialize)]
    struct Whole {
        subsystems: Vec<SubsystemConfig>,
    }
    let text = blank_comments(text)?;
    without_duplicates(&text)?;
    Ok(serde_json::from_slice::<Whole>(&text)?.subsystems)
}

/// Reads the configuration of one part, as `save_subsystem_config` writes it.
///
/// # Errors
/// As [`parse`].
pub fn parse_part(text: &[u8]) -> Result<SubsystemConfig, FormError> {
    let text = blank_comments(text)?;
    without_duplicates(&text)?;
    Ok(serde_json::from_slice(&text)?)
}

#[cfg(test)]
mod tests;
