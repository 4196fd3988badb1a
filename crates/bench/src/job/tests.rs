//! Jobs against a device in memory, in virtual time.

use std::collections::{BTreeSet, VecDeque};

use super::*;
use crate::pattern::Found;
use crate::workload::RwMode;
use crate::workload::tests::{SPAN, workload};

/// A device that completes commands in order, each `service` after the previous one.
struct Device {
    now: Instant,
    service: Duration,
    busy_until: Instant,
    in_flight: VecDeque<(Instant, Issue)>,
    data: Vec<u8>,
    block_size: usize,
    issued: Vec<(Instant, Issue)>,
    /// Writes to this block are acknowledged, but from the second on they are lost.
    loses_rewrites_of: Option<u64>,
}

impl Device {
    fn new(start: Instant, service: Duration) -> Self {
        Self {
            now: start,
            service,
            busy_until: start,
            in_flight: VecDeque::new(),
            data: vec![0; 1024 * 512],
            block_size: 512,
            issued: Vec::new(),
            loses_rewrites_of: None,
        }
    }

    fn range(&self, issue: &Issue) -> std::ops::Range<usize> {
        let start = usize::try_from(issue.slba).unwrap() * self.block_size;
        start..start + usize::try_from(issue.block_count).unwrap() * self.block_size
    }

    fn issue(&mut self, job: &QueueJob, issue: Issue) {
        self.issued.push((self.now, issue));
        self.busy_until = self.busy_until.max(self.now) + self.service;
        self.in_flight.push_back((self.busy_until, issue));
        let range = self.range(&issue);
        let written = self.data[range.start] != 0;
        if issue.write && !(written && self.loses_rewrites_of == Some(issue.slba)) {
            job.fill(issue.slot, &mut self.data[range]);
        }
    }

    /// Runs the job to its end; time jumps from event to event.
    fn run(&mut self, job: &mut QueueJob) {
        while !job.is_finished() {
            while let Some(issue) = job.poll_issue(self.now) {
                self.issue(job, issue);
            }
            let completion = self.in_flight.front().map(|(at, _)| *at);
            let Some(next) = completion.into_iter().chain(job.wake_at()).min() else { break };
            assert!(next >= self.now, "time goes forward");
            self.now = next;
            while self.in_flight.front().is_some_and(|(at, _)| *at <= self.now) {
                let (_, issue) = self.in_flight.pop_front().unwrap();
                if issue.write {
                    job.handle_written(self.now, issue.slot);
                } else {
                    job.handle_read(self.now, issue.slot, &self.data[self.range(&issue)]);
                }
            }
        }
        assert!(job.is_finished(), "the job is stuck");
        assert_eq!(job.in_flight(), 0);
    }
}

fn config(workload: Workload, start: Instant, depth: u16) -> JobConfig {
    let ramp = Duration::from_millis(10);
    let runtime = Some(Duration::from_millis(100));
    let batch = Batch::NONE;
    let (queue, queues, stream, commands) = (0, 1, 0, None);
    JobConfig {
        workload,
        queue,
        queues,
        stream,
        depth,
        batch,
        start,
        ramp,
        runtime,
        commands,
        slice: None,
    }
}

fn run(workload: Workload, depth: u16, service_us: u64) -> (JobResult, Device) {
    let start = Instant::now();
    let mut job = QueueJob::new(config(workload, start, depth)).unwrap();
    let mut device = Device::new(start, Duration::from_micros(service_us));
    device.run(&mut job);
    (job.into_result(), device)
}

#[test]
fn closed_loop_keeps_the_depth_and_measures_after_the_ramp() {
    let (result, device) = run(workload(RwMode::RandRead), 4, 100);
    // One command per 100 us for 100 ms, each behind the three before it.
    assert!((1000..=1001).contains(&result.read.count()), "{}", result.read.count());
    assert_eq!((result.read.min_ns(), result.read.max_ns()), (400_000, 400_000));
    assert_eq!(result.write.count(), 0);
    assert_eq!((result.measured, result.missed), (Duration::from_millis(100), 0));
    assert!(device.issued.len() >= 1100, "the ramp runs too");
    assert_eq!((result.verified, result.error), (0, None));
}

#[test]
fn a_command_that_outlasts_the_recording_is_not_forgotten() {
    let beyond = |rate_iops, service_us| {
        let workload = Workload { rate_iops, ..workload(RwMode::RandRead) };
        run(workload, 2, service_us).0
    };
    // From 0 and 60 ms, until 120 and 180 ms; the recording ends at 110 ms.
    let result = beyond(None, 60_000);
    assert_eq!((result.read.count(), result.read.max_ns()), (1, 60_000_000));
    assert_eq!(result.beyond_end, Duration::from_millis(120));
    // With a rate, its latency is one of all.
    let result = beyond(Some(10), 60_000);
    assert_eq!(result.beyond_end, Duration::ZERO);
}

#[test]
fn slices_cut_the_recording_and_have_all_of_it() {
    let start = Instant::now();
    let slice = Some(Duration::from_millis(30));
    let closed = JobConfig { slice, ..config(workload(RwMode::RandReadWrite), start, 4) };
    let paced = Workload { rate_iops: Some(5_000), ..workload(RwMode::RandRead) };
    let open = JobConfig { slice, ..config(paced, start, 4) };
    for (config, each) in [(closed, 299..=301), (open, 149..=151)] {
        let mut job = QueueJob::new(config).unwrap();
        Device::new(start, Duration::from_micros(100)).run(&mut job);
        let result = job.into_result();
        let count = |side: &Option<Box<Latencies>>| side.as_ref().map_or(0, |side| side.count());
        let counts: Vec<u64> =
            result.slices.iter().map(|slice| count(&slice.read) + count(&slice.write)).collect();
        // 100 ms are three slices of 30 ms and a shorter one.
        assert_eq!(counts.len(), 4, "{counts:?}");
        assert!(counts[..3].iter().all(|count| each.contains(count)), "{counts:?}");
        assert_eq!(counts.iter().sum::<u64>(), result.read.count() + result.write.count());
        assert_eq!(result.late, None);
    }
    let (whole, _) = run(workload(RwMode::RandRead), 4, 100);
    assert!(whole.slices.is_empty(), "nobody asked for slices");
}

#[test]
fn a_job_that_begins_late_says_so() {
    let start = Instant::now();
    let mut job = QueueJob::new(config(workload(RwMode::RandRead), start, 1)).unwrap();
    let mut device = Device::new(start, Duration::from_micros(100));
    // 30 ms after the start, and so 20 ms after the begin of the recording.
    device.now = start + Duration::from_millis(30);
    device.run(&mut job);
    let result = job.into_result();
    assert_eq!(result.late, Some(Duration::from_millis(20)));
    assert!((799..=801).contains(&result.read.count()), "{}", result.read.count());
}

#[test]
fn sequential_goes_on_and_wraps() {
    let (_, device) = run(workload(RwMode::Read), 2, 100);
    let mut expected = (0..100u64).cycle().map(|unit| 16 + unit * 8);
    assert!(device.issued.len() > 200);
    assert!(device.issued.iter().all(|(_, issue)| Some(issue.slba) == expected.next()));
}

#[test]
fn random_stays_in_range_and_depends_on_the_seed_only() {
    let addresses = |seed| {
        let (_, device) = run(Workload { seed, ..workload(RwMode::RandRead) }, 2, 100);
        device.issued.iter().map(|(_, issue)| issue.slba).collect::<Vec<u64>>()
    };
    let one = addresses(1);
    assert!(one.iter().all(|slba| (16..816).contains(slba) && slba % 8 == 0));
    assert!(one.iter().collect::<BTreeSet<_>>().len() > 90);
    assert_eq!(one, addresses(1));
    assert_ne!(one, addresses(2));
}

#[test]
fn mixed_workloads_mix() {
    let mixed = Workload { mixed_read_percent: 70, ..workload(RwMode::RandReadWrite) };
    let (result, _) = run(mixed, 2, 10);
    let (read, write) = (result.read.count(), result.write.count());
    assert!((68..=72).contains(&(read * 100 / (read + write))), "{read} of {}", read + write);
}

#[test]
fn open_loop_below_capacity_issues_on_time() {
    let paced = Workload { rate_iops: Some(1000), ..workload(RwMode::RandRead) };
    let (result, device) = run(paced, 4, 100);
    assert_eq!((result.read.count(), result.missed), (100, 0));
    assert_eq!((result.read.min_ns(), result.read.max_ns()), (100_000, 100_000));
    let gaps: BTreeSet<Duration> =
        device.issued.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
    assert_eq!(gaps, BTreeSet::from([Duration::from_millis(1)]));
}

#[test]
fn open_loop_above_capacity_counts_the_wait() {
    // 20,000 commands are due per second, 10,000 are served: half of the time since the start is waiting.
    let paced = Workload { rate_iops: Some(20_000), ..workload(RwMode::RandRead) };
    let (result, _) = run(paced, 1, 100);
    assert!(result.read.max_ns() > 50_000_000, "{}", result.read.max_ns());
    assert!(result.missed > 1000, "{}", result.missed);
    // A closed loop on the same device does not see the delay.
    let (closed, _) = run(workload(RwMode::RandRead), 1, 100);
    assert_eq!(closed.read.max_ns(), 100_000);
}

#[test]
fn a_stall_is_in_the_latencies_of_an_open_loop() {
    let start = Instant::now();
    let paced = Workload { rate_iops: Some(1000), ..workload(RwMode::RandRead) };
    let mut job = QueueJob::new(config(paced, start, 1)).unwrap();
    let mut device = Device::new(start, Duration::from_micros(10));
    device.busy_until = start + Duration::from_millis(60); // the stall
    device.run(&mut job);
    let result = job.into_result();
    // Commands due in the first 50 ms of the window waited for the stall to end, 1 ms less each.
    assert_eq!(result.read.count(), 100);
    assert!(result.read.percentile_ns(60.0) > 8_000_000, "{}", result.read.percentile_ns(60.0));
    assert!(result.read.max_ns() > 49_000_000);
}

#[test]
fn written_blocks_are_read_back() {
    for mode in [RwMode::Write, RwMode::RandWrite, RwMode::RandReadWrite] {
        let (result, device) = run(Workload { verify: true, ..workload(mode) }, 8, 50);
        assert_eq!(result.error, None);
        let written: BTreeSet<u64> = device
            .issued
            .iter()
            .filter(|(_, issue)| issue.write)
            .map(|(_, issue)| issue.slba)
            .collect();
        assert!(result.verified >= u64::try_from(written.len()).unwrap());
        let last: Vec<u64> = device.issued[device.issued.len() - written.len()..]
            .iter()
            .map(|(_, issue)| issue.slba)
            .collect();
        assert_eq!(last, written.into_iter().collect::<Vec<_>>(), "each once, in order");
        // Reading back is not measured.
        assert!(result.read.count() + result.write.count() < 2100);
    }
}

#[test]
fn no_two_commands_share_blocks_while_verifying() {
    let spans = vec![Span { block_count: 8 * 8, ..SPAN }];
    let small = Workload { spans, verify: true, ..workload(RwMode::RandReadWrite) };
    let start = Instant::now();
    let mut job = QueueJob::new(config(small, start, 8)).unwrap();
    let mut taken = BTreeSet::new();
    while let Some(issue) = job.poll_issue(start) {
        assert!(taken.insert(issue.slba));
    }
    assert_eq!(taken.len(), 8);
}

#[test]
fn a_lost_write_is_found_with_its_address() {
    let start = Instant::now();
    let verify = Workload { verify: true, ..workload(RwMode::RandWrite) };
    let mut job = QueueJob::new(config(verify, start, 4)).unwrap();
    let mut device = Device::new(start, Duration::from_micros(50));
    device.loses_rewrites_of = Some(16 + 33 * 8);
    device.run(&mut job);
    let Some(JobError::Mismatch(mismatch)) = job.into_result().error else {
        panic!("not found");
    };
    assert_eq!(mismatch.lba, 16 + 33 * 8);
    assert!(matches!(mismatch.found, Found::Generation { found: 1, .. }));
}

#[test]
fn a_reading_run_checks_what_an_earlier_run_wrote() {
    let start = Instant::now();
    let verify = |mode| Workload { verify: true, ..workload(mode) };
    let mut device = Device::new(start, Duration::from_micros(50));
    let mut job = QueueJob::new(config(verify(RwMode::Write), start, 4)).unwrap();
    device.run(&mut job);
    let mut job = QueueJob::new(config(verify(RwMode::RandRead), device.now, 4)).unwrap();
    device.run(&mut job);
    let result = job.into_result();
    assert_eq!(result.error, None);
    assert!(result.verified > 1000);

    device.data[(16 + 5 * 8) * 512 + 100] ^= 1;
    let mut job = QueueJob::new(config(verify(RwMode::Read), device.now, 4)).unwrap();
    device.run(&mut job);
    let expected = Mismatch { lba: 16 + 5 * 8, found: Found::Damaged };
    assert_eq!(job.into_result().error, Some(JobError::Mismatch(expected)));
}

#[test]
fn the_first_failure_ends_the_run_and_is_kept() {
    let start = Instant::now();
    let mut job = QueueJob::new(config(workload(RwMode::RandRead), start, 2)).unwrap();
    let (one, two) = (job.poll_issue(start).unwrap(), job.poll_issue(start).unwrap());
    job.handle_failed(start, one.slot, "first".to_owned());
    assert_eq!(job.poll_issue(start), None);
    assert!(!job.is_finished(), "one is still in flight");
    job.handle_failed(start, two.slot, "second".to_owned());
    assert!(job.is_finished());
    assert_eq!(job.into_result().error, Some(JobError::Io("first".to_owned())));
}

#[test]
fn stopping_early_measures_the_time_until_then() {
    let start = Instant::now();
    let mut job = QueueJob::new(config(workload(RwMode::RandRead), start, 1)).unwrap();
    let issue = job.poll_issue(start).unwrap();
    job.stop(start + Duration::from_millis(60));
    job.handle_read(start + Duration::from_millis(61), issue.slot, &[0; 4096]);
    assert!(job.is_finished());
    assert_eq!(job.into_result().measured, Duration::from_millis(50));
}

#[test]
fn workloads_that_do_not_fit_are_refused() {
    let start = Instant::now();
    let refused = |workload, depth, queues| {
        QueueJob::new(JobConfig { queues, ..config(workload, start, depth) })
            .map(|_| ())
            .unwrap_err()
    };
    let on = |span: Span, verify| Workload { spans: vec![span], verify, ..workload(RwMode::Read) };
    let small = Span { block_count: 8 * 3, ..SPAN };
    let error = JobConfigError::RangeTooSmall { units: 3, queues: 4 };
    assert_eq!(refused(on(small, false), 1, 4), error);
    let error = JobConfigError::RangeBelowDepth { units: 3, depth: 4 };
    assert_eq!(refused(on(small, true), 4, 1), error);
    let large = Span { block_count: u64::MAX, ..SPAN };
    let error = JobConfigError::RangeTooLarge { units: u64::MAX / 8 };
    assert_eq!(refused(on(large, true), 4, 1), error);
    let tiny = Span { block_size: 16, ..small };
    assert_eq!(refused(on(tiny, true), 1, 1), JobConfigError::BlockTooSmall(16));
    let nothing = Span { blocks_per_io: 0, ..tiny };
    assert_eq!(refused(on(nothing, true), 1, 1), JobConfigError::Nothing);
    let no_span = Workload { spans: Vec::new(), ..workload(RwMode::Read) };
    assert_eq!(refused(no_span, 1, 1), JobConfigError::Nothing);
    let endless = JobConfig { runtime: None, ..config(workload(RwMode::Read), start, 1) };
    assert_eq!(QueueJob::new(endless).map(|_| ()), Err(JobConfigError::Endless));
}

/// The blocks in the order in which a job with `commands` commands visits them.
fn visited(workload: Workload, depth: u16, commands: u64) -> (Vec<(u16, u64)>, JobResult) {
    let start = Instant::now();
    let limited = JobConfig {
        runtime: None,
        commands: Some(commands),
        ramp: Duration::ZERO,
        ..config(workload, start, depth)
    };
    let mut job = QueueJob::new(limited).unwrap();
    let mut device = Device::new(start, Duration::from_micros(100));
    device.run(&mut job);
    let order = device.issued.iter().map(|(_, issue)| (issue.span, issue.slba)).collect();
    (order, job.into_result())
}

#[test]
fn a_random_map_visits_every_block_once_per_pass() {
    let mapped = Workload { random_map: true, ..workload(RwMode::RandRead) };
    let (order, _) = visited(mapped.clone(), 7, 300);
    let passes: Vec<BTreeSet<_>> =
        order.chunks(100).map(|pass| pass.iter().copied().collect()).collect();
    assert!(passes.iter().all(|pass| pass.len() == 100), "a block came twice in a pass");
    assert_ne!(order[..100], order[100..200], "each pass has an order of its own");
    let sorted = passes[0].iter().copied().collect::<Vec<_>>();
    assert_ne!(order[..100], sorted, "and it is no sequence");
    let (without, _) = visited(Workload { random_map: false, ..mapped }, 7, 100);
    assert!(without.iter().collect::<BTreeSet<_>>().len() < 80, "anywhere is not everywhere");
}

#[test]
fn a_random_map_is_verified_as_everything_else() {
    let mapped = Workload { random_map: true, verify: true, ..workload(RwMode::RandWrite) };
    let (order, result) = visited(mapped, 8, 250);
    assert_eq!(result.error, None);
    assert_eq!((order.len(), result.verified), (350, 100), "all were written, and read back");
}

#[test]
fn a_number_of_commands_ends_a_job_and_its_time() {
    let (order, result) = visited(workload(RwMode::Read), 4, 10);
    assert_eq!(order.len(), 10);
    // One command per 100 us: the measured time ends with the last completion.
    assert_eq!((result.read.count(), result.measured), (10, Duration::from_millis(1)));
}

#[test]
fn nothing_is_issued_before_the_start() {
    let start = Instant::now();
    let later = start + Duration::from_millis(5);
    let mut job = QueueJob::new(config(workload(RwMode::Read), later, 4)).unwrap();
    assert_eq!(job.poll_issue(start), None);
    assert_eq!(job.wake_at(), Some(later));
    assert!(job.poll_issue(later).is_some());
}

#[test]
fn spans_take_turns() {
    let second = Span { first_block: 0, block_count: 8 * 3, ..SPAN };
    let (order, _) =
        visited(Workload { spans: vec![SPAN, second], ..workload(RwMode::Read) }, 1, 8);
    let expected = [(0, 16), (1, 0), (0, 24), (1, 8), (0, 32), (1, 16), (0, 40), (1, 0)];
    assert_eq!(order, expected);
}

#[test]
fn spans_are_verified_each() {
    let other = Span { first_block: 816, block_count: 8 * 20, ..SPAN };
    let both =
        Workload { spans: vec![SPAN, other], verify: true, ..workload(RwMode::RandReadWrite) };
    let (result, device) = run(both, 8, 50);
    assert_eq!(result.error, None);
    let written = device.issued.iter().filter(|(_, issue)| issue.write);
    let written: BTreeSet<u64> = written.map(|(_, issue)| issue.slba).collect();
    assert!(written.len() > 100 && result.verified >= u64::try_from(written.len()).unwrap());
}

/// Issues all commands of a job, and gives the sizes of the batches and whether the last one ended.
fn batches(job: &mut QueueJob, now: Instant, slots: &mut VecDeque<u16>) -> (Vec<usize>, bool) {
    let (mut sizes, mut open) = (Vec::new(), 0);
    while let Some(issue) = job.poll_issue(now) {
        slots.push_back(issue.slot);
        open += 1;
        if issue.flush {
            sizes.push(std::mem::take(&mut open));
        }
    }
    let ended = open == 0;
    sizes.extend((open > 0).then_some(open));
    (sizes, ended)
}

#[test]
fn commands_leave_in_batches() {
    let start = Instant::now();
    let batch = Batch { submit: Some(8), ..Batch::NONE };
    let with = |depth| JobConfig { batch, ..config(workload(RwMode::Read), start, depth) };
    let (mut job, mut slots) = (QueueJob::new(with(20)).unwrap(), VecDeque::new());
    assert_eq!(batches(&mut job, start, &mut slots), (vec![8, 8, 4], true));
    for slot in slots.drain(..3) {
        job.handle_read(start, slot, &[]);
    }
    // Available completions do not wait for more: the depth is reached again.
    assert_eq!(batches(&mut job, start, &mut slots), (vec![3], true));
    let all = JobConfig { batch: Batch::NONE, ..with(20) };
    let mut job = QueueJob::new(all).unwrap();
    assert_eq!(batches(&mut job, start, &mut VecDeque::new()), (vec![20], false));
}

#[test]
fn a_full_queue_awaits_its_batch_of_completions() {
    let start = Instant::now();
    for (batch, awaited) in [
        (Batch { complete_min: 4, ..Batch::NONE }, 4),
        (Batch { complete_min: 0, ..Batch::NONE }, 1),
        (Batch { complete_min: 40, ..Batch::NONE }, 8),
        (Batch { low: Some(2), ..Batch::NONE }, 6),
        (Batch { low: Some(6), complete_min: 3, ..Batch::NONE }, 3),
    ] {
        let with = JobConfig { batch, ..config(workload(RwMode::Read), start, 8) };
        let (mut job, mut slots) = (QueueJob::new(with).unwrap(), VecDeque::new());
        batches(&mut job, start, &mut slots);
        for round in 0..3 {
            assert_eq!(slots.len(), 8, "{batch:?}, round {round}");
            for count in 1..=awaited {
                assert_eq!(job.poll_issue(start), None, "{batch:?}, {count} of {awaited}");
                job.handle_read(start, slots.pop_front().unwrap(), &[]);
            }
            assert_eq!(batches(&mut job, start, &mut slots).0, [awaited]);
        }
    }
}
