//! A blocking RESP2 and RESP3 client that sends any bytes as they are and keeps error replies as data; the tests need
//! both, and libraries are made to prevent them.

use std::collections::VecDeque;
use std::fmt;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::time::Duration;

use super::PATIENCE;

/// One reply of a server. Simple strings and bulk strings are both `Text`: no command answers with either by chance.
#[derive(Clone, PartialEq)]
pub(crate) enum Reply {
    Nil,
    Int(i64),
    Text(Vec<u8>),
    Error(Vec<u8>),
    Array(Vec<Reply>),
    Map(Vec<(Reply, Reply)>),
    Set(Vec<Reply>),
    Push(Vec<Reply>),
}

impl Reply {
    pub(crate) fn int(&self) -> i64 {
        match self {
            Reply::Int(n) => *n,
            other => panic!("not an integer: {other:?}"),
        }
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        match self {
            Reply::Text(bytes) => bytes,
            other => panic!("not a string: {other:?}"),
        }
    }

    pub(crate) fn text(&self) -> &str {
        std::str::from_utf8(self.bytes()).expect("a reply in UTF-8")
    }

    /// The elements of an array, or of a RESP3 set.
    pub(crate) fn items(&self) -> &[Reply] {
        match self {
            Reply::Array(items) | Reply::Set(items) | Reply::Push(items) => items,
            other => panic!("not an array: {other:?}"),
        }
    }

    pub(crate) fn ints(&self) -> Vec<i64> {
        self.items().iter().map(Reply::int).collect()
    }

    pub(crate) fn texts(&self) -> Vec<&str> {
        self.items().iter().map(Reply::text).collect()
    }

    /// The value of a field, in a RESP3 map or in the flat array that RESP2 makes of one.
    pub(crate) fn field(&self, name: &str) -> &Reply {
        let wanted = Reply::Text(name.into());
        let found = match self {
            Reply::Map(pairs) => pairs.iter().find(|(field, _)| *field == wanted).map(|(_, value)| value),
            Reply::Array(flat) => flat.chunks(2).find(|pair| pair[0] == wanted).map(|pair| &pair[1]),
            _ => None,
        };
        found.unwrap_or_else(|| panic!("no field {name} in {self:?}"))
    }

    pub(crate) fn is_error(&self) -> bool {
        matches!(self, Reply::Error(_))
    }

    /// The text of an error reply, which must be one printable ASCII line that starts with an upper-case code.
    pub(crate) fn error(&self) -> &str {
        let Reply::Error(bytes) = self else { panic!("not an error: {self:?}") };
        assert!(bytes.iter().all(|byte| matches!(byte, b' '..=b'~')), "an error that is not printable ASCII: {self:?}");
        let text = std::str::from_utf8(bytes).expect("ASCII");
        let code = text.split(' ').next().unwrap_or_default();
        assert!(
            !code.is_empty() && code.bytes().all(|byte| byte.is_ascii_uppercase()),
            "an error without code: {text}"
        );
        text
    }
}

impl fmt::Debug for Reply {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reply::Nil => f.write_str("nil"),
            Reply::Int(n) => write!(f, "{n}"),
            Reply::Text(bytes) => write!(f, "\"{}\"", bytes.escape_ascii()),
            Reply::Error(bytes) => write!(f, "-{}", bytes.escape_ascii()),
            Reply::Array(items) => f.debug_list().entries(items).finish(),
            Reply::Set(items) => f.debug_set().entries(items).finish(),
            Reply::Map(pairs) => f.debug_map().entries(pairs.iter().map(|(k, v)| (k, v))).finish(),
            Reply::Push(items) => f.debug_tuple("push").field(items).finish(),
        }
    }
}

/// One connection.
pub(crate) struct Client {
    stream: BufReader<TcpStream>,
    pushes: VecDeque<Reply>,
}

impl Client {
    /// # Errors
    /// Whatever the connection attempt says.
    pub(crate) fn connect(port: u16) -> std::io::Result<Client> {
        let stream = TcpStream::connect(("127.0.0.1", port))?;
        stream.set_nodelay(true)?;
        stream.set_read_timeout(Some(PATIENCE))?;
        stream.set_write_timeout(Some(PATIENCE))?;
        Ok(Client { stream: BufReader::with_capacity(1 << 16, stream), pushes: VecDeque::new() })
    }

    /// Sends a command written as in redis-cli without quotes: arguments are separated by single spaces.
    pub(crate) fn ask(&mut self, line: &str) -> Reply {
        self.call(&line.split(' ').collect::<Vec<_>>())
    }

    /// Sends one command with any bytes for arguments.
    pub(crate) fn call<A: AsRef<[u8]>>(&mut self, args: &[A]) -> Reply {
        self.send(args);
        self.reply()
    }

    /// Sends all commands before it reads the first reply.
    pub(crate) fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[Vec<A>]) -> Vec<Reply> {
        let mut out = Vec::new();
        for args in commands {
            encode(args, &mut out);
        }
        self.write(&out);
        commands.iter().map(|_| self.reply()).collect()
    }

    /// `TB.TAKE` with the arguments in `line`; panics on an error reply.
    pub(crate) fn take(&mut self, line: &str) -> [i64; 3] {
        let reply = self.ask(&format!("TB.TAKE {line}"));
        reply.ints().try_into().unwrap_or_else(|_| panic!("not three integers: {reply:?}"))
    }

    /// As [`Client::take`], for keys that a line cannot hold.
    pub(crate) fn take_of(&mut self, key: &[u8], rest: &str) -> [i64; 3] {
        let mut args = vec![b"TB.TAKE".as_slice(), key];
        args.extend(rest.split(' ').map(str::as_bytes));
        let reply = self.call(&args);
        reply.ints().try_into().unwrap_or_else(|_| panic!("not three integers: {reply:?}"))
    }

    /// An integer reply.
    pub(crate) fn int(&mut self, line: &str) -> i64 {
        self.ask(line).int()
    }

    /// A string reply, owned.
    pub(crate) fn bytes(&mut self, line: &str) -> Vec<u8> {
        self.ask(line).bytes().to_vec()
    }

    /// Sends a command that must answer `OK`.
    pub(crate) fn ok(&mut self, line: &str) {
        assert_eq!(self.ask(line).text(), "OK", "answer to {line}");
    }

    /// One field of `INFO`, as text; empty where the server has no such field.
    pub(crate) fn info(&mut self, field: &str) -> String {
        let all = self.bytes("INFO everything");
        let all = String::from_utf8_lossy(&all);
        let found = all.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
        found.unwrap_or_default().to_owned()
    }

    /// One field of `INFO`, as a number.
    pub(crate) fn info_int(&mut self, field: &str) -> i64 {
        let text = self.info(field);
        text.parse().unwrap_or_else(|_| panic!("INFO {field} is {text:?}, not a number"))
    }

    /// Whether the server knows a command of this name.
    pub(crate) fn knows(&mut self, command: &str) -> bool {
        self.ask(&format!("COMMAND INFO {command}")).items()[0] != Reply::Nil
    }

    pub(crate) fn send<A: AsRef<[u8]>>(&mut self, args: &[A]) {
        let mut out = Vec::new();
        encode(args, &mut out);
        self.write(&out);
    }

    /// The next reply; out-of-band pushes before it are kept for [`Client::pushes`].
    pub(crate) fn reply(&mut self) -> Reply {
        loop {
            match self.read() {
                push @ Reply::Push(_) => self.pushes.push_back(push),
                reply => return reply,
            }
        }
    }

    /// The pushes that arrived with or before the last reply.
    pub(crate) fn pushes(&mut self) -> Vec<Reply> {
        self.pushes.drain(..).collect()
    }

    /// What arrives next, reply or push.
    pub(crate) fn read(&mut self) -> Reply {
        let line = self.line();
        let (kind, rest) = line.split_first().expect("a reply has a type byte");
        let number = || -> i64 {
            let text = std::str::from_utf8(rest).expect("a number in ASCII");
            text.parse().unwrap_or_else(|_| panic!("not a number in a reply: {text:?}"))
        };
        match kind {
            b'+' | b',' | b'(' | b'#' => Reply::Text(rest.to_vec()),
            b'-' => Reply::Error(rest.to_vec()),
            b':' => Reply::Int(number()),
            b'_' => Reply::Nil,
            b'$' | b'=' => self.bulk(number()),
            b'*' if number() < 0 => Reply::Nil,
            b'*' => Reply::Array(self.many(number())),
            b'~' => Reply::Set(self.many(number())),
            b'>' => Reply::Push(self.many(number())),
            b'%' => Reply::Map((0..number()).map(|_| (self.read(), self.read())).collect()),
            _ => panic!("not a reply: {}", line.escape_ascii()),
        }
    }

    /// Reads raw bytes; the snapshot in a replication stream is no reply.
    pub(crate) fn exactly(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.stream.read_exact(&mut bytes).expect("the connection broke off");
        bytes
    }

    /// Reads up to the next CR LF (or bare LF, which a primary sends to keep a waiting replica awake).
    pub(crate) fn line(&mut self) -> Vec<u8> {
        let mut line = Vec::new();
        self.stream.read_until(b'\n', &mut line).expect("no reply from the server");
        assert_eq!(line.pop(), Some(b'\n'), "the server closed the connection");
        if line.last() == Some(&b'\r') {
            line.pop();
        }
        line
    }

    fn bulk(&mut self, len: i64) -> Reply {
        let Ok(len) = usize::try_from(len) else { return Reply::Nil };
        let mut bytes = self.exactly(len + 2);
        bytes.truncate(len);
        Reply::Text(bytes)
    }

    fn many(&mut self, count: i64) -> Vec<Reply> {
        (0..count).map(|_| self.read()).collect()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.stream.get_mut().write_all(bytes).expect("the server takes the command");
    }
}

fn encode<A: AsRef<[u8]>>(args: &[A], out: &mut Vec<u8>) {
    out.extend(format!("*{}\r\n", args.len()).bytes());
    for arg in args {
        let arg = arg.as_ref();
        out.extend(format!("${}\r\n", arg.len()).bytes());
        out.extend(arg);
        out.extend(b"\r\n");
    }
}
