//! Plays random histories of a cluster, and prints the trace of the first seed that violates an invariant.
//!
//! ```sh
//! cargo run --release -p quorum_check --bin simulate -- --histories 10000 --threads 2
//! cargo run --release -p quorum_check --bin simulate -- --minutes 10 --threads 2 --from 1000000
//! cargo run --release -p quorum_check --bin simulate -- --minutes 10 --long
//! cargo run --release -p quorum_check --bin simulate -- --seed 7 --trace
//! cargo run --release -p quorum_check --bin simulate -- --bug NoQuarantine
//! ```

use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum_check::simulation::history::replay;
use quorum_check::simulation::options::Options;
use quorum_check::simulation::search::{search, Search};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const BUGS: &[ProtocolBug] = &[
    ProtocolBug::NoQuarantine,
    ProtocolBug::AnyLockContinues,
    ProtocolBug::ForgottenVotesCount,
    ProtocolBug::ReadHalf,
    ProtocolBug::FenceNotWritten,
    ProtocolBug::FenceNotAwaited,
    ProtocolBug::FencesNotTaken,
    ProtocolBug::LeaseFromAnswer,
    ProtocolBug::SameGeneration,
    ProtocolBug::RevokedForgotten,
    ProtocolBug::UnlockKeepsHeld,
    ProtocolBug::FirstFrameBuries,
    ProtocolBug::GuestsForgotten,
    ProtocolBug::StaleBelieved,
    ProtocolBug::PositionsForgotten,
    ProtocolBug::GivenLost,
    ProtocolBug::GivenFromArrival,
    ProtocolBug::GivenCountsLong,
    ProtocolBug::GivenEndsWithConnection,
    ProtocolBug::NoRecalls,
    ProtocolBug::AnyOrder,
];

const USAGE: &str = "simulate [--seed S [--trace | --lines N]] [--histories N] [--from S] [--minutes M] [--threads T] \
                     [--long] [--bug NAME]";

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    lines: Option<usize>,
    histories: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    threads: Option<usize>,
    long: bool,
    bug: Option<ProtocolBug>,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--bug" {
            let name = words.next().unwrap_or_default();
            let known = BUGS.iter().find(|bug| format!("{bug:?}") == name);
            arguments.bug =
                Some(*known.ok_or_else(|| format!("--bug: unknown bug {name:?}\n{USAGE}"))?);
            continue;
        }
        if word == "--long" {
            arguments.long = true;
            continue;
        }
        if word == "--trace" {
            arguments.lines = Some(usize::MAX);
            continue;
        }
        let number = words.next().and_then(|number| number.parse::<u64>().ok());
        let number = number.ok_or_else(|| format!("{word} needs a number\n{USAGE}"))?;
        match word.as_str() {
            "--seed" => arguments.seed = Some(number),
            "--lines" => arguments.lines = Some(number as usize),
            "--histories" => arguments.histories = Some(number),
            "--from" => arguments.from = number,
            "--minutes" => arguments.minutes = Some(number),
            "--threads" => arguments.threads = Some(number as usize),
            _ => return Err(format!("unknown argument {word}\n{USAGE}")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(error) => {
            eprintln!("{error}");
            return ExitCode::from(2);
        }
    };
    let none = ProtocolBugs::NONE;
    let options = Options {
        long: arguments.long,
        bugs: arguments.bug.map_or(none, |bug| none.with(bug)),
        lines: arguments.lines.unwrap_or(0),
        ..Options::default()
    };
    let failed = match arguments.seed {
        Some(seed) => {
            let outcome = replay(seed, &options);
            println!("{:#?}", outcome.plan);
            print!("{outcome}{}", outcome.summary);
            outcome.violation.is_some()
        }
        None => {
            let lines = 0;
            play(&arguments, &Options { lines, ..options })
        }
    };
    if failed {
        ExitCode::FAILURE
    } else {
        ExitCode::SUCCESS
    }
}

/// Plays histories until one violates an invariant. Returns whether one did.
fn play(arguments: &Arguments, options: &Options) -> bool {
    let start = Instant::now();
    let minutes = arguments.minutes;
    let endless = minutes.map(|_| u64::MAX);
    let wanted = Search {
        from: arguments.from,
        histories: arguments.histories.or(endless).unwrap_or(10_000),
        until: minutes.map(|minutes| start + Duration::from_secs(60 * minutes)),
        threads: arguments.threads.unwrap_or(2),
    };
    let (summary, failed) = search(options, wanted);
    println!("{:.1} s\n{summary}", start.elapsed().as_secs_f64());
    if let Some(seed) = failed {
        print!("{}", replay(seed, options));
    }
    failed.is_some()
}
