//! `raceline bench report`: a page about the records of a folder.

use raceline_papers::report::{Report, ReportError};

use super::catalogue;
use crate::cli::bench::papers::ReportArgs;
use crate::failure::Failure;
use crate::shell;

/// Makes the page, and says where it is.
pub(in crate::bench) fn run(args: &ReportArgs) -> Result<(), Failure> {
    let (catalogue, _) = catalogue(&args.file)?;
    let report = Report::of_folder(&args.folder, catalogue.all()).map_err(failure)?;
    for problem in &report.problems {
        eprintln!("raceline: {problem}");
    }
    let out = args.out.clone().unwrap_or_else(|| args.folder.join("report").join("report.html"));
    let files = report.write(&out).map_err(failure)?;
    let measured = report.entries.iter().filter(|entry| entry.record.is_some()).count();
    let text = format!(
        "{}: {measured} of {} experiments, {} files with tables and plots beside it\n",
        out.display(),
        report.entries.len(),
        files.len().saturating_sub(1)
    );
    shell::print(text.as_bytes())
}

fn failure(error: ReportError) -> Failure {
    match error {
        ReportError::Name { .. } => Failure::usage(error),
        _ => Failure::runtime(error),
    }
}
