//! The quick gate on the hot path: instructions per call next to `SET key <24 bytes> PX n`, and the most that a take, a
//! refusal, a peek and several takes at once may cost. `benches/server/callgrind.rs` says what is counted.
//!
//! `cargo bench --bench instructions`; TB_SERVER names another server, TB_MODULE another build, STARTS the starts,
//! SERVER_ARGS more arguments for the server, such as `--appendonly yes`, PROFILES a folder where callgrind's files stay.
#![allow(dead_code, reason = "the whole table is the business of the bench `server`")]
#![allow(clippy::restriction, reason = "a bench fails by panicking")]

#[path = "server/callgrind.rs"]
mod callgrind;
#[path = "server/contenders.rs"]
mod contenders;
#[path = "server/stage.rs"]
mod stage;
#[path = "../tests/support/mod.rs"]
mod support;
#[path = "server/wire.rs"]
mod wire;

use std::env;
use std::process::ExitCode;

use callgrind::Audience;
use contenders::{Answer, CONTENDERS, Contender, GRANTED, MTAKE, PEEK, PING, REFUSED, SET};
use stage::{Case, Keys};
use support::{Server, Setup};

/// The most that a call may cost, as a share of another.
const BARS: &[(&str, f64, &str)] =
    &[(GRANTED, 1.2, SET), (REFUSED, 0.8, SET), (PEEK, 1.02, REFUSED), (MTAKE, 3.3, GRANTED)];

/// Calls that are no peers of anything, only watched.
const FURTHER: &[Contender] = &[
    Contender {
        name: "TB.TAKE, granted, no cost",
        prefix: "tba:",
        call: "TB.TAKE KEY 1000000 100",
        fill: "TB.TAKE KEY 1000000 100",
        answer: Answer::Integers(&[1..=1, 0..=999_999, 0..=0]),
        fresh: true,
    },
    Contender {
        name: "TB.TAKE, refused for ever",
        prefix: "tbd:",
        call: "TB.TAKE KEY 5 0.001 6",
        fill: "TB.TAKE KEY 5 0.001 5",
        answer: Answer::Integers(&[0..=0, 0..=0, -1..=-1]),
        fresh: false,
    },
    Contender {
        name: "TB.LEASE",
        prefix: "tbl:",
        call: "TB.LEASE KEY 1000000 100 1",
        fill: "TB.LEASE KEY 1000000 100 1",
        answer: Answer::Integers(&[1..=1, 0..=999_999, 0..=0]),
        fresh: true,
    },
];

fn main() -> ExitCode {
    let starts = env::var("STARTS").map_or(4, |starts| starts.parse().expect("STARTS is a number"));
    let ours = CONTENDERS
        .iter()
        .filter(|contender| [PING, "GET", "INCR", SET, GRANTED, REFUSED, PEEK, MTAKE].contains(&contender.name));
    let cases: Vec<Case> = ours.chain(FURTHER).map(|contender| Case { contender, keys: Keys::Hot }).collect();
    let costs = callgrind::measure(&setup(), Audience::Nobody, &cases, starts);
    let costs: Vec<f64> = costs.into_iter().map(|cost| cost.map_or(f64::NAN, |cost| cost.least)).collect();
    report(&cases, &costs)
}

fn setup() -> Setup {
    let args = env::var("SERVER_ARGS").unwrap_or_default();
    let words: Vec<&str> = args.split_whitespace().collect();
    words.chunks(2).fold(Server::setup(), |setup, pair| match pair {
        [directive, value] => setup.config(directive.trim_start_matches("--"), value),
        other => panic!("SERVER_ARGS: {other:?} is not a directive and its value"),
    })
}

/// Prints the table, and fails where a bar is missed.
fn report(cases: &[Case], costs: &[f64]) -> ExitCode {
    let cost_of = |name: &str| {
        let at = cases.iter().position(|case| case.contender.name == name).expect("a bar names a contender");
        costs[at]
    };
    println!("{:<32}{:>10}{:>12}  bar", "instructions", "per call", "/ SET..PX");
    let mut missed = ExitCode::SUCCESS;
    for (case, cost) in cases.iter().zip(costs) {
        let name = case.contender.name;
        print!("{name:<32}{cost:>10.0}{:>12.2}", cost / cost_of(SET));
        let bar = BARS.iter().find(|(of, ..)| *of == name).map(|(_, bar, base)| (cost / cost_of(base), bar, base));
        match bar {
            None => println!(),
            Some((ratio, bar, base)) if ratio <= *bar => println!("  {ratio:.2} of {base}, at most {bar:.2}"),
            Some((ratio, bar, base)) => {
                println!("  {ratio:.2} of {base}: MISSED, at most {bar:.2}");
                missed = ExitCode::FAILURE;
            }
        }
    }
    missed
}
