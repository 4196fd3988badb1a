//! The report about the papers' experiments, opened in a browser.

use std::io::Read as _;
use std::path::Path;

use anyhow::{Context, Result, ensure};

use crate::child::Task;
use crate::raceline::Tree;
use crate::setup;
use crate::step::{Checks, Outcome};

/// Time for one start of the browser, in seconds.
const BROWSER_LIMIT_S: u64 = 45;
/// Rows of points that differ from each other: a page with text has more, a blank one has fewer.
const ROWS_OF_TEXT: usize = 300;
const ROWS_OF_NOTHING: usize = 20;
/// The widest cell with a figure, or with the reason why there is none.
const WIDEST_FIGURE_PX: u32 = 400;

/// Makes a report of records with invented values, and looks at it.
pub(crate) fn run(tree: &Tree) -> Result<Outcome> {
    let folder = tree.scratch("papers-report")?;
    let records = folder.join("records");
    Task::new(tree.example("fixture_records")?).args([&records]).dir(&tree.root).check()?;
    let page = folder.join("report.html");
    let report = tree.raceline(["bench", "report"])?.args([&records]);
    report.args([Path::new("--out"), &page]).limit(60).check()?;
    let mut checks = Checks::default();
    checks.run("report: page, tables and plots are there", || files(&page));
    if let Some(why) = setup::missing_for("papers-report") {
        checks.skip("report: in a browser", &why);
        let outcome = checks.outcome()?;
        return if setup::is_ci() { setup::cannot(&why) } else { Ok(outcome) };
    }
    // What the checks must find: an error, and a page without anything.
    let bad = folder.join("bad.html");
    std::fs::write(
        &bad,
        "<!DOCTYPE html><title>x</title><script>console.error('as expected')</script>",
    )?;
    checks.run("browser: an error of a page is seen", || {
        let (errors, rows) = open(&folder, &bad, &[])?;
        ensure!(!errors.is_empty(), "the browser reports no error of a page that has one");
        ensure!(rows <= ROWS_OF_NOTHING, "a blank page has {rows} different rows");
        Ok(())
    });
    checks.run("report: no column of figures is pushed aside", || narrow(&folder, &page));
    let looks: [(&str, &[&str]); 2] =
        [("light", &[]), ("dark", &["--blink-settings=preferredColorScheme=0"])];
    for (name, extra) in looks {
        checks.run(&format!("report: opens in a browser, {name}"), || {
            let (errors, rows) = open(&folder, &page, extra)?;
            ensure!(errors.is_empty(), "the browser complains: {}", errors.join("; "));
            ensure!(rows >= ROWS_OF_TEXT, "the picture of the page has only {rows} different rows");
            Ok(())
        });
    }
    checks.outcome()
}

/// The files beside the page.
fn files(page: &Path) -> Result<()> {
    for name in
        ["report.html", "report.md", "report.json", "report-summary.csv", "report-ratios.csv"]
    {
        let path = page.with_file_name(name);
        let length = std::fs::metadata(&path).with_context(|| name.to_owned())?.len();
        ensure!(length > 500, "{name} has only {length} bytes");
    }
    let figures = page.with_file_name("report-figures");
    let count = std::fs::read_dir(&figures).context("report-figures")?.count();
    ensure!(count >= 20, "only {count} plots");
    Ok(())
}

/// Cells of figures are as wide as figures: a long text in one would push its column out of sight.
fn narrow(folder: &Path, page: &Path) -> Result<()> {
    let text = std::fs::read_to_string(page)?;
    let without_policy = text.replace("default-src 'none'", "script-src 'unsafe-inline'");
    ensure!(without_policy != text, "the page says nothing of scripts");
    let script = format!(
        "<script>for (const cell of document.querySelectorAll('td.n')) \
         if (cell.offsetWidth > {WIDEST_FIGURE_PX}) console.error(cell.textContent);</script>"
    );
    let copy = folder.join("narrow.html");
    std::fs::write(&copy, without_policy + &script)?;
    let (errors, _) = open(folder, &copy, &[])?;
    ensure!(errors.is_empty(), "cells wider than {WIDEST_FIGURE_PX} px: {}", errors.join("; "));
    Ok(())
}

/// What the browser complains about, and how many different rows its picture of the page has.
fn open(folder: &Path, page: &Path, extra: &[&str]) -> Result<(Vec<String>, usize)> {
    let picture = folder.join("picture.png");
    let _ = std::fs::remove_file(&picture);
    let ended = Task::new("chromium")
        .args([
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--hide-scrollbars",
            "--no-first-run",
        ])
        .args([
            "--disable-dev-shm-usage",
            "--disable-background-networking",
            "--enable-logging=stderr",
        ])
        .args(["--window-size=1200,4000"])
        .args(extra)
        .args([format!("--user-data-dir={}", folder.join("profile").display())])
        .args([format!("--screenshot={}", picture.display())])
        .args([format!("file://{}", page.display())])
        .limit(BROWSER_LIMIT_S)
        .check()?;
    let complaints =
        ended.output.lines().filter(|line| line.contains(":CONSOLE")).map(str::to_owned).collect();
    Ok((
        complaints,
        different_rows(&std::fs::read(&picture).context("the browser made no picture")?)?,
    ))
}

/// The number of different rows in a PNG file's data. Rows of one colour are equal but for their filters.
fn different_rows(png: &[u8]) -> Result<usize> {
    let mut rest = png.strip_prefix(b"\x89PNG\r\n\x1a\n").context("the picture is no PNG")?;
    let (mut width, mut channels, mut packed) = (0_usize, 0_usize, Vec::new());
    while let Some((length, more)) = rest.split_first_chunk::<4>() {
        let length = u32::from_be_bytes(*length) as usize;
        let (kind, more) = more.split_at_checked(4).context("the picture is cut off")?;
        let (data, more) = more.split_at_checked(length).context("the picture is cut off")?;
        match kind {
            b"IHDR" => {
                let number = data.first_chunk::<4>().context("a short IHDR")?;
                width = u32::from_be_bytes(*number) as usize;
                channels = match data.get(9) {
                    Some(2) => 3,
                    Some(6) => 4,
                    other => anyhow::bail!("colours of kind {other:?}"),
                };
            }
            b"IDAT" => packed.extend_from_slice(data),
            _ => {}
        }
        rest = more.get(4..).unwrap_or_default();
    }
    let mut bytes = Vec::new();
    flate2::read::ZlibDecoder::new(&packed[..])
        .read_to_end(&mut bytes)
        .context("the picture's data")?;
    let row = 1 + width * channels;
    let rows: std::collections::HashSet<&[u8]> = bytes.chunks(row).collect();
    Ok(rows.len())
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    /// A picture of 4 x `rows` points with three colours each, from its rows' bytes.
    fn png(rows: &[[u8; 12]]) -> Vec<u8> {
        let mut data = flate2::write::ZlibEncoder::new(Vec::new(), flate2::Compression::fast());
        for row in rows {
            data.write_all(&[0]).unwrap();
            data.write_all(row).unwrap();
        }
        let height = u32::try_from(rows.len()).unwrap().to_be_bytes();
        let head = [&[0, 0, 0, 4][..], &height, &[8, 2, 0, 0, 0]].concat();
        let mut file = b"\x89PNG\r\n\x1a\n".to_vec();
        for (kind, data) in [(b"IHDR", head), (b"IDAT", data.finish().unwrap()), (b"IEND", vec![])]
        {
            file.extend(u32::try_from(data.len()).unwrap().to_be_bytes());
            file.extend(kind);
            file.extend(data);
            file.extend([0; 4]);
        }
        file
    }

    #[test]
    fn rows_of_pictures_are_told_apart() {
        let (white, mixed) = ([255; 12], [255, 0, 9, 255, 255, 255, 0, 0, 0, 1, 2, 3]);
        assert_eq!(different_rows(&png(&[white; 50])).unwrap(), 1);
        assert_eq!(different_rows(&png(&[white, mixed, white])).unwrap(), 2);
        let whole = png(&[white; 5]);
        assert!(different_rows(b"GIF89a").is_err());
        assert!(different_rows(&whole[..whole.len() / 2]).is_err());
    }
}
