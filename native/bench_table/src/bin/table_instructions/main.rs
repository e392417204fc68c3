//! Makes one call of a table so many times, so that somebody can count the instructions:
//!
//! ```text
//!   table_instructions                  the names of the calls
//!   table_instructions NAME TIMES       makes it
//! ```
//!
//! `scripts/instructions.sh` does that, and compares with what it was.

mod allocator;
mod calls;

use std::process::ExitCode;

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    match &arguments[..] {
        [] => {
            for (name, _) in calls::ALL {
                println!("{name}");
            }
            ExitCode::SUCCESS
        }
        [wanted, times] => {
            let call = calls::ALL.iter().find(|(name, _)| name == wanted);
            let (Some((_, call)), Ok(times)) = (call, times.parse()) else {
                return usage();
            };
            call(times);
            ExitCode::SUCCESS
        }
        _ => usage(),
    }
}

fn usage() -> ExitCode {
    eprintln!("usage: table_instructions [NAME TIMES]");
    ExitCode::from(2)
}
