//! A server with the contenders on it, and the keys that they are called on.

use std::ops::Range;

use super::contenders::Contender;
use super::support::Server;
use super::wire::{Calls, Connection};

/// The client's script, for servers without the module.
const SCRIPT: &str = include_str!("../../client/src/script.lua");

/// Where keys begin that no case has filled.
const FRESH: usize = 1_000_000_000;

/// Which keys a contender's calls name.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Keys {
    /// One, over and over.
    Hot,
    /// So many in no order, all of which exist.
    Many(usize),
    /// Each a new one.
    Fresh,
}

impl Keys {
    /// The keys of so many calls.
    pub(crate) fn numbers(self, calls: usize) -> Vec<usize> {
        match self {
            Keys::Hot => vec![0; calls],
            Keys::Fresh => (FRESH..).take(calls).collect(),
            // Steps of a prime that divides no round number go through all of them, and never to a neighbour.
            Keys::Many(count) => (0..calls).map(|call| call * 7_919 % count).collect(),
        }
    }
}

/// A contender on keys.
#[derive(Clone, Copy)]
pub(crate) struct Case {
    pub(crate) contender: &'static Contender,
    pub(crate) keys: Keys,
}

pub(crate) struct Stage {
    pub(crate) server: Server,
    /// The script's hash.
    pub(crate) sha: String,
}

impl Stage {
    pub(crate) fn new(server: Server) -> Self {
        let sha = server.client().call(&["SCRIPT", "LOAD", SCRIPT]).text().to_owned();
        Self { server, sha }
    }

    pub(crate) fn connection(&self) -> Connection {
        Connection::new(self.server.port(), 0)
    }

    /// Whether the server knows the contender's command.
    pub(crate) fn has(&self, contender: &Contender) -> bool {
        self.server.client().knows(&contender.command())
    }

    /// Brings the case's keys into the state that is measured. Of many keys none is called often enough to leave it.
    pub(crate) fn prepare(&self, case: &Case) {
        let (contender, mut client) = (case.contender, self.server.client());
        match case.keys {
            Keys::Hot => {
                let key = contender.key(0);
                client.int(&format!("DEL {key} {key}:1 {key}:2 {key}:3"));
                self.fill(contender, 0..1, 0);
            }
            Keys::Many(count) => {
                let last = contender.key(count - 1);
                if client.int(&format!("EXISTS {last} {last}:3")) == 0 {
                    self.fill(contender, 0..count, 0);
                }
            }
            Keys::Fresh => {}
        }
    }

    /// A key that expires is a full bucket, whose calls look right and are others than those that are measured.
    pub(crate) fn assert_nothing_expired(&self) {
        let mut client = self.server.client();
        assert_eq!(
            client.info("expired_keys"),
            "0",
            "the bench took longer than its keys live: nothing of this can be used"
        );
    }

    /// Fills fresh keys of a database.
    pub(crate) fn fill(&self, contender: &Contender, keys: Range<usize>, database: usize) {
        if !contender.fill.is_empty() {
            let calls = Calls::encode(contender.fill, contender, keys, &self.sha);
            Connection::new(self.server.port(), database).run_unchecked(&calls, contender.fill.lines().count());
        }
    }
}
