//! Errors as JSON-RPC carries them: SPDK's codes and texts, and beside them what was wrong.

use std::borrow::Cow;
use std::fmt;

use serde::Serialize;

/// Codes of JSON-RPC 2.0, and SPDK's own.
pub mod code {
    /// The bytes are not JSON.
    pub const PARSE_ERROR: i32 = -32700;
    /// The JSON is not a request.
    pub const INVALID_REQUEST: i32 = -32600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i32 = -32601;
    /// A parameter is missing, unknown, of the wrong type, or out of range.
    pub const INVALID_PARAMS: i32 = -32602;
    /// The method failed.
    pub const INTERNAL_ERROR: i32 = -32603;
    /// The method is not allowed in this state: before or after framework_start_init.
    pub const INVALID_STATE: i32 = -1;
}

/// Why a call failed. `message` is SPDK's text, word for word where SPDK has one; `data` is the detail that
/// SPDK only logs.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct RpcError {
    /// One of [`code`], or a negative errno.
    pub code: i32,
    /// SPDK's text.
    pub message: Cow<'static, str>,
    /// What was wrong, where, and what to do.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub data: Option<String>,
}

impl RpcError {
    /// An error with a code and a text.
    pub fn new(code: i32, message: impl Into<Cow<'static, str>>) -> Self {
        Self { code, message: message.into(), data: None }
    }

    /// The same with a detail.
    #[must_use]
    pub fn because(mut self, detail: impl fmt::Display) -> Self {
        self.data = Some(detail.to_string());
        self
    }

    /// The same with a further detail after the ones it has.
    #[must_use]
    pub fn also(self, detail: impl fmt::Display) -> Self {
        let text = match &self.data {
            Some(data) => format!("{data}; {detail}"),
            None => detail.to_string(),
        };
        self.because(text)
    }

    /// SPDK's answer to any parameter that it does not accept.
    pub fn invalid_params(detail: impl fmt::Display) -> Self {
        Self::new(code::INVALID_PARAMS, "Invalid parameters").because(detail)
    }

    /// A parameter that SPDK has and this program does not: never ignored, always named.
    #[must_use]
    pub fn unsupported(parameter: &str) -> Self {
        Self::new(code::INVALID_PARAMS, format!("parameter {parameter} is not supported"))
    }

    /// A failure with its own text.
    pub fn internal(message: impl Into<Cow<'static, str>>) -> Self {
        Self::new(code::INTERNAL_ERROR, message)
    }

    /// An errno, as SPDK gives it: its negative as code, its text as message.
    #[must_use]
    pub fn errno(errno: i32) -> Self {
        let text = std::io::Error::from_raw_os_error(errno).to_string();
        let text = text.split(" (os error").next().unwrap_or_default().to_owned();
        Self::new(-errno, text)
    }
}

impl fmt::Display for RpcError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} ({})", self.message, self.code)?;
        match &self.data {
            Some(detail) => write!(f, ": {detail}"),
            None => Ok(()),
        }
    }
}

impl std::error::Error for RpcError {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_errno_reads_as_in_c() {
        let error = RpcError::errno(libc::ENODEV);
        assert_eq!((error.code, &*error.message), (-19, "No such device"));
    }

    #[test]
    fn detail_is_beside_the_text_that_clients_know() {
        let error = RpcError::invalid_params("nqn is missing");
        let text = serde_json::to_string(&error).unwrap();
        assert_eq!(
            text,
            r#"{"code":-32602,"message":"Invalid parameters","data":"nqn is missing"}"#
        );
    }
}
