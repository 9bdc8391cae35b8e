//! The command reference against a running server: names, syntax, summaries, flags, categories and every example are what
//! the server says. `TB_UPDATE_DOCS=1 cargo test --test reference` writes new replies into docs/commands.md.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use std::collections::BTreeMap;
use std::fs;
use std::path::PathBuf;

use support::{Client, Reply, Server, WallClock};

const REFERENCE: &str = include_str!("../docs/commands.md");
const README: &str = include_str!("../README.md");
const OVERVIEW: &str = include_str!("../src/lib.rs");
const ERRORS: &str = include_str!("../src/error.rs");

/// What the server says about a command.
#[derive(Debug)]
struct Manual {
    /// `TB.TAKE`.
    name: String,
    /// `TB.TAKE key capacity rate [cost]`.
    syntax: String,
    arity: i64,
    summary: String,
    since: String,
    complexity: String,
    /// Without `module`.
    flags: Vec<String>,
    /// `@write`; empty where the server has none for modules.
    categories: Vec<String>,
    /// Positions of the first and the last key, and the step between keys.
    keys: [i64; 3],
    reads_only: bool,
}

/// The manual of every command that the module brings, except the one that debug builds have for the tests.
fn manuals(client: &mut Client) -> Vec<Manual> {
    let names = client.ask("COMMAND LIST FILTERBY MODULE tokenbucket");
    let mut names: Vec<String> = names.texts().into_iter().map(str::to_owned).collect();
    names.retain(|name| name != "tb.panic");
    names.sort_unstable();
    names.iter().map(|name| manual(client, name)).collect()
}

fn manual(client: &mut Client, name: &str) -> Manual {
    let docs = client.ask(&format!("COMMAND DOCS {name}"));
    let docs = docs.field(name);
    let info = client.ask(&format!("COMMAND INFO {name}"));
    let [_, arity, flags, first, last, step, categories, _, specs, ..] = info.items()[0].items() else {
        panic!("{info:?}")
    };
    let text = |field: &str| docs.field(field).text().to_owned();
    let words = |list: &Reply| list.texts().into_iter().map(str::to_owned).collect::<Vec<_>>();
    let [spec] = specs.items() else { panic!("one key spec, not {specs:?}") };
    Manual {
        name: name.to_uppercase(),
        syntax: format!("{} {}", name.to_uppercase(), syntax(docs.field("arguments").items())),
        arity: arity.int(),
        summary: text("summary"),
        since: text("since"),
        complexity: text("complexity"),
        flags: words(flags).into_iter().filter(|flag| flag != "module").collect(),
        categories: words(categories),
        keys: [first.int(), last.int(), step.int()],
        reads_only: spec.field("flags").texts().contains(&"RO"),
    }
}

fn has_flag(argument: &Reply, flag: &str) -> bool {
    // Arguments without flags have no such field.
    let Reply::Array(fields) = argument else { panic!("{argument:?}") };
    let flags = fields.chunks(2).find(|pair| pair[0] == Reply::Text(b"flags".into()));
    flags.is_some_and(|pair| pair[1].texts().contains(&flag))
}

/// `key capacity rate [cost]`.
fn syntax(arguments: &[Reply]) -> String {
    let one = |argument: &Reply| {
        let word = match argument.field("type").text() {
            "block" => syntax(argument.field("arguments").items()),
            _ => argument.field("name").text().to_owned(),
        };
        match (has_flag(argument, "optional"), has_flag(argument, "multiple")) {
            (true, _) => format!("[{word}]"),
            (_, true) => format!("{word} [{word} ...]"),
            _ => word,
        }
    };
    arguments.iter().map(one).collect::<Vec<_>>().join(" ")
}

/// The reference's chapter of a command.
fn chapter(name: &str) -> &'static str {
    let start = REFERENCE.find(&format!("\n## {name}\n")).unwrap_or_else(|| panic!("no chapter on {name}"));
    let chapter = &REFERENCE[start + 4..];
    &chapter[..chapter.find("\n## ").unwrap_or(chapter.len())]
}

/// The rows of a chapter's first table, which has no heads.
fn facts(chapter: &str) -> BTreeMap<&str, &str> {
    let rows = chapter.lines().skip_while(|line| !line.starts_with('|')).take_while(|line| line.starts_with('|'));
    rows.filter_map(|row| row.trim_matches('|').split_once('|'))
        .map(|(name, fact)| (name.trim(), fact.trim()))
        .collect()
}

fn in_code(words: &[String]) -> String {
    words.iter().map(|word| format!("`{word}`")).collect::<Vec<_>>().join(" ")
}

#[test]
fn every_command_has_its_chapter_and_every_chapter_its_command() {
    let server = Server::start();
    let mut client = server.client();
    let names: Vec<String> = manuals(&mut client).into_iter().map(|manual| manual.name).collect();
    assert_eq!(names.len(), 7, "{names:?}");
    let heads = REFERENCE.lines().filter_map(|line| line.strip_prefix("## TB."));
    let mut heads: Vec<String> = heads.map(|head| format!("TB.{head}")).collect();
    heads.sort_unstable();
    assert_eq!(heads, names);
    for name in &names {
        let link = format!("[{name}](#{})", name.to_lowercase().replace('.', ""));
        assert!(REFERENCE.contains(&link), "the table of commands does not name {name}");
    }
}

#[test]
fn every_chapter_says_what_the_server_says() {
    let server = Server::start();
    let mut client = server.client();
    for manual in manuals(&mut client) {
        let chapter = chapter(&manual.name);
        let start = format!("{}\n\n```\n{}\n```\n\n{}\n\n|", manual.name, manual.syntax, manual.summary);
        assert!(chapter.starts_with(&start), "{chapter}\ndoes not begin with\n{start}");
        let facts = facts(chapter);
        let keys = match manual.keys {
            [1, 1, 1] => "the first argument",
            [1, -1, 4] => "every fourth argument",
            other => panic!("keys at {other:?}"),
        };
        let access = if manual.reads_only { "read" } else { "read and updated" };
        for (fact, wanted) in [
            ("Since", manual.since.clone()),
            ("Complexity", manual.complexity.clone()),
            ("Flags", in_code(&manual.flags)),
            ("Keys", format!("{keys}: {access}")),
        ] {
            assert_eq!(facts.get(fact), Some(&&*wanted), "{fact} of {}", manual.name);
        }
        let event = facts["Event"];
        let own = format!("`{}`", manual.name.to_lowercase());
        assert!(if manual.reads_only { event == "none" } else { event.starts_with(&own) }, "{}: {event}", manual.name);
        if !manual.categories.is_empty() {
            assert_eq!(facts["ACL categories"], in_code(&manual.categories), "categories of {}", manual.name);
        }
    }
}

#[test]
fn the_arity_follows_from_the_syntax() {
    let server = Server::start();
    let mut client = server.client();
    for manual in manuals(&mut client) {
        let needed = manual.syntax.split(" [").next().unwrap().split(' ').count() as i64;
        let wanted = if manual.syntax.contains('[') { -needed } else { needed };
        assert_eq!(manual.arity, wanted, "{}", manual.syntax);
        let mut call: Vec<&str> = vec![&manual.name, "k", "10", "1", "1"];
        call.truncate(needed as usize);
        assert!(!client.call(&call).is_error(), "{call:?}");
        call.pop();
        assert!(client.call(&call).error().starts_with("ERR wrong number of arguments"), "{call:?}");
    }
}

#[test]
fn the_readme_the_overview_and_the_sources_name_every_command() {
    let server = Server::start();
    let mut client = server.client();
    let readme = README.replace('…', "...");
    for Manual { name, syntax, .. } in manuals(&mut client) {
        assert!(readme.contains(&syntax), "the README does not have {syntax}");
        let file = name.strip_prefix("TB.").expect("our prefix").to_lowercase();
        let row = format!("//! | [`{name}`](commands::{file}) |");
        assert!(OVERVIEW.contains(&row), "src/lib.rs does not have {row}");
        let source = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join(format!("src/commands/{file}.rs"));
        let source = fs::read_to_string(&source).unwrap_or_else(|why| panic!("{}: {why}", source.display()));
        assert!(source.starts_with(&format!("//! `{syntax}`")), "src/commands/{file}.rs does not begin with {syntax}");
    }
}

#[test]
fn every_example_shows_what_the_server_answers() {
    let text = with_replies(REFERENCE);
    if text == REFERENCE {
        return;
    }
    if std::env::var_os("TB_UPDATE_DOCS").is_some() {
        let file = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("docs/commands.md");
        fs::write(&file, text).unwrap_or_else(|why| panic!("{}: {why}", file.display()));
        return;
    }
    let (number, (written, answered)) = REFERENCE
        .lines()
        .zip(text.lines().chain(std::iter::repeat("")))
        .enumerate()
        .find(|(_, (written, answered))| written != answered)
        .unwrap_or((0, ("", "another length")));
    panic!("docs/commands.md, line {}: shows\n  {written}\nbut the server answers\n  {answered}", number + 1);
}

#[test]
fn every_command_has_examples_in_its_chapter() {
    for name in ["TB.TAKE", "TB.PEEK", "TB.MTAKE", "TB.LEASE", "TB.REFUND", "TB.DEBIT", "TB.STATE"] {
        let examples = chapter(name).split("```console").skip(1).collect::<String>();
        assert!(examples.lines().filter(|line| line.starts_with(&format!("> {name} "))).count() >= 2, "{name}");
    }
    assert!(REFERENCE.matches("```console").count() >= 11);
}

#[test]
fn the_errors_are_those_of_the_module() {
    let (_, table) = REFERENCE.split_once("\n## Errors\n").expect("a chapter on errors");
    let rows = table.split("```").next().unwrap().lines().filter(|line| line.starts_with("| `"));
    let texts = rows.map(|row| row.split('`').nth(1).unwrap());
    // Texts with dots stand for many, and a wrong number of arguments is worded by the server.
    let whole: Vec<&str> = texts.filter(|text| !text.contains("...") && !text.contains("for 'tb.")).collect();
    assert!(whole.len() >= 5, "{whole:?}");
    for text in whole {
        assert!(ERRORS.contains(&format!("\"{text}\"")), "src/error.rs does not have {text}");
    }
}

/// The text with every reply in a block of examples replaced by the server's.
fn with_replies(text: &str) -> String {
    let mut out = String::new();
    let mut example: Option<(Server, WallClock)> = None;
    for line in text.lines() {
        let words = line.split_once(' ');
        match (&example, words) {
            _ if line == "```console" => example = Some(Server::frozen()),
            _ if line == "```" => example = None,
            (None, _) => {}
            (Some((server, _)), Some((">", command))) => {
                out += &format!("{line}\n{}\n", answer(server, command));
                continue;
            }
            (Some((_, clock)), Some(("#", wait))) if wait.ends_with(" later") => clock.advance_ms(wait_ms(wait)),
            // A reply of before.
            (Some(_), _) => continue,
        }
        out += line;
        out.push('\n');
    }
    out
}

/// What redis-cli shows when it sends the command.
fn answer(server: &Server, command: &str) -> String {
    let reply = server.client().ask(command);
    match command.starts_with("INFO ") {
        true => reply.text().trim_end().replace("\r\n", "\n"),
        false => shown(&reply, ""),
    }
}

/// `1.5 seconds later`.
fn wait_ms(text: &str) -> i64 {
    let [number, unit, "later"] = text.split(' ').collect::<Vec<_>>()[..] else { panic!("not a wait: {text}") };
    let number: f64 = number.parse().unwrap_or_else(|_| panic!("not a number: {text}"));
    let unit_ms = match unit {
        "ms" => 1.0,
        "second" | "seconds" => 1000.0,
        "minute" | "minutes" => 60_000.0,
        _ => panic!("not a unit of time: {text}"),
    };
    (number * unit_ms).round() as i64
}

/// A reply as redis-cli shows it; lines after the first are indented by `prefix`.
fn shown(reply: &Reply, prefix: &str) -> String {
    match reply {
        Reply::Nil => "(nil)".to_owned(),
        Reply::Int(number) => format!("(integer) {number}"),
        Reply::Error(text) => format!("(error) {}", String::from_utf8_lossy(text)),
        Reply::Text(text) if text == b"OK" => "OK".to_owned(),
        Reply::Text(text) => format!("\"{}\"", text.escape_ascii()),
        Reply::Array(items) if items.is_empty() => "(empty array)".to_owned(),
        Reply::Array(items) => {
            let width = items.len().to_string().len();
            let deeper = format!("{prefix}{:1$}", "", width + 2);
            let line = |(at, item): (usize, &Reply)| {
                let indent = if at == 0 { "" } else { prefix };
                format!("{indent}{:>width$}) {}", at + 1, shown(item, &deeper))
            };
            items.iter().enumerate().map(line).collect::<Vec<_>>().join("\n")
        }
        other => panic!("not a reply of RESP2: {other:?}"),
    }
}
