//! What was measured, as tables in Markdown.

use std::fs;
use std::path::Path;
use std::process::Command;

use super::contenders::SET;
use super::load::Load;
use super::support::Server;
use super::{Instructions, Results, Row, STARTS};

/// The machine, the versions and the command.
pub(crate) fn preamble() {
    let command: Vec<String> = ["FULL", "COUNTS", "SERVERS", "CELL"]
        .iter()
        .filter_map(|name| std::env::var(name).ok().filter(|value| !value.is_empty()).map(|value| (name, value)))
        .map(|(name, value)| match Path::new(&value).file_name() {
            // Where redis-cell lies is nobody's business.
            Some(file) if *name == "CELL" => format!(" {name}=\"{}\"", file.display()),
            _ => format!(" {name}=\"{value}\""),
        })
        .collect();
    println!("`make bench{}` at {}: {}, {}.", command.concat(), commit(), machine(), compiler());
}

/// What is measured.
fn commit() -> String {
    said_by(Command::new("git").args(["describe", "--always", "--dirty"]))
        .unwrap_or_else(|| "an unknown commit".to_owned())
}

/// The one line that a command prints.
fn said_by(command: &mut Command) -> Option<String> {
    let output = command.output().ok().filter(|output| output.status.success())?;
    Some(String::from_utf8_lossy(&output.stdout).trim().to_owned())
}

fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let models: Vec<&str> = info.lines().filter_map(|line| line.strip_prefix("model name")).collect();
    let model =
        models.first().and_then(|line| line.split_once(':')).map_or("unknown processor", |(_, model)| model.trim());
    format!("{} cores of {model}", models.len())
}

fn compiler() -> String {
    said_by(Command::new("rustc").arg("--version")).unwrap_or_else(|| "unknown rustc".to_owned())
}

/// A server's own name and version.
pub(crate) fn name_of(server: &Server) -> String {
    let mut client = server.client();
    match client.info("valkey_version") {
        none if none.is_empty() && client.knows("gcra") => format!("Redis {} with GCRA", client.info("redis_version")),
        none if none.is_empty() => format!("Redis {}", client.info("redis_version")),
        version => format!("Valkey {version}"),
    }
}

pub(crate) fn print(results: &Results) {
    println!("\n### {}", results.server);
    let rows: Vec<&Row> = results.rows.iter().filter(|row| row.hot.is_some()).collect();
    instructions(&rows, results.row(SET));
    if rows.iter().any(|row| row.load.is_some()) {
        microseconds(&rows);
    }
    logged(&rows);
    growth(&rows, results.row(SET));
}

fn instructions(rows: &[&Row], set: &Row) {
    println!(
        "\nInstructions per call, the least of {STARTS} starts of the server: on one key, with how far the most is above it and the"
    );
    println!("share of `SET`; then on other keys; then on one with a listener.\n");
    let cells = |row: &&Row| {
        let ratio = row.hot.zip(set.hot).map_or(String::new(), |(hot, set)| format!("{:.2}", hot.least / set.least));
        let spread = row.hot.map_or(String::new(), |hot| format!("{:.1} %", (hot.most / hot.least - 1.0) * 100.0));
        let counts = [row.many, row.fresh, row.to_file, row.to_replica].map(count);
        [vec![name(row), count(row.hot), spread, ratio], counts.to_vec()].concat()
    };
    let header = ["call", "one key", "spread", "of SET", "1,000 keys", "fresh keys", "append-only file", "replica"];
    markdown(&header, rows.iter().map(cells));
}

fn microseconds(rows: &[&Row]) {
    println!(
        "\nMicroseconds per call, the median of some rounds: of the server's processor time in pipelines of 32, on one key, on"
    );
    println!(
        "100,000, and on one with `appendfsync everysec` and a replica, each with the least and the most; as `INFO commandstats`"
    );
    println!(
        "counts; calls per second in these pipelines, and from 8 clients without one, with the latencies that these see.\n"
    );
    let cells = |row: &&Row| {
        let load = row.load?;
        let cpu = |load: Option<Load>| {
            load.map_or(String::new(), |load| {
                let (least, most) = load.cpu_range;
                format!("{:.2} ({least:.2}-{most:.2})", load.cpu)
            })
        };
        Some(vec![
            name(row),
            cpu(row.load),
            cpu(row.load_many),
            cpu(row.load_durable),
            format!("{:.2}", load.own),
            grouped(load.piped),
            grouped(load.single),
            format!("{:.0}", load.p50),
            format!("{:.0}", load.p99),
        ])
    };
    let header =
        ["call", "CPU", "CPU, 100k keys", "CPU, durable", "usec_per_call", "piped calls/s", "calls/s", "p50", "p99"];
    markdown(&header, rows.iter().filter_map(cells));
}

fn logged(rows: &[&Row]) {
    println!("\nBytes that a call on a key that exists adds.\n");
    let cells = |row: &&Row| {
        let logged = row.logged?;
        Some(vec![name(row), format!("{:.0}", logged.file), format!("{:.0}", logged.stream)])
    };
    markdown(&["call", "append-only file", "replication"], rows.iter().filter_map(cells));
}

fn growth(rows: &[&Row], set: &Row) {
    let timed = set.growth.iter().any(|point| point.cpu.is_some());
    let time = if timed { ", and the server's microseconds per call on them" } else { "" };
    println!("\nAs keys of 16 bytes grow in number: bytes of memory each{time}.\n");
    let columns = set.growth.iter().map(|point| short(point.buckets));
    let columns = columns.flat_map(|size| {
        let cpu = timed.then(|| format!("CPU, {size}"));
        std::iter::once(format!("bytes, {size}")).chain(cpu)
    });
    let header: Vec<String> = std::iter::once("call".to_owned()).chain(columns).collect();
    let header: Vec<&str> = header.iter().map(String::as_str).collect();
    let cells = |row: &&Row| {
        let cells = row.growth.iter().flat_map(|point| {
            let cpu = point.cpu.map(|cpu| format!("{cpu:.2}"));
            std::iter::once(format!("{:.1}", point.bytes)).chain(cpu)
        });
        std::iter::once(name(row)).chain(cells).collect()
    };
    markdown(&header, rows.iter().filter(|row| !row.growth.is_empty()).map(cells));
}

fn name(row: &Row) -> String {
    format!("`{}`", row.contender.name)
}

fn count(instructions: Option<Instructions>) -> String {
    instructions.map_or(String::new(), |instructions| grouped(instructions.least))
}

/// A whole number with its thousands apart.
pub(crate) fn grouped(number: f64) -> String {
    let digits = format!("{number:.0}");
    let mut text = String::new();
    for (at, digit) in digits.chars().enumerate() {
        if at > 0 && (digits.len() - at).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// `1k`, `5M`.
pub(crate) fn short(number: usize) -> String {
    if number < 1_000_000 { format!("{}k", number / 1_000) } else { format!("{}M", number / 1_000_000) }
}

/// A table whose first column is text and whose others are numbers.
pub(crate) fn markdown(header: &[&str], rows: impl Iterator<Item = Vec<String>>) {
    println!("| {} |", header.join(" | "));
    println!("|---|{}", "--:|".repeat(header.len() - 1));
    for row in rows {
        println!("| {} |", row.join(" | "));
    }
}
