//! Plays histories in which the members change: `change [--seed S] [--histories N] [--calm] [--contended] [--hurried]
//! [--resets] [--trace]`.

use quorum_check::views::{run, Options, Setting};
use std::collections::BTreeMap;
use std::process::ExitCode;

fn main() -> ExitCode {
    let mut arguments = std::env::args().skip(1);
    let (mut from, mut histories, mut options) = (0_u64, 1000_u64, Options::default());
    let number = |argument: Option<String>| argument.and_then(|text| text.parse().ok());
    while let Some(argument) = arguments.next() {
        match argument.as_str() {
            "--seed" => (from, histories) = (number(arguments.next()).unwrap_or(0), 1),
            "--from" => from = number(arguments.next()).unwrap_or(0),
            "--histories" => histories = number(arguments.next()).unwrap_or(1),
            "--calm" => options.calm = Some(true),
            "--hurried" => options = Options::of(Setting::Hurried),
            "--contended" => options = Options::of(Setting::Contended),
            "--resets" => options = Options::of(Setting::Resets),
            "--trace" => options.trace = true,
            other => {
                eprintln!("unknown argument {other}");
                return ExitCode::FAILURE;
            }
        }
    }
    let mut counts: BTreeMap<&str, u64> = BTreeMap::new();
    for seed in from..from + histories {
        let outcome = run(seed, &options);
        for (what, count) in &outcome.counts {
            let sum = counts.entry(what).or_default();
            *sum = match what.starts_with("longest") {
                true => (*sum).max(*count),
                false => *sum + count,
            };
        }
        outcome.lines.iter().for_each(|line| println!("{line}"));
        if let Some(broken) = outcome.broken {
            println!("seed {seed}: {} broken: {}", broken.label, broken.text);
            println!("{:?}", outcome.plan);
            return ExitCode::FAILURE;
        }
    }
    for (what, count) in counts {
        println!("{count:12} {what}");
    }
    ExitCode::SUCCESS
}
