//! What a controller and an agent say to each other: one JSON object in each line.

use std::io::{self, BufRead, ErrorKind, Read as _};
use std::net::IpAddr;

use raceline_bench::Latencies;
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use super::load::Load;

/// The version of these messages. Both sides must have the same.
pub const PROTOCOL: u32 = 2;
/// Bytes of a controller's line at most.
pub const REQUEST_BYTES_MAX: u64 = 64 << 10;
/// Bytes of an agent's line at most: two histograms of latencies have about 20 000 buckets, and those of the slices
/// hold the same commands again.
pub const ANSWER_BYTES_MAX: u64 = 16 << 20;
/// An agent records in this many slices of the same length.
pub const SLICES: u32 = 20;

/// From the controller.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Request {
    /// The first.
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The controller's version of Raceline.
        version: String,
        /// The target of the loads to come: the agent says by which interface it reaches it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        target: Option<IpAddr>,
        /// The secret that a listening agent may demand.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        token: Option<String>,
    },
    /// What time is it?
    Clock {
        /// Comes back in the answer.
        number: u32,
    },
    /// Connect to the target, and be ready to start.
    Prepare {
        /// What to do.
        load: Box<Load>,
    },
    /// Run the load once.
    Start {
        /// When to begin, by the agent's clock, in nanoseconds.
        at_ns: u64,
    },
    /// End the run now. It takes no answer of its own.
    Stop {},
}

/// From the agent.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(tag = "message", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Answer {
    /// To [`Request::Hello`].
    Hello {
        /// [`PROTOCOL`].
        protocol: u32,
        /// The agent's version of Raceline.
        version: String,
        /// The agent's machine, as [`crate::environment::read`] gives it for a record.
        environment: serde_json::Value,
    },
    /// To [`Request::Clock`].
    Clock {
        /// That of the request.
        number: u32,
        /// Nanoseconds by the agent's clock, which begins with the agent.
        agent_ns: u64,
    },
    /// To [`Request::Prepare`]: all queues are connected.
    Ready {},
    /// To [`Request::Start`].
    Result {
        /// What was measured.
        outcome: Box<AgentOutcome>,
    },
    /// To any request that failed.
    Failed {
        /// Why.
        why: String,
    },
}

/// The measurements of one agent in one run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AgentOutcome {
    /// The end of the recording, in nanoseconds after its begin as the controller set it.
    pub measured_ns: u64,
    /// How long after that begin the agent's last queue took up its work; 0 for an agent in time.
    pub late_ns: u64,
    /// Length of a slice in nanoseconds.
    pub slice_ns: u64,
    /// The latencies by slice, from the begin of the recording on; without the last ones if they are empty.
    pub slices: Vec<Slice>,
    /// Latencies of reads.
    pub reads: Histogram,
    /// Latencies of writes.
    pub writes: Histogram,
    /// Commands that were due and not issued before the end (open loop).
    pub missed: u64,
    /// CPU time of the agent in user mode, in nanoseconds.
    pub user_ns: u64,
    /// CPU time of the agent in the kernel, in nanoseconds.
    pub system_ns: u64,
    /// PDUs that the agent sent in each second of the run, ramp included: one for each read.
    pub pdus_by_second: Vec<u64>,
}

/// The latencies of a part of the recording.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Slice {
    /// Latencies of reads.
    pub reads: Histogram,
    /// Latencies of writes.
    pub writes: Histogram,
}

/// Latencies, as they travel.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Histogram {
    /// Upper bounds in nanoseconds and numbers of commands, ascending, without empty ones.
    pub buckets: Vec<(u64, u64)>,
    /// The exact mean in nanoseconds.
    pub mean_ns: f64,
    /// The exact maximum in nanoseconds.
    pub max_ns: u64,
}

impl Histogram {
    /// What was recorded.
    #[must_use]
    pub fn of(latencies: &Latencies) -> Self {
        Self {
            buckets: latencies.buckets(),
            mean_ns: latencies.mean_ns(),
            max_ns: latencies.max_ns(),
        }
    }

    /// Number of commands.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.buckets.iter().fold(0, |sum: u64, &(_, count)| sum.saturating_add(count))
    }

    /// Adds all commands to a record, each at the upper bound of its bucket, which differs by less than 0.1 %.
    pub fn add_to(&self, latencies: &mut Latencies) {
        for &(bound_ns, count) in &self.buckets {
            latencies.record_ns(bound_ns.min(self.max_ns), count);
        }
    }

    /// Whether it can have been recorded.
    fn is_sound(&self) -> bool {
        let ascending = self.buckets.windows(2).all(|pair| pair[0].0 < pair[1].0);
        let filled = self.buckets.iter().all(|&(_, count)| count > 0 && count < 1 << 48);
        ascending && filled && self.mean_ns.is_finite() && self.mean_ns >= 0.0
    }
}

impl AgentOutcome {
    /// Whether the numbers can have been measured.
    #[must_use]
    pub fn is_sound(&self) -> bool {
        let slices = || self.slices.iter().flat_map(|slice| [&slice.reads, &slice.writes]);
        let sound =
            [&self.reads, &self.writes].into_iter().chain(slices()).all(Histogram::is_sound);
        let count = slices().fold(0, |sum: u64, one| sum.saturating_add(one.count()));
        let whole = self.reads.count().saturating_add(self.writes.count());
        let few = self.slices.len() <= SLICES as usize + 1;
        sound && few && count == whole && self.measured_ns > 0 && self.slice_ns > 0
    }
}

/// Reads one message; `None` at the end of the stream.
///
/// # Errors
/// When the line is longer than `bytes_max`, is not complete, or is no such message.
pub fn read<T: DeserializeOwned>(
    reader: &mut impl BufRead,
    bytes_max: u64,
) -> io::Result<Option<T>> {
    let mut line = Vec::new();
    reader.take(bytes_max).read_until(b'\n', &mut line)?;
    let invalid = |text: String| io::Error::new(ErrorKind::InvalidData, text);
    match line.last() {
        None => Ok(None),
        Some(b'\n') => serde_json::from_slice(&line)
            .map(Some)
            .map_err(|error| invalid(format!("not a message of this protocol: {error}"))),
        Some(_) if line.len() as u64 == bytes_max => {
            Err(invalid(format!("a line of more than {bytes_max} bytes")))
        }
        Some(_) => Err(invalid("the last line is not complete".to_owned())),
    }
}

/// Writes one message.
///
/// # Errors
/// When the stream is gone.
pub fn write(writer: &mut impl io::Write, message: &impl Serialize) -> io::Result<()> {
    let mut line = serde_json::to_vec(message)?;
    line.push(b'\n');
    writer.write_all(&line)?;
    writer.flush()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests() -> Vec<Request> {
        vec![
            Request::Hello {
                protocol: 1,
                version: "0.1.0".to_owned(),
                target: Some([127, 0, 0, 1].into()),
                token: None,
            },
            Request::Clock { number: 3 },
            Request::Prepare {
                load: Box::new(Load::new(
                    "127.0.0.1:4420".parse().unwrap(),
                    "nqn.2026-01.io.raceline:x",
                )),
            },
            Request::Start { at_ns: 17 },
            Request::Stop {},
        ]
    }

    #[test]
    fn messages_round_trip() {
        let mut bytes = Vec::new();
        requests().iter().for_each(|request| write(&mut bytes, request).unwrap());
        let mut reader = &bytes[..];
        for request in requests() {
            assert_eq!(read(&mut reader, REQUEST_BYTES_MAX).unwrap(), Some(request));
        }
        assert_eq!(read::<Request>(&mut reader, REQUEST_BYTES_MAX).unwrap(), None);
    }

    #[test]
    fn bad_lines_are_errors() {
        let error = |bytes: &[u8]| read::<Request>(&mut &bytes[..], 100).unwrap_err().to_string();
        assert!(error(b"{}\n").contains("not a message"));
        assert!(error(b"\xff\xfe\n").contains("not a message"));
        assert!(error(br#"{"message":"clock"#).contains("not complete"));
        assert!(error(&[b' '; 500]).contains("more than 100 bytes"));
        assert!(error(b"{\"message\":\"clock\",\"number\":1,\"more\":2}\n").contains("more"));
        assert!(error(b"{\"message\":\"start\",\"at_ns\":-1}\n").contains("not a message"));
    }

    /// Every message with each of its bytes changed, dropped, or cut off there is read or refused, without a panic.
    #[test]
    fn spoiled_messages_never_panic() {
        for request in requests() {
            let line = serde_json::to_vec(&request).unwrap();
            for at in 0..line.len() {
                for byte in [0, b'"', b'{', b'9', b'-', 0xff, b'\n'] {
                    let mut spoiled = line.clone();
                    spoiled[at] = byte;
                    spoiled.push(b'\n');
                    if let Ok(Some(Request::Prepare { load })) =
                        read::<Request>(&mut &spoiled[..], REQUEST_BYTES_MAX)
                    {
                        drop(load.run_config());
                    }
                }
                let _ = read::<Request>(&mut &line[..at], REQUEST_BYTES_MAX);
            }
        }
    }

    #[test]
    fn histograms_that_cannot_be_are_found() {
        let sound = |buckets: &[(u64, u64)]| {
            Histogram { buckets: buckets.to_vec(), mean_ns: 1.0, max_ns: 9 }.is_sound()
        };
        assert!(sound(&[(1, 1), (2, 5)]) && sound(&[]));
        assert!(!sound(&[(2, 1), (1, 1)]) && !sound(&[(1, 0)]) && !sound(&[(1, u64::MAX)]));
        assert!(!Histogram { mean_ns: f64::NAN, ..Histogram::default() }.is_sound());
    }

    #[test]
    fn slices_hold_what_the_whole_has() {
        let of = |count| Histogram { buckets: vec![(1000, count)], mean_ns: 1000.0, max_ns: 1000 };
        let slice = |count| Slice { reads: of(count), writes: Histogram::default() };
        let outcome = |slices: &[u64]| AgentOutcome {
            measured_ns: 100,
            late_ns: 0,
            slice_ns: 10,
            slices: slices.iter().map(|&count| slice(count)).collect(),
            reads: of(6),
            writes: Histogram::default(),
            missed: 0,
            user_ns: 0,
            system_ns: 0,
            pdus_by_second: Vec::new(),
        };
        assert!(outcome(&[1, 2, 3]).is_sound());
        assert!(!outcome(&[1, 2]).is_sound(), "commands are missing");
        assert!(!outcome(&[1; 100]).is_sound(), "too many slices");
        assert!(!AgentOutcome { slice_ns: 0, ..outcome(&[6]) }.is_sound());
    }

    #[test]
    fn histograms_keep_their_percentiles() {
        let mut before = Latencies::new();
        (1..5000_u64).for_each(|us| before.record_ns(us * 1000, 3));
        let mut after = Latencies::new();
        Histogram::of(&before).add_to(&mut after);
        assert_eq!((after.count(), after.max_ns()), (before.count(), before.max_ns()));
        for percentile in [1.0, 50.0, 99.0, 99.99] {
            assert_eq!(after.percentile_ns(percentile), before.percentile_ns(percentile));
        }
    }
}
