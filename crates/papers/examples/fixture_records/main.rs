//! Writes records of the experiments with invented values, to look at a report without measuring.
//!
//! `cargo run -p raceline-papers --example fixture_records -- DIR`

mod make;

use std::path::PathBuf;

fn main() {
    let Some(folder) = std::env::args_os().nth(1).map(PathBuf::from) else {
        eprintln!("usage: fixture_records DIR");
        std::process::exit(2);
    };
    let written = std::fs::create_dir_all(&folder).and_then(|()| {
        let mut count = 0;
        for experiment in make::experiments() {
            let name = make::file_name(&experiment.id);
            let text = serde_json::to_vec(&make::record(&experiment))?;
            std::fs::write(folder.join(name), text)?;
            count += 1;
        }
        Ok(count)
    });
    match written {
        Ok(count) => println!("{count} records with invented values in {}", folder.display()),
        Err(error) => {
            eprintln!("fixture_records: cannot write to {}: {error}", folder.display());
            std::process::exit(1);
        }
    }
}
