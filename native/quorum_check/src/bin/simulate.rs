//! Plays random histories of a cluster, and prints the trace of the first seed that violates an invariant.
//!
//! ```sh
//! cargo run --release -p quorum_check --bin simulate -- --histories 10000 --threads 2
//! cargo run --release -p quorum_check --bin simulate -- --minutes 10 --threads 2 --from 1000000
//! cargo run --release -p quorum_check --bin simulate -- --minutes 10 --long
//! cargo run --release -p quorum_check --bin simulate -- --seed 7 --trace
//! ```

use quorum_check::simulation::history::replay;
use quorum_check::simulation::options::Options;
use quorum_check::simulation::search::{search, Search};
use std::process::ExitCode;
use std::time::{Duration, Instant};

const USAGE: &str =
    "simulate [--seed S [--trace]] [--histories N] [--from S] [--minutes M] [--threads T] [--long]";

#[derive(Default)]
struct Arguments {
    seed: Option<u64>,
    trace: bool,
    histories: Option<u64>,
    from: u64,
    minutes: Option<u64>,
    threads: Option<usize>,
    long: bool,
}

fn arguments() -> Option<Arguments> {
    let mut arguments = Arguments::default();
    let mut words = std::env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--seed" => arguments.seed = Some(words.next()?.parse().ok()?),
            "--trace" => arguments.trace = true,
            "--histories" => arguments.histories = Some(words.next()?.parse().ok()?),
            "--from" => arguments.from = words.next()?.parse().ok()?,
            "--minutes" => arguments.minutes = Some(words.next()?.parse().ok()?),
            "--threads" => arguments.threads = Some(words.next()?.parse().ok()?),
            "--long" => arguments.long = true,
            _ => return None,
        }
    }
    Some(arguments)
}

fn main() -> ExitCode {
    let Some(arguments) = arguments() else {
        eprintln!("{USAGE}");
        return ExitCode::from(2);
    };
    let options = Options {
        long: arguments.long,
        lines: if arguments.trace { usize::MAX } else { 0 },
        ..Options::default()
    };
    let failed = match arguments.seed {
        Some(seed) => {
            let outcome = replay(seed, &options);
            println!("{:#?}", outcome.plan);
            print!("{outcome}{}", outcome.summary);
            outcome.violation.is_some()
        }
        None => play(
            &arguments,
            &Options {
                lines: 0,
                ..options
            },
        ),
    };
    ExitCode::from(u8::from(failed))
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
