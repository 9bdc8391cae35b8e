//! A connection that costs the machine little beside the server: calls are encoded beforehand, and of a reply only its
//! numbers are read, which is what is held against the answer that it must be.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::contenders::{Answer, Contender, VALUE};

/// Calls as they go over the wire.
pub(crate) struct Calls {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Calls {
    /// One text of a contender, its `call` or its `fill`, on each of these keys.
    pub(crate) fn encode(text: &str, contender: &Contender, keys: impl Iterator<Item = usize>, sha: &str) -> Self {
        let mut calls = Self { bytes: Vec::new(), ends: vec![0] };
        for number in keys {
            let key = contender.key(number);
            for command in text.lines() {
                let words: Vec<String> = command
                    .split(' ')
                    .map(|word| word.replace("KEY", &key).replace("VALUE", VALUE).replace("HASH", sha))
                    .collect();
                calls.bytes.extend_from_slice(format!("*{}\r\n", words.len()).as_bytes());
                for word in words {
                    calls.bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
                }
            }
            calls.ends.push(calls.bytes.len());
        }
        calls
    }

    pub(crate) fn len(&self) -> usize {
        self.ends.len() - 1
    }

    /// So many calls from one on, fewer at the end.
    fn slice(&self, from: usize, count: usize) -> (&[u8], usize) {
        let to = (from + count).min(self.len());
        (&self.bytes[self.ends[from]..self.ends[to]], to - from)
    }
}

pub(crate) struct Connection {
    stream: TcpStream,
    input: Vec<u8>,
    /// How much of `input` has been read.
    at: usize,
    /// The integers of one reply.
    integers: Vec<i64>,
}

impl Connection {
    /// Connects to a database of the server.
    pub(crate) fn new(port: u16, database: usize) -> Self {
        let mut stream = TcpStream::connect(("127.0.0.1", port)).expect("the server takes connections");
        stream.set_nodelay(true).expect("a socket");
        stream.set_read_timeout(Some(Duration::from_secs(60))).expect("a socket");
        stream.write_all(format!("SELECT {database}\r\n").as_bytes()).expect("the server takes calls");
        let mut connection = Self { stream, input: Vec::with_capacity(1 << 16), at: 0, integers: Vec::new() };
        let (start, end) = connection.reply();
        assert_eq!(&connection.input[start..end], b"+OK\r\n");
        connection
    }

    /// Makes all calls, so many at a time, and checks every reply.
    pub(crate) fn run(&mut self, calls: &Calls, pipeline: usize, contender: &Contender) {
        for from in (0..calls.len()).step_by(pipeline) {
            self.batch(calls, from, pipeline, contender);
        }
    }

    /// Makes so many calls from one on and checks every reply; returns how many there were.
    pub(crate) fn batch(&mut self, calls: &Calls, from: usize, count: usize, contender: &Contender) -> usize {
        let (bytes, count) = calls.slice(from, count);
        self.stream.write_all(bytes).expect("the server takes calls");
        for _ in 0..count * contender.commands() {
            let (start, end) = self.reply();
            let fits = match &contender.answer {
                Answer::Text(text) => self.input[start..end].starts_with(text.as_bytes()),
                Answer::Integers(ranges) => {
                    ranges.len() == self.integers.len()
                        && ranges.iter().zip(&self.integers).all(|(range, integer)| range.contains(integer))
                }
            };
            assert!(fits, "{}: wrong reply {:?}", contender.name, self.input[start..end].escape_ascii().to_string());
        }
        count
    }

    /// As [`Connection::run`], for calls whose replies are not the answer that is measured.
    pub(crate) fn run_unchecked(&mut self, calls: &Calls, commands: usize) {
        for from in (0..calls.len()).step_by(100) {
            let (bytes, count) = calls.slice(from, 100);
            self.stream.write_all(bytes).expect("the server takes calls");
            for _ in 0..count * commands {
                let (start, end) = self.reply();
                let reply = &self.input[start..end];
                assert!(!reply.starts_with(b"-"), "a key cannot be prepared: {}", reply.escape_ascii());
            }
        }
    }

    /// Reads a whole reply; where it begins and ends.
    fn reply(&mut self) -> (usize, usize) {
        if self.at == self.input.len() {
            self.input.clear();
            self.at = 0;
        }
        loop {
            self.integers.clear();
            if let Some(end) = end_of(&self.input, self.at, &mut self.integers) {
                let start = self.at;
                self.at = end;
                return (start, end);
            }
            let mut chunk = [0; 16_384];
            let len = self.stream.read(&mut chunk).expect("a reply");
            assert_ne!(len, 0, "the server closed the connection");
            self.input.extend_from_slice(&chunk[..len]);
        }
    }
}

/// Where the reply ends that begins at `at`, if it is there as a whole; its integers, nested ones included.
fn end_of(input: &[u8], mut at: usize, integers: &mut Vec<i64>) -> Option<usize> {
    let mut open = 1;
    while open > 0 {
        let line = input.get(at..)?;
        let len = line.iter().position(|byte| *byte == b'\r')?;
        let number = || std::str::from_utf8(&line[1..len]).ok().and_then(|text| text.parse::<i64>().ok());
        open -= 1;
        at += len + 2;
        match line.first()? {
            b':' => integers.push(number()?),
            b'*' => open += number()?,
            b'$' => at += usize::try_from(number()?).map_or(0, |len| len + 2),
            _ => {}
        }
    }
    (at <= input.len()).then_some(at)
}
