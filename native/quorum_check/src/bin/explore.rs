//! Searches what the tests search, for longer; and shows the histories that refute the broken protocols.

use quorum_check::model::search::{search, search_for, Bounds, Way};
use quorum_check::model::setting::Setting;
use quorum_check::model::{controls, settings};
use std::env;
use std::process::ExitCode;
use std::time::Duration;

const USAGE: &str = "\
explore [NAME ...] [--minutes M] [--threads T] [--states S] [--walk] [--length L] [--seed N]
    searches the named settings, or all; the minutes are shared among them
explore --control [NAME ...]
    searches broken protocols, and shows how they fail
explore --list
    what there is";

struct Wanted {
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
    match wanted() {
        Some(wanted) if wanted.list => list(),
        Some(wanted) if wanted.control => refute(&wanted),
        Some(wanted) => explore(&wanted),
        None => {
            eprintln!("{USAGE}");
            ExitCode::from(2)
        }
    }
}

fn wanted() -> Option<Wanted> {
    let bounds = Bounds {
        states: usize::MAX,
        time: Duration::ZERO,
        threads: 2,
    };
    let mut wanted = Wanted {
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
            "--minutes" => wanted.minutes = words.next()?.parse().ok()?,
            "--threads" => wanted.bounds.threads = words.next()?.parse().ok()?,
            "--states" => wanted.bounds.states = words.next()?.parse().ok()?,
            "--length" => wanted.length = words.next()?.parse().ok()?,
            "--seed" => wanted.seed = words.next()?.parse().ok()?,
            "--walk" => wanted.walk = true,
            "--control" => wanted.control = true,
            "--list" => wanted.list = true,
            name if !name.starts_with('-') => wanted.names.push(name.into()),
            _ => return None,
        }
    }
    Some(wanted)
}

fn list() -> ExitCode {
    for setting in settings::all() {
        println!("{:20} {}", setting.name, setting.about);
    }
    for control in controls::all() {
        let Setting { name, about, .. } = control.setting;
        println!("{name:20} (a control, breaks {}) {about}", control.promise);
    }
    ExitCode::SUCCESS
}

/// Those of `all` that are asked for; none if one of these is not there.
fn chosen<T>(wanted: &Wanted, all: Vec<T>, name: fn(&T) -> &'static str) -> Option<Vec<T>> {
    if wanted.names.is_empty() {
        return Some(all);
    }
    let known = |asked: &&String| all.iter().any(|item| name(item) == asked.as_str());
    if let Some(unknown) = wanted.names.iter().find(|asked| !known(asked)) {
        eprintln!("there is no {unknown}; explore --list tells what there is");
        return None;
    }
    Some(
        all.into_iter()
            .filter(|item| wanted.names.iter().any(|asked| asked == name(item)))
            .collect(),
    )
}

fn explore(wanted: &Wanted) -> ExitCode {
    let Some(chosen) = chosen(wanted, settings::all(), |setting| setting.name) else {
        return ExitCode::from(2);
    };
    let each = Duration::from_secs_f64(wanted.minutes * 60.0 / chosen.len() as f64);
    let way = if wanted.walk {
        Way::Walks {
            length: wanted.length,
            seed: wanted.seed,
        }
    } else {
        Way::Broad
    };
    let mut sound = true;
    for setting in chosen {
        let report = search(
            setting,
            way,
            Bounds {
                time: each,
                ..wanted.bounds
            },
        );
        println!("{report}");
        sound &= report.broken.is_empty();
    }
    if sound {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}

fn refute(wanted: &Wanted) -> ExitCode {
    let Some(chosen) = chosen(wanted, controls::all(), |control| control.setting.name) else {
        return ExitCode::from(2);
    };
    let each = Duration::from_secs_f64(wanted.minutes * 60.0);
    let mut refuted = true;
    for control in chosen {
        // One thread: the trace is short, and the same each time.
        let bounds = Bounds {
            threads: wanted.bounds.threads,
            time: each,
            ..wanted.bounds
        };
        println!("{}", control.setting.about);
        let report = search_for(control.setting, control.promise, Way::Broad, bounds);
        println!("{report}\n");
        refuted &= report
            .broken
            .iter()
            .any(|(promise, _)| *promise == control.promise);
    }
    if refuted {
        ExitCode::SUCCESS
    } else {
        ExitCode::FAILURE
    }
}
