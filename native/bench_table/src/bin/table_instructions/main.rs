//! Makes one call of a table many times, so that its instructions can be counted:
//!
//! ```text
//!   table_instructions                  prints the names of the calls
//!   table_instructions NAME TIMES       makes the call
//! ```
//!
//! `scripts/instructions.sh` runs this, and compares the result with earlier numbers.

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
