//! `cargo xtask report`: the figures and the plots of docs/PERFORMANCE.md, from measured JSON.
//!
//! Measured values go into docs/plots/figures.json, and page and plots are made from that file
//! alone. No figure is typed by hand, and a check can make page and plots again.

mod figures;
mod page;
mod plot;
mod read;

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};

use self::figures::{Beside, Figures, Point, Row};
use self::plot::{Plot, Series};
use crate::spdk::Spread;

const PAGE: &str = "docs/PERFORMANCE.md";
const PLOTS: &str = "docs/plots";
const FIGURES: &str = "docs/plots/figures.json";
/// Most lines of the page.
const PAGE_LINES_MAX: usize = 150;
/// The I/O size of the plots.
const IO_KIB: u32 = 4;
const PLOT_DEPTH: u32 = 32;

/// The options.
#[derive(clap::Args)]
pub(crate) struct Options {
    /// Measured JSON, or folders of it; without any, page and plots are made from the last figures.
    #[arg(value_name = "DIR|FILE")]
    measured: Vec<PathBuf>,
    /// Forget the earlier figures; by default they stay where no newer ones are given.
    #[arg(long, conflicts_with = "check", requires = "measured")]
    fresh: bool,
    /// The build of lists of `raceline bench gap`, which only name their version.
    #[arg(long, value_name = "ID", requires = "measured")]
    build: Option<String>,
    /// Change nothing: fail where page and plots do not match the figures.
    #[arg(long, conflicts_with = "measured")]
    check: bool,
}

/// Makes page and plots, or checks them.
pub(crate) fn run(root: &Path, options: &Options) -> Result<()> {
    if options.check {
        let complaints = check(root)?;
        complaints.iter().for_each(|complaint| println!("{complaint}"));
        ensure!(complaints.is_empty(), "{} files are not what {FIGURES} gives", complaints.len());
        return Ok(());
    }
    let mut figures = if options.fresh { Figures::default() } else { kept(root)? };
    for path in files(&options.measured)? {
        let newer = read::file(&path, options.build.as_deref());
        let newer = newer.with_context(|| path.display().to_string())?;
        println!("{}: {} points", path.display(), newer.points.len() + newer.tails.len());
        figures.take(newer);
    }
    for (name, text) in made(root, &figures)? {
        let path = root.join(&name);
        path.parent().map_or(Ok(()), std::fs::create_dir_all)?;
        std::fs::write(&path, text).with_context(|| format!("cannot write {name}"))?;
        println!("wrote {name}");
    }
    Ok(())
}

/// The files of page and plots that do not match the figures.
pub(crate) fn check(root: &Path) -> Result<Vec<String>> {
    let mut complaints = Vec::new();
    for (name, text) in made(root, &kept(root)?)? {
        if std::fs::read_to_string(root.join(&name)).unwrap_or_default() != text {
            complaints.push(format!(
                "{name}: not what {FIGURES} gives: run cargo xtask report, and type no figures"
            ));
        }
    }
    Ok(complaints)
}

/// Every file by its name, with its correct contents.
fn made(root: &Path, figures: &Figures) -> Result<Vec<(String, String)>> {
    let page = std::fs::read_to_string(root.join(PAGE)).context(PAGE)?;
    let page = page::filled(&page, figures).context(PAGE)?;
    page::check_length(&page, PAGE_LINES_MAX).context(PAGE)?;
    let mut files = vec![
        (PAGE.to_owned(), page),
        (FIGURES.to_owned(), serde_json::to_string_pretty(figures)? + "\n"),
    ];
    let plot = |plot: Plot| (format!("{PLOTS}/{}", plot.file), plot.svg());
    files.extend(plots(figures).map(plot));
    Ok(files)
}

fn kept(root: &Path) -> Result<Figures> {
    let path = root.join(FIGURES);
    if !path.exists() {
        return Ok(Figures::default());
    }
    serde_json::from_str(&std::fs::read_to_string(path)?).context(FIGURES)
}

/// The named files, and the JSON files of the named folders, by name.
fn files(measured: &[PathBuf]) -> Result<Vec<PathBuf>> {
    let mut files = Vec::new();
    for path in measured {
        if !path.is_dir() {
            files.push(path.clone());
            continue;
        }
        let entries = std::fs::read_dir(path)?.collect::<Result<Vec<_>, _>>()?;
        let paths = entries.into_iter().map(|entry| entry.path());
        let mut of_folder: Vec<PathBuf> =
            paths.filter(|path| path.extension().is_some_and(|end| end == "json")).collect();
        ensure!(!of_folder.is_empty(), "{} has no files *.json", path.display());
        of_folder.sort();
        files.extend(of_folder);
    }
    Ok(files)
}

/// IOPS over depth, and over connections.
fn plots(figures: &Figures) -> [Plot; 2] {
    let over_depth = |point: &Point| (point.connections == 1).then_some(point.depth);
    let over_connections = |point: &Point| (point.depth == PLOT_DEPTH).then_some(point.connections);
    [
        Plot {
            file: "depth.svg",
            title: format!("{IO_KIB} KiB random reads over depth, one connection"),
            x_title: "commands in flight",
            ..plot(figures, over_depth)
        },
        Plot {
            file: "connections.svg",
            title: format!("{IO_KIB} KiB random reads over connections, depth {PLOT_DEPTH} each"),
            x_title: "connections",
            ..plot(figures, over_connections)
        },
    ]
}

/// The value of a row that a line shows.
type Value = fn(&Row) -> Spread;

/// The lines that have values where `x` gives a place.
fn plot(figures: &Figures, x: impl Fn(&Point) -> Option<u32>) -> Plot {
    let is_plotted = |point: &Point| point.io_bytes == IO_KIB << 10 && !point.write;
    let rows: Vec<(u32, &Row)> = figures
        .points
        .iter()
        .filter(|row| is_plotted(&row.point))
        .filter_map(|row| Some((x(&row.point)?, row)))
        .collect();
    // Raceline has two rows of a point where both were measured, perhaps of two builds: one line
    // has the values of one kind of rows.
    let is_of = |beside| rows.iter().any(|(_, row)| row.beside == beside);
    let ours = if is_of(Beside::Limit) { Beside::Limit } else { Beside::SpdkTuned };
    let lines: [(&str, Beside, Value); 3] = [
        ("Raceline", ours, |row| row.ours),
        ("SPDK tuned", Beside::SpdkTuned, |row| row.theirs),
        ("bare pair", Beside::Limit, |row| row.theirs),
    ];
    let (mut series, mut sources) = (Vec::new(), Vec::new());
    for (name, beside, value) in lines {
        let of_line = || rows.iter().filter(|(_, row)| row.beside == beside);
        let mut values: Vec<(u32, Spread)> =
            of_line().map(|(x, row)| (*x, value(row).divided_by(1000.0))).collect();
        if values.is_empty() {
            continue;
        }
        values.sort_by_key(|(x, _)| *x);
        let builds: BTreeSet<String> =
            of_line().map(|(_, row)| figures.build_and_tcp(&row.source)).collect();
        let builds: Vec<String> = builds.into_iter().collect();
        sources.push(format!("{name}: {}", builds.join(", ")));
        series.push(Series { name, values });
    }
    Plot {
        file: "",
        title: String::new(),
        x_title: "",
        y_title: "thousand IOPS: median, lowest and highest run",
        notes: [
            sources.join("; "),
            format!("Made by cargo xtask report from {FIGURES}, which names the machine."),
        ],
        series,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The page of this repository, and figures of it.
    fn copy(name: &str) -> PathBuf {
        let root = std::env::temp_dir().join(format!("xtask-report-{name}-{}", std::process::id()));
        let here = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
        std::fs::create_dir_all(root.join(PLOTS)).unwrap();
        for file in [PAGE, FIGURES] {
            std::fs::copy(here.join(file), root.join(file)).unwrap();
        }
        root
    }

    #[test]
    fn what_was_made_passes_and_what_was_typed_does_not() {
        let root = copy("typed");
        let options = Options { measured: Vec::new(), fresh: false, build: None, check: false };
        run(&root, &options).unwrap();
        assert_eq!(check(&root).unwrap(), Vec::<String>::new());
        let page = std::fs::read_to_string(root.join(PAGE)).unwrap();
        let row = page.lines().find(|line| line.starts_with("| 4 KiB read 32x1 ")).unwrap();
        std::fs::write(root.join(PAGE), page.replace(row, "| 4 KiB read 32x1 | 9999.9 |")).unwrap();
        std::fs::remove_file(root.join(PLOTS).join("depth.svg")).unwrap();
        let complaints = check(&root).unwrap();
        assert_eq!(complaints.len(), 2, "{complaints:?}");
        assert!(complaints[0].starts_with("docs/PERFORMANCE.md: not what"), "{complaints:?}");
        run(&root, &options).unwrap();
        assert!(check(&root).unwrap().is_empty());
        std::fs::remove_dir_all(root).unwrap();
    }

    #[test]
    fn folders_give_their_json() {
        let root = copy("folder");
        let plots = root.join(PLOTS);
        assert_eq!(files(std::slice::from_ref(&plots)).unwrap(), [root.join(FIGURES)]);
        assert!(files(&[root.join("docs")]).is_err());
        // The file of figures is not a measurement.
        let measured = vec![plots];
        let options = Options { measured, fresh: true, build: None, check: false };
        assert!(format!("{:#}", run(&root, &options).unwrap_err()).contains("figures.json"));
        std::fs::remove_dir_all(root).unwrap();
    }
}
