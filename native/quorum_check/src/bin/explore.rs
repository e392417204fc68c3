//! Searches the settings of the tests for longer, and shows the traces of the controls.

use quorum_check::model::search::{search, Bounds, Strategy};
use quorum_check::model::setting::Setting;
use quorum_check::model::{controls, settings};
use std::env;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
explore [NAME ...] [--minutes M] [--threads T] [--states S] [--walk] [--length L] [--seed N]
    search the named settings, or all of them, for M minutes in total (default 1)
    --walk takes random walks of at most L actions from seed N
explore --control [NAME ...] [--minutes M] [--threads T] [--states S]
    search the named controls, or all of them, for M minutes each, and show their traces
explore --list
    list all settings and controls";

struct Arguments {
    names: Vec<String>,
    minutes: f64,
    bounds: Bounds,
    length: usize,
    seed: u64,
    walk: bool,
    control: bool,
    list: bool,
}

fn main() -> ExitCode {
    match arguments() {
        Some(arguments) if arguments.list => list(),
        Some(arguments) => explore(&arguments),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn arguments() -> Option<Arguments> {
    let bounds = Bounds {
        states: usize::MAX,
        time: Duration::ZERO,
        threads: 2,
    };
    let mut arguments = Arguments {
        names: Vec::new(),
        minutes: 1.0,
        bounds,
        length: 400,
        seed: 1,
        walk: false,
        control: false,
        list: false,
    };
    let mut words = env::args().skip(1);
    while let Some(word) = words.next() {
        match word.as_str() {
            "--minutes" => arguments.minutes = words.next()?.parse().ok()?,
            "--threads" => arguments.bounds.threads = words.next()?.parse().ok()?,
            "--states" => arguments.bounds.states = words.next()?.parse().ok()?,
            "--length" => arguments.length = words.next()?.parse().ok()?,
            "--seed" => arguments.seed = words.next()?.parse().ok()?,
            "--walk" => arguments.walk = true,
            "--control" => arguments.control = true,
            "--list" => arguments.list = true,
            name if !name.starts_with('-') => arguments.names.push(name.into()),
            _ => return None,
        }
    }
    Some(arguments)
}

fn list() -> ExitCode {
    for setting in settings::all() {
        println!("{:20} {}", setting.name, setting.about);
    }
    for Setting {
        name,
        about,
        expect,
        ..
    } in controls::all()
    {
        println!("{name:20} (control: {expect:?}) {about}");
    }
    ExitCode::SUCCESS
}

/// The settings or controls with the given names, or all of them. None if a name is unknown.
fn chosen(arguments: &Arguments) -> Option<Vec<Setting>> {
    let mut chosen = match arguments.control {
        true => controls::all(),
        false => settings::all(),
    };
    let names = &arguments.names;
    let known = |name: &&String| chosen.iter().any(|setting| setting.name == name.as_str());
    if let Some(unknown) = names.iter().find(|name| !known(name)) {
        eprintln!("unknown name: {unknown}; explore --list shows all settings and controls");
        return None;
    }
    chosen.retain(|setting| names.is_empty() || names.iter().any(|name| name == setting.name));
    Some(chosen)
}

fn explore(arguments: &Arguments) -> ExitCode {
    let Some(chosen) = chosen(arguments) else {
        return ExitCode::from(2);
    };
    let total = Duration::from_secs_f64(arguments.minutes * 60.0);
    let bounds = Bounds {
        time: match arguments.control {
            true => total,
            false => total.div_f64(chosen.len() as f64),
        },
        ..arguments.bounds
    };
    let strategy = match arguments.walk {
        true => Strategy::RandomWalks {
            length: arguments.length,
            seed: arguments.seed,
        },
        false => Strategy::BreadthFirst,
    };
    let mut as_expected = true;
    for setting in chosen {
        if arguments.control {
            println!("{}", setting.about);
        }
        let report = search(setting, strategy, bounds);
        println!("{report}");
        as_expected &= report.as_expected();
    }
    ExitCode::from(u8::from(!as_expected))
}
