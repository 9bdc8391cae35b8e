//! A network of the test's own, in which servers can be cut off from one another, silently as by a broken switch, while
//! their callers go on reaching all of them.

use std::io;
use std::panic::resume_unwind;
use std::process::Command;
use std::thread;

use crate::support::Setup;

/// Where servers talk to one another. Callers reach them at 127.0.0.1.
const SERVERS: &str = "10.0.0.0/29";
/// As many as a cluster has nodes.
const SERVER_COUNT: usize = 6;

/// What makes the network: an address for each server, and a way to nowhere, a cable whose other end takes nothing. (A
/// route that refuses would not do: the sender is told at once, and tries another way.)
const LAYOUT: [&str; 7] = [
    "link set lo up",
    "link add nowhere type veth peer name beyond",
    "link set beyond arp off up",
    "link set nowhere arp off up",
    "route add default dev nowhere table 100",
    // Rules are asked in the order of their numbers; that of local addresses has to leave room before it.
    "rule add pref 10 lookup local",
    "rule del pref 0",
];

/// The address of a server by its number.
pub(crate) fn address(number: usize) -> String {
    format!("10.0.0.{}", 1 + number)
}

/// A server that other servers reach under this address, and that reaches them from it.
pub(crate) fn at(setup: Setup, address: &str) -> Setup {
    // Whoever does not come from 127.0.0.1 counts as foreign.
    let setup = setup.config("protected-mode", "no").config("bind-source-addr", address);
    setup.config("bind", &format!("127.0.0.1 {address}"))
}

/// Runs a test on a thread whose network is its own, and so is that of the processes and threads that it starts. Only
/// root may have one, and only where the kernel lets him; elsewhere the test says that it was skipped.
pub(crate) fn with_own_network(test: fn()) {
    let body = move || match enter() {
        Ok(()) => test(),
        Err(why) => println!("skipped: no network of its own to be had here: {why}"),
    };
    thread::spawn(body).join().unwrap_or_else(|panic| resume_unwind(panic));
}

#[allow(unsafe_code, reason = "the standard library has no word for namespaces")]
fn enter() -> Result<(), String> {
    // SAFETY: the call touches no memory; from here on this thread's sockets are those of a new network.
    if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
        return Err(io::Error::last_os_error().to_string());
    }
    LAYOUT.into_iter().try_for_each(ip)?;
    (0..SERVER_COUNT).try_for_each(|number| ip(&format!("addr add {}/32 dev lo", address(number))))
}

fn ip(line: &str) -> Result<(), String> {
    match Command::new("ip").args(line.split(' ')).output() {
        Ok(output) if output.status.success() => Ok(()),
        Ok(output) => Err(format!("ip {line}: {}", String::from_utf8_lossy(&output.stderr).trim())),
        Err(why) => Err(format!("ip: {why}")),
    }
}

/// From now on nothing passes between the server at this address and any other.
pub(crate) fn cut_off(address: &str) {
    for (pref, from, to) in [(5, address, SERVERS), (6, SERVERS, address)] {
        ip(&format!("rule add pref {pref} from {from} to {to} lookup 100")).expect("a rule");
    }
}

/// All servers reach one another again.
pub(crate) fn heal() {
    ["rule del pref 5", "rule del pref 6"].into_iter().try_for_each(ip).expect("the rules are there");
}
