//! What is measured: the calls, the state that a key must be in for them, and what every reply must say.

use std::ops::RangeInclusive;

/// One kind of call. In its text `KEY` stands for a key of 16 bytes, `VALUE` for 24 bytes, `HASH` for that of the client's script.
pub(crate) struct Contender {
    pub(crate) name: &'static str,
    /// The first four bytes of its keys.
    pub(crate) prefix: &'static str,
    /// A command a line, separated by blanks.
    pub(crate) call: &'static str,
    /// Brings a fresh key into the state that is measured, and so that it lives for an hour.
    pub(crate) fill: &'static str,
    /// What every reply is held against.
    pub(crate) answer: Answer,
    /// Whether the same call on a fresh key is the same kind of call.
    pub(crate) fresh: bool,
}

/// What a reply must be.
pub(crate) enum Answer {
    /// It begins so.
    Text(&'static str),
    /// It consists of integers, nested ones in order, each in its range.
    Integers(&'static [RangeInclusive<i64>]),
}

pub(crate) const VALUE: &str = "0123456789abcdef01234567";

pub(crate) const PING: &str = "PING";
pub(crate) const SET: &str = "SET k 24-bytes PX n";
pub(crate) const GRANTED: &str = "TB.TAKE, granted";
pub(crate) const MOVING: &str = "2 x TB.TAKE, deadline moves";
pub(crate) const REFUSED: &str = "TB.TAKE, refused";
pub(crate) const PEEK: &str = "TB.PEEK";
pub(crate) const MTAKE: &str = "TB.MTAKE of 3";
pub(crate) const THREE_TAKES: &str = "3 x TB.TAKE";
pub(crate) const SCRIPT_GRANTED: &str = "EVALSHA, granted";
pub(crate) const SCRIPT_REFUSED: &str = "EVALSHA, refused";
pub(crate) const CELL_GRANTED: &str = "CL.THROTTLE, granted";
pub(crate) const CELL_REFUSED: &str = "CL.THROTTLE, refused";
pub(crate) const GCRA_GRANTED: &str = "GCRA, granted";
pub(crate) const GCRA_REFUSED: &str = "GCRA, refused";
pub(crate) const INCREX_GRANTED: &str = "INCREX, granted";

/// Tokens left of a million after a first take.
const LEFT: RangeInclusive<i64> = 0..=999_999;
/// Tokens left of five, which come back one in a thousand seconds, while five are refused.
const TOO_FEW: RangeInclusive<i64> = 0..=4;
/// Milliseconds until five tokens are there.
const WAIT: RangeInclusive<i64> = 1..=5_000_000;
const GRANT: Answer = Answer::Integers(&[1..=1, LEFT, 0..=0]);
const REFUSAL: Answer = Answer::Integers(&[0..=0, TOO_FEW, WAIT]);
const GRANT_OF_3: Answer =
    Answer::Integers(&[1..=1, LEFT, 0..=0, 1..=1, LEFT, 0..=0, 1..=1, LEFT, 0..=0, 1..=1, LEFT, 0..=0]);

pub(crate) const CONTENDERS: &[Contender] = &[
    Contender { name: PING, prefix: "pin:", call: "PING", fill: "", answer: Answer::Text("+PONG"), fresh: false },
    Contender {
        name: "module, no-op",
        prefix: "noo:",
        call: "NOOP.TAKE KEY 1000000 100 1",
        fill: "",
        answer: Answer::Integers(&[1..=1, 0..=0, 0..=0]),
        fresh: false,
    },
    Contender {
        name: "GET",
        prefix: "get:",
        call: "GET KEY",
        fill: "SET KEY VALUE PX 9000000",
        answer: Answer::Text("$24\r\n0123456789abcdef01234567"),
        fresh: false,
    },
    Contender {
        name: "INCR",
        prefix: "inc:",
        call: "INCR KEY",
        fill: "INCR KEY",
        answer: Answer::Integers(&[1..=i64::MAX]),
        fresh: true,
    },
    Contender {
        name: SET,
        prefix: "set:",
        call: "SET KEY VALUE PX 9000000",
        fill: "SET KEY VALUE PX 9000000",
        answer: Answer::Text("+OK"),
        fresh: true,
    },
    Contender {
        name: GRANTED,
        prefix: "tba:",
        call: "TB.TAKE KEY 1000000 100 1",
        fill: "TB.TAKE KEY 1000000 100 1",
        answer: GRANT,
        fresh: true,
    },
    Contender {
        name: MOVING,
        prefix: "tbm:",
        // Under the one quota the deadline comes too late, under the other too early.
        call: "TB.TAKE KEY 1000000 1000 1\nTB.TAKE KEY 1000000 100 1",
        fill: "TB.TAKE KEY 1000000 100 500000",
        answer: GRANT,
        fresh: false,
    },
    Contender {
        name: REFUSED,
        prefix: "tbd:",
        call: "TB.TAKE KEY 5 0.001 5",
        fill: "TB.TAKE KEY 5 0.001 5",
        answer: REFUSAL,
        fresh: false,
    },
    Contender {
        name: PEEK,
        prefix: "tbp:",
        call: "TB.PEEK KEY 5 0.001 5",
        fill: "TB.TAKE KEY 5 0.001 5",
        answer: REFUSAL,
        fresh: false,
    },
    Contender {
        name: SCRIPT_GRANTED,
        prefix: "lua:",
        call: "EVALSHA HASH 1 KEY TB.TAKE 1000000 100 1",
        fill: "EVALSHA HASH 1 KEY TB.TAKE 1000000 100 500000",
        answer: GRANT,
        fresh: true,
    },
    Contender {
        name: SCRIPT_REFUSED,
        prefix: "lur:",
        call: "EVALSHA HASH 1 KEY TB.TAKE 5 0.001 5",
        fill: "EVALSHA HASH 1 KEY TB.TAKE 5 0.001 5",
        answer: REFUSAL,
        fresh: false,
    },
    Contender {
        name: CELL_GRANTED,
        prefix: "cla:",
        call: "CL.THROTTLE KEY 999999 100 1 1",
        fill: "CL.THROTTLE KEY 999999 100 1 500000",
        answer: Answer::Integers(&[0..=0, 1_000_000..=1_000_000, LEFT, -1..=-1, 0..=10_000]),
        fresh: true,
    },
    Contender {
        name: CELL_REFUSED,
        prefix: "cld:",
        call: "CL.THROTTLE KEY 4 1 1000 5",
        fill: "CL.THROTTLE KEY 4 1 1000 5",
        answer: Answer::Integers(&[1..=1, 5..=5, TOO_FEW, 1..=5_000, 1..=5_000]),
        fresh: false,
    },
    Contender {
        name: GCRA_GRANTED,
        prefix: "gca:",
        call: "GCRA KEY 999999 100 1",
        fill: "GCRA KEY 999999 100 1 TOKENS 500000",
        answer: Answer::Integers(&[0..=0, 1_000_000..=1_000_000, LEFT, -1..=-1, 0..=10_000]),
        fresh: true,
    },
    Contender {
        name: GCRA_REFUSED,
        prefix: "gcd:",
        // Not of five: the option for that costs it two words more than other calls have.
        call: "GCRA KEY 4 1 1000",
        fill: "GCRA KEY 4 1 1000 TOKENS 5",
        answer: Answer::Integers(&[1..=1, 5..=5, 0..=0, 1..=1_000, 1..=5_000]),
        fresh: false,
    },
    Contender {
        name: INCREX_GRANTED,
        prefix: "ixa:",
        call: "INCREX KEY UBOUND 1000000000 PX 9000000 ENX",
        fill: "INCREX KEY UBOUND 1000000000 PX 9000000 ENX",
        answer: Answer::Integers(&[1..=1_000_000_000, 1..=1]),
        fresh: true,
    },
    Contender {
        name: "INCREX, refused",
        prefix: "ixd:",
        call: "INCREX KEY UBOUND 1 PX 9000000 ENX",
        fill: "INCREX KEY UBOUND 1 PX 9000000 ENX",
        answer: Answer::Integers(&[1..=1, 0..=0]),
        fresh: false,
    },
    Contender {
        name: MTAKE,
        prefix: "mta:",
        call: "TB.MTAKE KEY:1 1000000 100 1 KEY:2 1000000 100 1 KEY:3 1000000 100 1",
        fill: "TB.MTAKE KEY:1 1000000 100 1 KEY:2 1000000 100 1 KEY:3 1000000 100 1",
        answer: GRANT_OF_3,
        fresh: true,
    },
    Contender {
        name: THREE_TAKES,
        prefix: "mtt:",
        call: "TB.TAKE KEY:1 1000000 100 1\nTB.TAKE KEY:2 1000000 100 1\nTB.TAKE KEY:3 1000000 100 1",
        fill: "TB.TAKE KEY:1 1000000 100 1\nTB.TAKE KEY:2 1000000 100 1\nTB.TAKE KEY:3 1000000 100 1",
        answer: GRANT,
        fresh: true,
    },
    Contender {
        name: "EVALSHA over 3",
        prefix: "lu3:",
        call: "EVALSHA HASH 3 KEY:1 KEY:2 KEY:3 TB.MTAKE 1000000 100 1 1000000 100 1 1000000 100 1",
        fill: "EVALSHA HASH 3 KEY:1 KEY:2 KEY:3 TB.MTAKE 1000000 100 500000 1000000 100 500000 1000000 100 500000",
        answer: GRANT_OF_3,
        fresh: true,
    },
];

impl Contender {
    /// The command's own name, in lower case.
    pub(crate) fn command(&self) -> String {
        self.call.split(' ').next().unwrap_or_default().to_lowercase()
    }

    /// Commands, and so replies, in a call.
    pub(crate) fn commands(&self) -> usize {
        self.call.lines().count()
    }

    /// The key of a number.
    pub(crate) fn key(&self, number: usize) -> String {
        format!("{}{number:012}", self.prefix)
    }
}
