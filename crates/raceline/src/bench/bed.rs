//! `raceline bench bed`: two namespaces and the link between them, for measurements by hand.

use raceline_papers::bed::link::LinkState;
use raceline_papers::bed::named::{self, NamedError};
use raceline_papers::bed::veth::{Side, VethError};

use crate::cli::bench::bed::{BedAction, BedArgs};
use crate::cli::values::OutputFormat;
use crate::failure::Failure;
use crate::shell;

/// Makes, removes or shows the bed.
pub(crate) fn run(args: &BedArgs) -> Result<(), Failure> {
    let states = match &args.action {
        BedAction::Up(link) => named::up(&link.options()).map_err(failure)?,
        BedAction::Show => named::show().map_err(failure)?,
        BedAction::Down => {
            if !named::down().map_err(failure)? {
                eprintln!("raceline: there was no bed");
            }
            return Ok(());
        }
    };
    let text = match args.output {
        OutputFormat::Table => table(&states),
        OutputFormat::Json => {
            serde_json::to_string_pretty(&states).map_err(Failure::runtime)? + "\n"
        }
    };
    shell::print(text.as_bytes())
}

fn table(states: &[LinkState]) -> String {
    let line = |(side, state): (Side, &LinkState)| {
        let ids: Vec<String> = state.napi_ids.iter().map(u32::to_string).collect();
        format!("{}  {state}; NAPI ids: {}\n", named::name(side), ids.join(" "))
    };
    Side::BOTH.into_iter().zip(states).map(line).collect()
}

fn failure(error: NamedError) -> Failure {
    match error {
        NamedError::Make(VethError::Options(_)) => Failure::usage(error),
        error => Failure::runtime(error),
    }
}
