//! The work of the acceleration framework: as a table for users, as JSON for programs.

use std::collections::BTreeMap;
use std::fmt::Write as _;

use raceline_accel::{Framework, OpCode, OpStatistics, Statistics};
use serde::Serialize;

use crate::report::{binary_bytes, grouped};

/// The work since some moment, by operation; operations without requests are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(transparent)]
pub struct Acceleration(BTreeMap<&'static str, OperationUse>);

/// The work for one operation.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub struct OperationUse {
    /// The engine that does it.
    pub engine: &'static str,
    /// Number of operations that succeeded.
    pub executed: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Number of operations that failed.
    pub failed: u64,
    /// Operations, or remainders of them, that software did although an engine is assigned.
    pub fallbacks: u64,
}

impl Acceleration {
    /// The work of `framework` since its statistics were `earlier`.
    #[must_use]
    pub fn since(framework: &Framework, earlier: &Statistics) -> Self {
        let now = framework.statistics();
        let uses = framework
            .assignments()
            .into_iter()
            .filter_map(|(code, engine)| used(code, engine, now.of(code), earlier.of(code)));
        Self(uses.collect())
    }

    /// True if nothing was done.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The work for an operation; `None` if there was none.
    #[must_use]
    pub fn of(&self, code: OpCode) -> Option<&OperationUse> {
        self.0.get(code.name())
    }

    /// For users, several lines; empty if nothing was done.
    #[must_use]
    pub fn to_table(&self) -> String {
        let mut out = String::new();
        if !self.is_empty() {
            let _ = writeln!(
                out,
                "{:<12} {:<12} {:>13} {:>10} {:>8} {:>12}",
                "operation", "engine", "done", "bytes", "failed", "in software"
            );
        }
        for (name, done) in &self.0 {
            let _ = writeln!(
                out,
                "{name:<12} {:<12} {:>13} {:>10} {:>8} {:>12}",
                done.engine,
                grouped(done.executed),
                binary_bytes(done.bytes),
                grouped(done.failed),
                if done.engine == raceline_accel::SOFTWARE {
                    "-".to_owned()
                } else {
                    grouped(done.fallbacks)
                },
            );
        }
        out
    }
}

fn used(
    code: OpCode,
    engine: &'static str,
    now: &OpStatistics,
    earlier: &OpStatistics,
) -> Option<(&'static str, OperationUse)> {
    let done = OperationUse {
        engine,
        executed: now.executed.saturating_sub(earlier.executed),
        bytes: now.bytes.saturating_sub(earlier.bytes),
        failed: now.failed.saturating_sub(earlier.failed),
        fallbacks: now.fallbacks.saturating_sub(earlier.fallbacks),
    };
    (done.executed + done.failed > 0).then_some((code.name(), done))
}

#[cfg(test)]
mod tests {
    use raceline_accel::{ChannelConfig, Injection, InjectionKind};

    use super::*;

    #[test]
    fn what_was_done_since_then() {
        let framework = Framework::software();
        let config = ChannelConfig::default();
        let mut channel = framework.open_channel::<Vec<u8>, Vec<u8>>(&config).unwrap();
        assert!(Acceleration::since(&framework, &Statistics::default()).is_empty());
        assert_eq!(Acceleration::default().to_table(), "");
        channel.crc32c_now(&[1; 100]).unwrap();
        let earlier = framework.statistics();
        channel.crc32c_now(&[1; 4096]).unwrap();
        let fail = Injection { kind: InjectionKind::Fail, interval: 1, count: 1 };
        framework.inject(OpCode::Crc32c, Some(fail));
        channel.crc32c_now(&[1; 4096]).unwrap_err();
        let done = Acceleration::since(&framework, &earlier);
        let expected =
            OperationUse { engine: "software", executed: 1, bytes: 4096, failed: 1, fallbacks: 0 };
        assert_eq!(done.of(OpCode::Crc32c), Some(&expected));
        assert_eq!(done.of(OpCode::Copy), None);
        let table = done.to_table();
        let lines: Vec<&str> = table.lines().collect();
        assert_eq!(lines.len(), 2, "{table}");
        assert_eq!(lines[0].chars().count(), lines[1].chars().count(), "{table}");
        assert!(lines[1].contains("4 KiB"), "{table}");
        assert_eq!(
            serde_json::to_string(&done).unwrap(),
            "{\"crc32c\":{\"engine\":\"software\",\"executed\":1,\"bytes\":4096,\"failed\":1,\
             \"fallbacks\":0}}"
        );
    }
}
