//! Which of the plugged-in drives are taken, step by step, without devices.

use super::*;

const LATER: Duration = Duration::from_secs(3);

fn drive(place: u8, serial: &str) -> Drive {
    Drive {
        address: format!("0000:00:{place:02x}.0").parse().unwrap(),
        controller: format!("nvme{place}"),
        state: "live".to_owned(),
        vendor: 0x1b36,
        model: "M".to_owned(),
        serial: serial.to_owned(),
        firmware: String::new(),
        subnqn: String::new(),
        cntlid: 0,
        namespaces: Vec::new(),
    }
}

fn snapshot(drives: &[Drive]) -> Snapshot {
    let addresses = drives.iter().map(|drive| drive.address).collect();
    Snapshot { addresses, drives: drives.to_vec() }
}

/// A watching that begins while these drives are present.
struct Watched {
    state: State,
    now: Instant,
    others: BTreeSet<String>,
}

impl Watched {
    fn begin(drives: &[Drive]) -> Self {
        let mut state = State::default();
        state.options.enable = true;
        state.begin(&snapshot(drives));
        Self { state, now: Instant::now(), others: BTreeSet::new() }
    }

    /// The serial numbers of new drives that would be taken when these have been there for `LATER`.
    fn taken(&mut self, drives: &[Drive]) -> Vec<String> {
        let early = self.look(&snapshot(drives));
        assert!(early.new.is_empty(), "taken at first sight");
        self.now += LATER;
        self.look(&snapshot(drives)).new.into_iter().map(|drive| drive.serial).collect()
    }

    fn look(&mut self, snapshot: &Snapshot) -> Looked {
        self.state.look(snapshot, &self.others, self.now)
    }
}

#[test]
fn what_was_there_is_left_alone_wherever_it_goes() {
    let system = [drive(4, "SYS")];
    let mut watched = Watched::begin(&system);
    assert!(watched.taken(&system).is_empty());
    // The drive's driver is bound anew, the bus is rescanned, the drive is put into another slot.
    assert!(watched.taken(&[]).is_empty());
    assert!(watched.taken(&system).is_empty());
    assert!(watched.taken(&[]).is_empty());
    assert!(watched.taken(&[drive(9, "SYS")]).is_empty());
    // Another drive in its place is new.
    assert_eq!(watched.taken(&[drive(4, "NEW")]), ["NEW"]);
    // After turning off and on again, all present drives are left alone.
    watched.state.begin(&snapshot(&[drive(4, "NEW")]));
    assert!(watched.taken(&[drive(4, "NEW")]).is_empty());
}

/// When the machine starts, the kernel may list a drive before it knows its serial number.
#[test]
fn a_drive_that_was_starting_was_there() {
    let starting = Snapshot { addresses: [drive(4, "").address].into(), drives: Vec::new() };
    let mut watched = Watched::begin(&[]);
    watched.state.begin(&starting);
    assert!(watched.taken(&[drive(4, "SLOW")]).is_empty());
    assert!(watched.taken(&[]).is_empty());
    assert!(watched.taken(&[drive(5, "SLOW")]).is_empty());
}

#[test]
fn a_drive_is_taken_when_it_has_been_there_as_it_is() {
    let mut watched = Watched::begin(&[]);
    let resetting = Drive { state: "resetting".to_owned(), ..drive(4, "A") };
    assert!(watched.taken(&[resetting]).is_empty());
    // The drive has changed, so its settle time begins again.
    assert_eq!(watched.taken(&[drive(4, "A")]), ["A"]);
    // A drive that a client has attached, has configured, or has detached.
    watched.others.insert("A".to_owned());
    assert!(watched.taken(&[drive(4, "A")]).is_empty());
    watched.others.clear();
    watched.state.options.detached.insert("A".to_owned());
    assert!(watched.taken(&[drive(4, "A")]).is_empty());
    // A refused drive is not tried again until it is plugged in again.
    watched.state.refused.insert(drive(5, "B").address);
    assert!(watched.taken(&[drive(5, "B")]).is_empty());
    assert!(watched.taken(&[]).is_empty());
    assert_eq!(watched.taken(&[drive(5, "B")]), ["B"]);
    watched.state.options.enable = false;
    assert!(watched.taken(&[]).is_empty());
    assert!(watched.taken(&[drive(6, "C")]).is_empty());
}

/// A drive that has been taken comes back as the same controller, also if no new drives are wanted.
#[test]
fn a_drive_with_a_number_comes_back_at_once() {
    let mut watched = Watched::begin(&[drive(4, "A")]);
    watched.state.options = HotplugOptions {
        drives: vec!["X".to_owned(), "B".to_owned()],
        ..HotplugOptions::default()
    };
    watched.state.begin(&snapshot(&[drive(7, "B")]));
    let looked = watched.look(&snapshot(&[drive(4, "A"), drive(7, "B")]));
    assert_eq!(looked.come, [(1, drive(7, "B"))]);
    let again = watched.now + RETRY_INTERVAL;
    watched.state.problems.insert(1, ("in use".to_owned(), again));
    assert!(watched.look(&snapshot(&[drive(7, "B")])).come.is_empty());
    watched.now = again;
    assert_eq!(watched.look(&snapshot(&[drive(7, "B")])).come.len(), 1);
}

#[test]
fn periods_are_bounded() {
    let bounded = |period_us| HotplugOptions { period_us, ..HotplugOptions::default() }.bounded();
    for (wanted, had) in [(0, 100_000), (1, 10_000), (250_000, 250_000), (u64::MAX, 10_000_000)] {
        assert_eq!(bounded(wanted).period_us, had);
    }
}

#[test]
fn controllers_have_numbers() {
    assert_eq!(name_of(12), "HotInNvme12");
    for (name, number) in [("HotInNvme0", Some(0)), ("HotInNvme01", None), ("Nvme0", None)] {
        assert_eq!(number_in(name), number, "{name}");
    }
}
