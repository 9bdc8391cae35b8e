//! The script in the place of a command: which commands it replaces, and how its calls are written.

use std::sync::LazyLock;

use redis::{Arg, Cmd, Script};

const TEXT: &str = include_str!("script.lua");

static SCRIPT: LazyLock<Script> = LazyLock::new(|| Script::new(TEXT));

/// What the script appends to the name of a key. A bucket of the module's and one of the script's cannot read each
/// other, so they never share a key; and no [`Key`](crate::Key) ends so, where `%` stands before two digits.
pub(crate) const SUFFIX: &[u8] = b"%script";

/// The family, with the distance from a key to the next and the commands that run a script for it.
const FAMILY: [(&[u8], usize, Runner); 7] = [
    (b"TB.TAKE", usize::MAX, WRITER),
    (b"TB.PEEK", usize::MAX, READER),
    (b"TB.MTAKE", 4, WRITER),
    (b"TB.LEASE", usize::MAX, WRITER),
    (b"TB.REFUND", usize::MAX, WRITER),
    (b"TB.DEBIT", usize::MAX, WRITER),
    (b"TB.STATE", usize::MAX, READER),
];

struct Runner {
    by_hash: &'static str,
    by_text: &'static str,
}

const WRITER: Runner = Runner { by_hash: "EVALSHA", by_text: "EVAL" };
/// These run on replicas, and make sure that nothing is written.
const READER: Runner = Runner { by_hash: "EVALSHA_RO", by_text: "EVAL_RO" };

fn member(cmd: &Cmd) -> Option<&'static (&'static [u8], usize, Runner)> {
    let Some(Arg::Simple(name)) = cmd.args_iter().next() else { return None };
    FAMILY.iter().find(|(own, ..)| name.eq_ignore_ascii_case(own))
}

/// Whether a command is one of ours.
pub(crate) fn replaces(cmd: &Cmd) -> bool {
    member(cmd).is_some()
}

/// The script in the place of a command of ours, for a server that has it already.
pub(crate) fn by_hash(cmd: &Cmd) -> Cmd {
    call(cmd, |runner| (runner.by_hash, SCRIPT.get_hash()))
}

/// The script in the place of a command of ours, with its text, which the server keeps. No round trip more than `SCRIPT
/// LOAD`, and in a cluster it goes where the key is.
pub(crate) fn by_text(cmd: &Cmd) -> Cmd {
    call(cmd, |runner| (runner.by_text, TEXT))
}

/// A command that changes nothing and that only a server with the module knows; it goes where this one of ours would
/// go.
pub(crate) fn question(cmd: &Cmd) -> Cmd {
    let mut question = redis::cmd("TB.STATE");
    question.arg(arguments(cmd).next().unwrap_or_default());
    question
}

fn arguments(cmd: &Cmd) -> impl Iterator<Item = &[u8]> {
    cmd.args_iter().skip(1).map(|arg| match arg {
        Arg::Simple(bytes) => bytes,
        // A cursor, which none of ours has.
        _ => b"",
    })
}

/// `RUNNER script count key ... name argument ...`; a command that is not ours stays as it is.
fn call(cmd: &Cmd, form: impl Fn(&Runner) -> (&'static str, &'static str)) -> Cmd {
    let Some((name, stride, runner)) = member(cmd) else { return cmd.clone() };
    let is_key = |at: usize| at.is_multiple_of(*stride);
    let keys = || arguments(cmd).enumerate().filter(|(at, _)| is_key(*at));
    let (runner, script) = form(runner);
    let mut call = redis::cmd(runner);
    call.arg(script).arg(keys().count());
    for (_, key) in keys() {
        call.arg([key, SUFFIX].concat());
    }
    call.arg(*name);
    for (_, argument) in arguments(cmd).enumerate().filter(|(at, _)| !is_key(*at)) {
        call.arg(argument);
    }
    call
}

/// A pipeline's commands with the script in the place of ours. The first brings it along: the rest will find it there.
pub(crate) fn replace_all<'a>(commands: impl Iterator<Item = &'a Cmd>) -> Vec<Cmd> {
    let mut brought = false;
    let replace = |cmd| {
        let bring = !brought && replaces(cmd);
        brought |= bring;
        if bring { by_text(cmd) } else { by_hash(cmd) }
    };
    commands.map(replace).collect()
}

/// The commands in what a blocking connection is given to send; `None` if that is anything else.
pub(crate) fn parse(mut packed: &[u8]) -> Option<Vec<Cmd>> {
    let mut commands = Vec::new();
    while !packed.is_empty() {
        let mut cmd = Cmd::new();
        for _ in 0..number(&mut packed, b'*')? {
            let len = number(&mut packed, b'$')?;
            let (arg, rest) = packed.split_at_checked(len)?;
            cmd.arg(arg);
            packed = rest.strip_prefix(b"\r\n")?;
        }
        commands.push(cmd);
    }
    Some(commands)
}

/// Reads a line of a type byte and a number.
fn number(packed: &mut &[u8], kind: u8) -> Option<usize> {
    let end = packed.windows(2).position(|pair| pair == b"\r\n")?;
    let (line, rest) = packed.split_at_checked(end)?;
    *packed = rest.strip_prefix(b"\r\n")?;
    std::str::from_utf8(line.strip_prefix(&[kind])?).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_packed_is_read_back() {
        let mut pipeline = redis::pipe();
        pipeline.atomic().cmd("GET").arg("a\r\n").cmd("TB.TAKE").arg(&[][..] as &[u8]).arg(1).arg(2);
        let commands = parse(&pipeline.get_packed_pipeline()).unwrap();
        let packed: Vec<u8> = commands.iter().flat_map(Cmd::get_packed_command).collect();
        assert_eq!(packed, pipeline.get_packed_pipeline());
        for cut in 1..packed.len() {
            let _ = parse(&packed[..cut]);
        }
        assert!(parse(b"PING\r\n").is_none());
    }

    #[test]
    fn keys_go_first_and_arguments_after_the_name() {
        let mut cmd = redis::cmd("tb.mtake");
        cmd.arg("a").arg(1).arg("2/3").arg(4).arg("b").arg(5).arg(6).arg(7);
        let call = by_hash(&cmd);
        let words: Vec<&[u8]> = arguments(&call).collect();
        let expected = "2 a%script b%script TB.MTAKE 1 2/3 4 5 6 7".split(' ').map(str::as_bytes);
        assert_eq!(words[1..], expected.collect::<Vec<_>>());
        assert!(!replaces(&redis::cmd("GET")) && !replaces(&Cmd::new()));
    }

    #[test]
    fn a_pipeline_brings_the_script_once() {
        let commands = ["PING", "TB.TAKE", "TB.PEEK", "GET", "TB.TAKE"].map(redis::cmd);
        let names: Vec<Vec<u8>> = replace_all(commands.iter()).iter().map(|cmd| name(cmd).to_vec()).collect();
        assert_eq!(names, ["PING", "EVAL", "EVALSHA_RO", "GET", "EVALSHA"].map(|name| name.as_bytes().to_vec()));
    }

    fn name(cmd: &Cmd) -> &[u8] {
        match cmd.args_iter().next() {
            Some(Arg::Simple(name)) => name,
            _ => b"",
        }
    }
}
