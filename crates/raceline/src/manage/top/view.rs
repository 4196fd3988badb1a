//! What `top` shows: rows of cells in five views, sorted and filtered; for a screen, as text and as JSON.

use std::cmp::Ordering;
use std::collections::BTreeMap;

use serde_json::{Map, Value, json};

use super::sample::{Interval, Rates};
use crate::manage::{elements, size};
use crate::table::{Table, printable};

/// The tables of `top`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum View {
    Devices,
    Namespaces,
    Subsystems,
    Hosts,
    Cores,
}

impl View {
    pub(super) const ALL: [Self; 5] =
        [Self::Devices, Self::Namespaces, Self::Subsystems, Self::Hosts, Self::Cores];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Devices => "devices",
            Self::Namespaces => "namespaces",
            Self::Subsystems => "subsystems",
            Self::Hosts => "hosts",
            Self::Cores => "cores",
        }
    }

    /// The columns. Names of JSON members, so without blanks.
    pub(super) fn columns(self) -> &'static [&'static str] {
        match self {
            Self::Devices => &["device", "iops", "read", "write", "avg", "p50", "p99", "err"],
            Self::Namespaces => {
                &["subsystem", "nsid", "device", "size", "iops", "read", "write", "avg", "p99"]
            }
            Self::Subsystems => {
                &["subsystem", "ns", "listen", "hosts", "iops", "read", "write", "err"]
            }
            Self::Hosts => &["host", "subsystem", "queues", "iops", "read", "write", "err"],
            Self::Cores => &["core", "useful", "turns", "in", "out"],
        }
    }

    /// How many of the first columns are names, and take the room that is left.
    pub(super) fn names(self) -> usize {
        match self {
            Self::Hosts => 2,
            _ => 1,
        }
    }
}

/// One cell.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Cell {
    Name(String),
    Count(u64),
    /// For each second.
    Rate(f64),
    /// Bytes for each second.
    Bytes(f64),
    /// Bytes.
    Size(u64),
    Time(Option<f64>),
    /// 0 to 1.
    Share(f64),
}

impl Cell {
    pub(super) fn text(&self) -> String {
        match self {
            Self::Name(name) => printable(name),
            Self::Count(count) => count.to_string(),
            Self::Rate(rate) => short(*rate),
            Self::Bytes(rate) => mebibytes(*rate),
            Self::Size(bytes) => size(*bytes),
            Self::Time(None) => "-".to_owned(),
            Self::Time(Some(ns)) => time(*ns),
            Self::Share(share) => format!("{:.1}%", share * 100.0),
        }
    }

    fn json(&self) -> Value {
        match self {
            Self::Name(name) => name.as_str().into(),
            Self::Count(count) | Self::Size(count) => (*count).into(),
            Self::Rate(number) | Self::Bytes(number) | Self::Share(number) => json!(number),
            Self::Time(ns) => json!(ns),
        }
    }

    fn order(&self, other: &Self) -> Ordering {
        match (self, other) {
            (Self::Name(one), Self::Name(two)) => one.cmp(two),
            (one, two) => one.number().total_cmp(&two.number()),
        }
    }

    #[expect(clippy::cast_precision_loss, reason = "only the order counts")]
    fn number(&self) -> f64 {
        match self {
            Self::Name(_) => 0.0,
            Self::Count(count) | Self::Size(count) => *count as f64,
            Self::Rate(number) | Self::Bytes(number) | Self::Share(number) => *number,
            Self::Time(ns) => ns.unwrap_or(-1.0),
        }
    }
}

/// Thousands and millions as k and M, in at most seven characters.
pub(super) fn short(number: f64) -> String {
    match number {
        n if n >= 1e10 => format!("{:.1}G", n / 1e9),
        n if n >= 1e7 => format!("{:.2}M", n / 1e6),
        n if n >= 1e5 => format!("{:.1}k", n / 1e3),
        n if n >= 10.0 || n == 0.0 => format!("{n:.0}"),
        n => format!("{n:.1}"),
    }
}

/// MiB of a number of bytes.
pub(super) fn mebibytes(bytes: f64) -> String {
    match bytes / 1_048_576.0 {
        n if n >= 100.0 || n == 0.0 => format!("{n:.0}"),
        n if n < 0.1 => format!("{n:.3}"),
        n => format!("{n:.1}"),
    }
}

/// A time in the unit in which it is short.
pub(super) fn time(ns: f64) -> String {
    match ns {
        n if n >= 9.995e9 => format!("{:.0}s", n / 1e9),
        n if n >= 9.995e8 => format!("{:.2}s", n / 1e9),
        n if n >= 9.995e6 => format!("{:.1}ms", n / 1e6),
        n if n >= 9.995e5 => format!("{:.2}ms", n / 1e6),
        n => format!("{:.1}us", n / 1e3),
    }
}

/// What exists, which changes rarely.
#[derive(Clone, Debug, Default)]
pub(super) struct Inventory {
    /// As `nvmf_get_subsystems` gives them.
    pub(super) subsystems: Vec<Value>,
    /// Devices and their sizes in bytes.
    pub(super) sizes: BTreeMap<String, u64>,
}

impl Inventory {
    pub(super) fn read(subsystems: &Value, bdevs: &Value) -> Self {
        let subsystems = subsystems.as_array().into_iter().flatten();
        let exported = subsystems.filter(|subsystem| subsystem["subtype"] != "Discovery");
        let sizes = bdevs.as_array().into_iter().flatten().map(|bdev| {
            let blocks = bdev["num_blocks"].as_u64().unwrap_or(0);
            let block_size = bdev["block_size"].as_u64().unwrap_or(0);
            let name = bdev["name"].as_str().unwrap_or_default().to_owned();
            (name, blocks.saturating_mul(block_size))
        });
        Self { subsystems: exported.cloned().collect(), sizes: sizes.collect() }
    }
}

type Row = Vec<Cell>;

/// The rows of a view, not sorted.
pub(super) fn rows(view: View, interval: &Interval, inventory: &Inventory) -> Vec<Row> {
    let of = |device: &str| interval.bdevs.get(device).copied().unwrap_or_default();
    match view {
        View::Devices => inventory.sizes.keys().map(|name| device(name, &of(name))).collect(),
        View::Namespaces => {
            let mut rows = Vec::new();
            for subsystem in &inventory.subsystems {
                for namespace in elements(subsystem, "namespaces") {
                    let device = namespace["bdev_name"].as_str().unwrap_or_default();
                    let rates = of(device);
                    rows.push(vec![
                        Cell::Name(string(&subsystem["nqn"])),
                        Cell::Count(namespace["nsid"].as_u64().unwrap_or(0)),
                        Cell::Name(device.to_owned()),
                        Cell::Size(inventory.sizes.get(device).copied().unwrap_or(0)),
                        Cell::Rate(rates.iops()),
                        Cell::Bytes(rates.read_bytes),
                        Cell::Bytes(rates.written_bytes),
                        Cell::Time(rates.average_ns),
                        Cell::Time(rates.p99_ns),
                    ]);
                }
            }
            rows
        }
        View::Subsystems => inventory.subsystems.iter().map(|it| subsystem(it, interval)).collect(),
        View::Hosts => interval
            .hosts
            .iter()
            .map(|host| {
                let mut row = vec![
                    Cell::Name(host.host.clone()),
                    Cell::Name(host.subsystem.clone()),
                    Cell::Count(host.queues),
                ];
                row.extend(io(&host.rates));
                row.push(Cell::Count(host.rates.errors));
                row
            })
            .collect(),
        View::Cores => interval
            .cores
            .iter()
            .map(|core| {
                vec![
                    Cell::Name(core.name.clone()),
                    Cell::Share(core.useful),
                    Cell::Rate(core.turns),
                    Cell::Bytes(core.received),
                    Cell::Bytes(core.sent),
                ]
            })
            .collect(),
    }
}

fn device(name: &str, rates: &Rates) -> Row {
    let mut row = vec![Cell::Name(name.to_owned())];
    row.extend(io(rates));
    row.extend([rates.average_ns, rates.p50_ns, rates.p99_ns].map(Cell::Time));
    row.push(Cell::Count(rates.errors));
    row
}

/// What hosts do with a subsystem: the sum of all that are connected.
fn subsystem(subsystem: &Value, interval: &Interval) -> Row {
    let nqn = string(&subsystem["nqn"]);
    let mut sum = Rates::default();
    let mut connected = 0;
    for host in interval.hosts.iter().filter(|host| host.subsystem == nqn) {
        sum.add(&host.rates);
        connected += u64::from(host.controllers > 0);
    }
    let count = |member: &str| {
        Cell::Count(u64::try_from(elements(subsystem, member).len()).unwrap_or(u64::MAX))
    };
    let mut row = vec![
        Cell::Name(nqn),
        count("namespaces"),
        count("listen_addresses"),
        Cell::Count(connected),
    ];
    row.extend(io(&sum));
    row.push(Cell::Count(sum.errors));
    row
}

fn io(rates: &Rates) -> [Cell; 3] {
    [Cell::Rate(rates.iops()), Cell::Bytes(rates.read_bytes), Cell::Bytes(rates.written_bytes)]
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// An order: by a column, numbers from the largest on, names from the first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Order {
    pub(super) column: usize,
    pub(super) is_reversed: bool,
}

/// Sorts rows, and drops those that do not have the filter's text in a name. Equal rows stay in the order of their
/// names, so that an idle screen does not move.
pub(super) fn arrange(mut rows: Vec<Row>, order: Order, filter: &str) -> Vec<Row> {
    let matches = |row: &Row| {
        row.iter().any(|cell| matches!(cell, Cell::Name(name) if name.contains(filter)))
    };
    rows.retain(|row| filter.is_empty() || matches(row));
    rows.sort_by(|one, two| {
        let (Some(a), Some(b)) = (one.get(order.column), two.get(order.column)) else {
            return Ordering::Equal;
        };
        let ascends = matches!(a, Cell::Name(_)) != order.is_reversed;
        let by_column = if ascends { a.order(b) } else { b.order(a) };
        by_column.then_with(|| one[0].order(&two[0]))
    });
    rows
}

/// All views as text.
pub(super) fn text(interval: &Interval, inventory: &Inventory) -> String {
    let mut out = format!("{}\n", summary(interval));
    for view in View::ALL {
        let mut table = Table::new(view.columns());
        let order = Order { column: 0, is_reversed: false };
        for row in arrange(rows(view, interval, inventory), order, "") {
            table.row(row.iter().map(Cell::text));
        }
        out.push_str(&format!("\n{}\n{}", view.name(), table.render("  ")));
    }
    out
}

/// All views as JSON: times in ns, sizes and rates in bytes.
pub(super) fn document(interval: &Interval, inventory: &Inventory) -> Value {
    let mut all = Map::new();
    all.insert("seconds".to_owned(), json!(interval.seconds));
    all.insert("spent_cores".to_owned(), json!(interval.spent));
    let useful: f64 = interval.cores.iter().map(|core| core.useful).sum();
    all.insert("useful_cores".to_owned(), json!(useful));
    all.insert("iops".to_owned(), json!(interval.total.iops()));
    for view in View::ALL {
        let order = Order { column: 0, is_reversed: false };
        let listed = arrange(rows(view, interval, inventory), order, "");
        let listed = listed.iter().map(|row| {
            let named = view.columns().iter().zip(row);
            named.map(|(name, cell)| ((*name).to_owned(), cell.json())).collect::<Map<_, _>>()
        });
        all.insert(view.name().to_owned(), listed.map(Value::from).collect());
    }
    all.into()
}

/// The sums in one line.
pub(super) fn summary(interval: &Interval) -> String {
    let Interval { total, cores, spent, .. } = interval;
    let useful: f64 = cores.iter().map(|core| core.useful).sum();
    format!(
        "{} IOPS  r {} w {} MiB/s  avg {} p50 {} p99 {}  cpu {:.0}% useful {:.0}%",
        short(total.iops()),
        mebibytes(total.read_bytes),
        mebibytes(total.written_bytes),
        Cell::Time(total.average_ns).text(),
        Cell::Time(total.p50_ns).text(),
        Cell::Time(total.p99_ns).text(),
        spent * 100.0,
        useful * 100.0,
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_short() {
        let shown = [0.0, 3.25, 12.0, 99_999.0, 123_456.0, 12_345_678.0].map(short);
        assert_eq!(shown, ["0", "3.2", "12", "99999", "123.5k", "12.35M"]);
        let shown = [900.0, 12_340.0, 1e6, 12e6, 1.5e9, 100e9].map(time);
        assert_eq!(shown, ["0.9us", "12.3us", "1.00ms", "12.0ms", "1.50s", "100s"]);
        assert_eq!([0.0, 4096.0, 1e9].map(mebibytes), ["0", "0.004", "954"]);
    }

    #[test]
    fn rows_are_sorted_and_filtered() {
        let row = |name: &str, rate: f64| vec![Cell::Name(name.to_owned()), Cell::Rate(rate)];
        let all = vec![row("b", 1.0), row("a", 1.0), row("c", 2.0)];
        let names = |order: Order, filter: &str| -> String {
            let rows = arrange(all.clone(), order, filter);
            rows.iter().map(|row| row[0].text()).collect()
        };
        assert_eq!(names(Order { column: 1, is_reversed: false }, ""), "cab");
        assert_eq!(names(Order { column: 1, is_reversed: true }, ""), "abc");
        assert_eq!(names(Order { column: 0, is_reversed: false }, ""), "abc");
        assert_eq!(names(Order { column: 9, is_reversed: false }, "a"), "a");
    }
}
