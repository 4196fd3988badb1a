//! `raceline top`: what a daemon does, live or once.

mod sample;
mod screen;
mod view;

use std::io::IsTerminal as _;
use std::time::{Duration, Instant};

use ratatui::DefaultTerminal;
use ratatui::crossterm::event::{self, Event, KeyEventKind};
use serde_json::{Value, json};

use super::Daemon;
use crate::cli::values::OutputFormat;
use crate::cli::watch::TopArgs;
use crate::failure::Failure;
use crate::shell;

use sample::Sample;
use screen::{Asked, Screen};
use view::Inventory;

/// The shortest and the longest interval that keys choose.
const INTERVALS: [Duration; 2] = [Duration::from_millis(250), Duration::from_secs(60)];
/// What exists is asked for again after this time even if no event says that it has changed.
const INVENTORY_AGE: Duration = Duration::from_secs(30);

/// Runs the verb.
pub(crate) fn run(args: &TopArgs) -> Result<(), Failure> {
    let is_live = !args.once;
    if is_live && !std::io::stdout().is_terminal() {
        return Err(Failure::usage(
            "standard output is no terminal: raceline top --once prints one interval as text, or as JSON with -o json",
        ));
    }
    let mut watched = Watched::connect(args)?;
    if args.latencies {
        watched.turn_latencies(true)?;
    }
    let shown = if is_live { live(&mut watched, args) } else { once(&mut watched, args) };
    // What went wrong first is what the user is told.
    shown.and(watched.turn_latencies(false))
}

/// A daemon that is looked at again and again.
struct Watched<'a> {
    args: &'a TopArgs,
    daemon: Daemon,
    last: Sample,
    inventory: Inventory,
    read_at: Instant,
    /// The devices whose histograms were turned on here.
    measured: Vec<String>,
}

impl<'a> Watched<'a> {
    fn connect(args: &'a TopArgs) -> Result<Self, Failure> {
        let daemon = Daemon::connect(&args.daemon)?;
        let inventory = Inventory::default();
        let (last, read_at) = (Sample::default(), Instant::now());
        let mut watched = Self { args, daemon, last, inventory, read_at, measured: Vec::new() };
        watched.last = watched.sample()?;
        watched.inventory = watched.inventory()?;
        Ok(watched)
    }

    fn sample(&mut self) -> Result<Sample, Failure> {
        let answer = self.daemon.call("raceline_get_activity", json!({ "latencies": true }))?;
        Ok(Sample::read(&answer))
    }

    fn inventory(&mut self) -> Result<Inventory, Failure> {
        self.read_at = Instant::now();
        let subsystems = self.daemon.call("nvmf_get_subsystems", Value::Null)?;
        Ok(Inventory::read(&subsystems, &self.daemon.call("bdev_get_bdevs", Value::Null)?))
    }

    /// What has happened since the last look. Connects again if the daemon has gone.
    fn look(&mut self) -> Result<sample::Interval, Failure> {
        let now = match self.sample() {
            Ok(now) => now,
            Err(_) => {
                self.daemon = Daemon::connect(&self.args.daemon)?;
                self.measured.clear();
                self.last = Sample::default();
                self.sample()?
            }
        };
        if now.next_event != self.last.next_event || self.read_at.elapsed() > INVENTORY_AGE {
            self.inventory = self.inventory()?;
        }
        let interval = now.since(&self.last);
        self.last = now;
        Ok(interval)
    }

    /// Turns the histograms of all devices on that have none, or those off that were turned on here.
    fn turn_latencies(&mut self, on: bool) -> Result<(), Failure> {
        let names: Vec<String> = match on {
            true => self.inventory.sizes.keys().cloned().collect(),
            false => std::mem::take(&mut self.measured),
        };
        for name in names {
            // A histogram that is on already belongs to somebody else.
            let has_one =
                on && self.daemon.try_call("bdev_get_histogram", json!({ "name": name })).is_ok();
            if has_one {
                continue;
            }
            let params = json!({ "name": name, "enable": on });
            match self.daemon.try_call("bdev_enable_histogram", params) {
                Ok(_) if on => self.measured.push(name),
                Err(error) if on => return Err(super::failure(error)),
                // The device, or the daemon, is gone.
                _ => {}
            }
        }
        Ok(())
    }
}

/// One interval as text or JSON.
fn once(watched: &mut Watched<'_>, args: &TopArgs) -> Result<(), Failure> {
    std::thread::sleep(args.interval);
    let interval = watched.look()?;
    let text = match args.daemon.output {
        OutputFormat::Table => view::text(&interval, &watched.inventory),
        OutputFormat::Json => format!("{:#}\n", view::document(&interval, &watched.inventory)),
    };
    shell::print(text.as_bytes())
}

/// The screen, until the user ends it. The terminal is as before afterwards, also after a panic.
fn live(watched: &mut Watched<'_>, args: &TopArgs) -> Result<(), Failure> {
    let colors =
        !args.no_color && std::env::var_os("NO_COLOR").is_none_or(|value| value.is_empty());
    let title = format!("raceline top  {}", watched.daemon.address());
    let mut screen = Screen::new(title, colors);
    let mut terminal = ratatui::try_init()
        .map_err(|error| Failure::runtime(format!("the terminal cannot be used: {error}")))?;
    let shown = turns(&mut terminal, &mut screen, watched, args.interval);
    ratatui::restore();
    shown
}

fn turns(
    terminal: &mut DefaultTerminal,
    screen: &mut Screen,
    watched: &mut Watched<'_>,
    mut interval: Duration,
) -> Result<(), Failure> {
    screen.inventory = watched.inventory.clone();
    let mut next = Instant::now() + interval.min(Duration::from_millis(300));
    loop {
        let drawn = terminal.draw(|frame| screen.draw(frame));
        drawn.map_err(Failure::runtime)?;
        let wait = next.saturating_duration_since(Instant::now());
        if event::poll(wait).map_err(Failure::runtime)? {
            let read = event::read().map_err(Failure::runtime)?;
            let Event::Key(key) = read else { continue };
            if key.kind != KeyEventKind::Press {
                continue;
            }
            match screen.key(key) {
                Asked::Nothing => {}
                Asked::End => return Ok(()),
                Asked::Latencies => {
                    let on = watched.measured.is_empty();
                    screen.problem = watched.turn_latencies(on).err().map(|error| error.message);
                }
                Asked::Slower => interval = (interval * 2).min(INTERVALS[1]),
                Asked::Faster => interval = (interval / 2).max(INTERVALS[0]),
            }
            continue;
        }
        next = Instant::now() + interval;
        if screen.is_paused {
            continue;
        }
        match watched.look() {
            Ok(seen) => {
                (screen.interval, screen.problem) = (seen, None);
                screen.inventory = watched.inventory.clone();
            }
            Err(failure) => screen.problem = Some(failure.message),
        }
    }
}
