//! Plays histories of a cluster, and says which number makes one that breaks a promise.
//!
//! ```sh
//! cargo run --release -p quorum_check --bin simulate -- --histories 10000 --threads 2
//! cargo run --release -p quorum_check --bin simulate -- --minutes 10 --threads 2 --from 1000000
//! cargo run --release -p quorum_check --bin simulate -- --seed 7 --trace
//! cargo run --release -p quorum_check --bin simulate -- --bug NoQuarantine
//! ```

use quorum::protocol_bug::{ProtocolBug, ProtocolBugs};
use quorum_check::simulation::search::{search, Search};
use quorum_check::simulation::{again, Settings};
use std::process::ExitCode;
use std::time::{Duration, Instant};

/// Ways of being wrong that can be asked for.
const ALL: &[ProtocolBug] = &[
    ProtocolBug::NoQuarantine,
    ProtocolBug::ForgottenVotesCount,
    ProtocolBug::ReadHalf,
    ProtocolBug::FenceNotWritten,
    ProtocolBug::FenceNotAwaited,
    ProtocolBug::FencesNotTaken,
    ProtocolBug::LeaseFromAnswer,
    ProtocolBug::SameGeneration,
    ProtocolBug::RevokedForgotten,
    ProtocolBug::UnlockKeepsHeld,
    ProtocolBug::NotStoredAgain,
    ProtocolBug::AnyOrder,
];

const USAGE: &str = "simulate [--seed S [--trace | --lines N]] [--histories N] [--from S] [--minutes M] [--threads T] \
                     [--bug NAME]";

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    lines: Option<usize>,
    histories: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    threads: Option<usize>,
    bug: Option<ProtocolBug>,
}

fn arguments() -> Result<Arguments, String> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        if word == "--bug" {
            let name = words.next().unwrap_or_default();
            let known = ALL.iter().find(|bug| format!("{bug:?}") == name);
            arguments.bug = Some(*known.ok_or_else(|| format!("no bug {name}\n{USAGE}"))?);
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
            _ => return Err(format!("{word} is not known\n{USAGE}")),
        }
    }
    Ok(arguments)
}

fn main() -> ExitCode {
    let arguments = match arguments() {
        Ok(arguments) => arguments,
        Err(sentence) => {
            eprintln!("{sentence}");
            return ExitCode::from(2);
        }
    };
    let bugs = arguments
        .bug
        .map_or(ProtocolBugs::NONE, |bug| ProtocolBugs::NONE.with(bug));
    let settings = Settings {
        bugs,
        ..Settings::default()
    };
    if let Some(seed) = arguments.seed {
        let lines = arguments.lines.unwrap_or(0);
        let outcome = again(seed, &Settings { lines, ..settings });
        println!("{:#?}", outcome.plan);
        print!("{outcome}{}", outcome.summary);
        return if outcome.violation.is_none() {
            ExitCode::SUCCESS
        } else {
            ExitCode::FAILURE
        };
    }
    let begin = Instant::now();
    let wanted = Search {
        from: arguments.from,
        histories: arguments
            .histories
            .unwrap_or(if arguments.minutes.is_some() {
                u64::MAX
            } else {
                10_000
            }),
        until: arguments
            .minutes
            .map(|minutes| begin + Duration::from_secs(60 * minutes)),
        threads: arguments.threads.unwrap_or(2),
    };
    let (summary, failed) = search(&settings, wanted);
    println!("{:.1} s\n{summary}", begin.elapsed().as_secs_f64());
    match failed {
        None => ExitCode::SUCCESS,
        Some(seed) => {
            print!("{}", again(seed, &settings));
            ExitCode::FAILURE
        }
    }
}
