//! Series that are models: what the target's CPU would spend if an adapter took some of its work.
//!
//! A model takes the measured runs of another series, and takes away what this machine was measured to spend on that
//! work: sending by TCP, copying, digests. It measures no adapter. What remains is what a target would still do: commands,
//! the device, and one call for each message.

use std::collections::BTreeMap;
use std::hint::black_box;
use std::io::{self, Read as _, Write as _};
use std::net::{TcpListener, TcpStream};
use std::time::{Duration, Instant};

use raceline_crc32c::crc32c;
use raceline_reactor::affinity::pin_to_core;

use crate::bed::{self, Bed};
use crate::experiment::{Column, Experiment, Model, Series, Work};
use crate::record::{Point, Run};
use crate::run::settings::Digest;
use crate::run::{Journal, LoadSettings, Options, RunError, merged, read};

/// How long each cost is measured.
const TIME: Duration = Duration::from_millis(150);
/// Memory to copy from: more than the caches of a core hold.
const MEMORY_BYTES: usize = 64 << 20;
/// No end of the connection waits longer for the other one.
const SILENCE: Duration = Duration::from_secs(10);

/// What this machine spends, in nanoseconds for a byte.
#[derive(Clone, Copy, Debug)]
struct Costs {
    /// Sending by TCP, without the copy and without the call itself: segments, acknowledgements, buffers.
    stack: f64,
    /// A copy of a block of this size, from memory that no cache holds.
    copy: f64,
    /// A CRC32C over a block that a cache holds.
    digest: f64,
}

impl Costs {
    /// Measures them for blocks of this size.
    fn measure(bed: &dyn Bed, cpus: &[usize], io_bytes: usize) -> io::Result<Self> {
        let (target, host) = (cpus[0], cpus[cpus.len() - 1]);
        let (copy, digest) = on_core(target, || (copy_cost(io_bytes), digest_cost(io_bytes)))?;
        let call = on_core(target, || call_cost(io_bytes))??;
        let send = send_cost(bed, target, host, io_bytes)?;
        Ok(Self { stack: (send - copy - call).max(0.0), copy, digest })
    }

    /// What is saved for each byte when this work is taken away.
    fn of(&self, work: &[Work], has_digests: bool) -> f64 {
        let one = |work: &Work| match work {
            Work::Stack => self.stack,
            Work::Copy => self.copy,
            Work::Digest if has_digests => self.digest,
            Work::Digest => 0.0,
        };
        work.iter().map(one).sum()
    }
}

/// Adds the points of all models of a column, from the runs that the record has.
pub(super) fn add(
    experiment: &Experiment,
    column: &Column,
    options: &Options<'_>,
    journal: &mut Journal<'_>,
) -> Result<(), RunError> {
    let models =
        experiment.series.iter().filter_map(|series| Some((series, series.model.as_ref()?)));
    let mut costs: Option<Costs> = None;
    for (series, model) in models {
        let Some(base) = experiment.series.iter().find(|series| series.id == model.of) else {
            continue;
        };
        let settings: LoadSettings = read(merged(experiment, base, column))?;
        let runs = lacking(&journal.record.points, series, model, column);
        if runs.is_empty() {
            continue;
        }
        let costs = match costs {
            Some(costs) => costs,
            None => {
                let io_bytes = settings.io_bytes as usize;
                let measured = Costs::measure(options.bed, &options.cpus, io_bytes);
                let measured = measured.map_err(|error| {
                    RunError::Failed(format!("what TCP costs at column {}: {error}", column.id))
                })?;
                tell(journal, column, &measured);
                *costs.insert(measured)
            }
        };
        let saved = costs.of(&model.without, settings.digest != Digest::None);
        let modelled: Vec<(String, Run)> = runs
            .iter()
            .filter_map(|run| Some((series.id.clone(), modelled(run, saved)?)))
            .collect();
        journal.stand_in(
            &series.label,
            "a model: measured runs without the measured cost of what the adapter would do",
            "No adapter was measured. The cost of talking to one, and of its limits, is not in it.",
        );
        journal.add_block(&column.id, modelled)?;
    }
    Ok(())
}

/// Runs of the base that the model has no run of yet.
fn lacking(points: &[Point], series: &Series, model: &Model, column: &Column) -> Vec<Run> {
    let of = |id: &str| points.iter().find(|point| point.series == id && point.x == column.id);
    let done = |block: u32| {
        of(&series.id).is_some_and(|point| point.runs.iter().any(|run| run.block == block))
    };
    let runs = of(&model.of).map_or(&[][..], |point| &point.runs[..]);
    runs.iter().filter(|run| !done(run.block)).cloned().collect()
}

/// Notes the costs in the record.
fn tell(journal: &mut Journal<'_>, column: &Column, costs: &Costs) {
    let Costs { stack, copy, digest } = costs;
    journal.setting(
        &format!("model costs/{}", column.id),
        format!("TCP {stack:.4}, a copy {copy:.4}, CRC32C {digest:.4} ns per byte"),
    );
}

/// A measured run without this cost; `None` if it does not say what it cost.
fn modelled(run: &Run, saved_ns_per_byte: f64) -> Option<Run> {
    let before = *run.values.get("cpu_ns_per_byte")?;
    let part = ((before - saved_ns_per_byte) / before).max(0.0);
    let mut values = BTreeMap::new();
    for metric in ["cpu_ns_per_byte", "cpu_ns_per_io", "cpu_percent_per_gbit"] {
        if let Some(value) = run.values.get(metric) {
            values.insert(metric.to_owned(), value * part);
        }
    }
    // The same work in a part of the time.
    if let Some(value) = run.values.get("iops_per_core").filter(|_| part > 0.0) {
        values.insert("iops_per_core".to_owned(), value / part);
    }
    Some(Run { values, latencies: Vec::new(), target_bound: None, ..run.clone() })
}

/// Runs `work` on a thread of its own on that CPU.
fn on_core<T: Send>(cpu: usize, work: impl FnOnce() -> T + Send) -> io::Result<T> {
    std::thread::scope(|scope| {
        let thread = scope.spawn(|| pin_to_core(cpu).map(|()| work()));
        thread.join().unwrap_or_else(|_| Err(io::Error::other("a measuring thread panicked")))
    })
}

/// Time on a CPU that this thread has had, in nanoseconds.
fn thread_ns() -> io::Result<f64> {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat")?;
    let first = text.split(' ').next().and_then(|word| word.parse().ok());
    first.ok_or_else(|| io::Error::other(format!("/proc/thread-self/schedstat says {text:?}")))
}

/// Repeats `work` on `io_bytes` each; gives CPU time for a byte.
fn per_byte(io_bytes: usize, mut work: impl FnMut() -> io::Result<()>) -> io::Result<f64> {
    let end = Instant::now() + TIME;
    work()?;
    let before = thread_ns()?;
    let mut bytes = 0;
    while Instant::now() < end || bytes == 0 {
        work()?;
        bytes += io_bytes;
    }
    Ok((thread_ns()? - before) / bytes as f64)
}

fn copy_cost(io_bytes: usize) -> f64 {
    let memory = vec![1_u8; MEMORY_BYTES];
    let mut to = vec![0_u8; io_bytes];
    let mut blocks = memory.chunks_exact(io_bytes).cycle();
    let copied = per_byte(io_bytes, || {
        if let Some(block) = blocks.next() {
            to.copy_from_slice(block);
        }
        black_box(&to);
        Ok(())
    });
    copied.unwrap_or(0.0)
}

fn digest_cost(io_bytes: usize) -> f64 {
    let block = vec![1_u8; io_bytes];
    let digested = per_byte(io_bytes, || {
        black_box(crc32c(black_box(&block)));
        Ok(())
    });
    digested.unwrap_or(0.0)
}

/// A call that hands over a block, and copies nothing.
fn call_cost(io_bytes: usize) -> io::Result<f64> {
    let block = vec![1_u8; io_bytes];
    let mut null = std::fs::File::options().write(true).open("/dev/null")?;
    per_byte(io_bytes, || null.write_all(&block))
}

/// Sending blocks by TCP over the bed, on the target's CPU, with a reader on the host's.
fn send_cost(bed: &dyn Bed, target: usize, host: usize, io_bytes: usize) -> io::Result<f64> {
    let listen = || TcpListener::bind((bed.target_addr(), 0));
    let listener = bed::in_target_ns(bed, listen)??;
    // The connection waits in the listener's queue until it is accepted.
    let mut reader = TcpStream::connect_timeout(&listener.local_addr()?, SILENCE)?;
    reader.set_read_timeout(Some(SILENCE))?;
    let (mut sender, _) = listener.accept()?;
    sender.set_write_timeout(Some(SILENCE))?;
    sender.set_nodelay(true)?;
    std::thread::scope(|scope| {
        let reading = scope.spawn(move || {
            pin_to_core(host)?;
            let mut buffer = vec![0; 1 << 20];
            while reader.read(&mut buffer)? > 0 {}
            io::Result::Ok(())
        });
        let cost = on_core(target, move || {
            let block = vec![1_u8; io_bytes];
            per_byte(io_bytes, || sender.write_all(&block))
        })?;
        let read = reading.join().unwrap_or_else(|_| Err(io::Error::other("the reader panicked")));
        read.and(cost)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bed::Loopback;

    fn run(ns_per_byte: f64) -> Run {
        let values = [
            ("cpu_ns_per_byte", ns_per_byte),
            ("cpu_ns_per_io", 8192.0 * ns_per_byte),
            ("iops", 5.0),
            ("iops_per_core", 30.0),
        ];
        Run {
            block: 3,
            values: values.map(|(name, value)| (name.to_owned(), value)).into(),
            latencies: vec![(1, 1)],
            target_bound: Some(true),
            foreign_percent: 0.0,
            stolen_percent: 0.0,
        }
    }

    #[test]
    fn a_model_scales_what_the_target_spends_and_says_nothing_of_the_rest() {
        let model = modelled(&run(0.5), 0.2).unwrap();
        assert_eq!(model.block, 3);
        assert!((model.values["cpu_ns_per_byte"] - 0.3).abs() < 1e-9);
        assert!((model.values["cpu_ns_per_io"] - 0.3 * 8192.0).abs() < 1e-6);
        assert!((model.values["iops_per_core"] - 50.0).abs() < 1e-9);
        assert!(!model.values.contains_key("iops") && model.latencies.is_empty());
        // What costs less than what is taken away costs nothing, and never less.
        assert_eq!(modelled(&run(0.1), 0.2).unwrap().values["cpu_ns_per_byte"], 0.0);
        assert!(modelled(&Run { values: BTreeMap::new(), ..run(1.0) }, 0.2).is_none());
    }

    #[test]
    fn digests_are_taken_away_where_there_are_any() {
        let costs = Costs { stack: 4.0, copy: 2.0, digest: 1.0 };
        assert_eq!(costs.of(&[Work::Stack], true), 4.0);
        assert_eq!(costs.of(&[Work::Stack, Work::Copy, Work::Digest], true), 7.0);
        assert_eq!(costs.of(&[Work::Stack, Work::Copy, Work::Digest], false), 6.0);
    }

    #[test]
    fn this_machine_has_costs() {
        let cpus = raceline_reactor::affinity::allowed_cores().unwrap();
        let costs = Costs::measure(&Loopback, &cpus, 65536).unwrap();
        // A byte costs between a thousandth of a nanosecond and a microsecond on any machine.
        let sane = |cost: f64| cost > 1e-3 && cost < 1e3;
        assert!(sane(costs.copy) && sane(costs.digest), "{costs:?}");
        assert!(costs.stack >= 0.0 && costs.stack < 1e3, "{costs:?}");
    }
}
