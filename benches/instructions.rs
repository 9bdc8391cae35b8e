//! Instructions per call: the server runs under callgrind, which counts the same whatever else the machine is doing.
//!
//! Counted: everything from reading a client's bytes to the reply in its buffer (inside `readQueryFromClient`, a symbol that
//! every server exports): parsing, look-up, the command, feeding replicas and the append-only file. Not counted: start-up,
//! cron, other threads, the kernel, cache misses. A server's hash seed is new at each start and moves a look-up by some
//! tens of instructions, so each figure is the smallest of several starts; repeats then agree to about 0.3 %.
//!
//! `cargo bench --bench instructions`; TB_SERVER names another server, TB_MODULE another build, STARTS the starts,
//! SERVER_ARGS more arguments for the server, such as `--appendonly yes`.
#![allow(clippy::arithmetic_side_effects, reason = "a measurement may panic")]

use std::error::Error;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};
use std::{env, fs, io, thread};

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// Calls per measurement, and how many are sent before the replies are read.
const CALLS: usize = 4_000;
const PIPELINE: usize = 50;

/// One row of the table.
struct Contender {
    name: &'static str,
    /// Brings the key into the state that is measured.
    prepare: &'static [&'static [&'static str]],
    call: &'static [&'static str],
    /// How every reply must begin.
    reply: &'static str,
    /// The most that it may cost, as a share of another row.
    bar: Option<(f64, &'static str)>,
}

const VALUE: &str = "0123456789abcdef01234567";
const BASE: &str = "SET..PX";

const CONTENDERS: &[Contender] = &[
    Contender { name: "PING", prepare: &[], call: &["PING"], reply: "+PONG", bar: None },
    Contender {
        name: "GET",
        prepare: &[&["SET", "get:000000000000", VALUE]],
        call: &["GET", "get:000000000000"],
        reply: "$24\r\n0123",
        bar: None,
    },
    Contender { name: "INCR", prepare: &[], call: &["INCR", "inc:000000000000"], reply: ":", bar: None },
    Contender {
        name: BASE,
        prepare: &[],
        call: &["SET", "set:000000000000", VALUE, "PX", "1000000"],
        reply: "+OK",
        bar: None,
    },
    Contender {
        name: "TB.TAKE granted",
        prepare: &[],
        call: &["TB.TAKE", "tba:000000000000", "1000000", "1000", "1"],
        reply: "*3\r\n:1\r\n",
        bar: Some((1.2, BASE)),
    },
    Contender {
        name: "TB.TAKE refused",
        prepare: &[&["TB.TAKE", "tbd:000000000000", "5", "0.001", "5"]],
        call: &["TB.TAKE", "tbd:000000000000", "5", "0.001", "5"],
        reply: "*3\r\n:0\r\n",
        bar: Some((0.8, BASE)),
    },
    Contender {
        name: "TB.TAKE granted, cost left out",
        prepare: &[],
        call: &["TB.TAKE", "tba:000000000000", "1000000", "1000"],
        reply: "*3\r\n:1\r\n",
        bar: None,
    },
    Contender {
        name: "TB.TAKE refused for ever",
        prepare: &[&["TB.TAKE", "tbd:000000000000", "5", "0.001", "5"]],
        call: &["TB.TAKE", "tbd:000000000000", "5", "0.001", "6"],
        reply: "*3\r\n:0\r\n",
        bar: None,
    },
    Contender {
        name: "TB.PEEK",
        prepare: &[&["TB.TAKE", "tbd:000000000000", "5", "0.001", "5"]],
        call: &["TB.PEEK", "tbd:000000000000", "5", "0.001", "5"],
        reply: "*3\r\n:0\r\n",
        bar: Some((1.0, "TB.TAKE refused")),
    },
    Contender {
        name: "TB.LEASE",
        prepare: &[],
        call: &["TB.LEASE", "tbl:000000000000", "1000000", "1000", "1"],
        reply: "*3\r\n:1\r\n",
        bar: None,
    },
    Contender {
        name: "TB.MTAKE of 3",
        prepare: &[],
        call: &[
            "TB.MTAKE",
            "{mt}:1000000000",
            "1000000",
            "1000",
            "1",
            "{mt}:2000000000",
            "1000000",
            "1000",
            "1",
            "{mt}:3000000000",
            "1000000",
            "1000",
            "1",
        ],
        reply: "*4\r\n:1\r\n",
        bar: Some((3.3, "TB.TAKE granted")),
    },
];

fn main() -> Result<()> {
    let starts = match env::var("STARTS") {
        Ok(starts) => starts.parse()?,
        Err(_) => 4,
    };
    let mut least = vec![f64::INFINITY; CONTENDERS.len()];
    let mut version = String::new();
    for _ in 0..starts {
        let run = measure()?;
        version = run.version;
        for (least, cost) in least.iter_mut().zip(run.costs) {
            *least = least.min(cost);
        }
    }
    report(&version, starts, &least)
}

/// Prints the table, and fails where a bar is missed.
fn report(version: &str, starts: usize, least: &[f64]) -> Result<()> {
    let cost_of = |name: &str| {
        let rows = CONTENDERS.iter().zip(least);
        rows.filter(|(contender, _)| contender.name == name).map(|(_, cost)| *cost).next().unwrap_or(f64::NAN)
    };
    println!("Instructions per call, {version}, least of {starts} starts, {CALLS} calls, {PIPELINE} in a pipeline");
    println!("{:<32}{:>10}{:>12}  bar", "call", "per call", "/ SET..PX");
    let mut missed = Vec::new();
    for (contender, cost) in CONTENDERS.iter().zip(least) {
        print!("{:<32}{cost:>10.0}{:>12.2}", contender.name, cost / cost_of(BASE));
        match contender.bar {
            None => println!(),
            Some((bar, of)) => {
                let ratio = cost / cost_of(of);
                println!("  {ratio:.2} of {of}, at most {bar:.2}");
                if ratio > bar {
                    missed.push(contender.name);
                }
            }
        }
    }
    if missed.is_empty() { Ok(()) } else { Err(format!("over the bar: {}", missed.join(", ")).into()) }
}

struct Run {
    version: String,
    costs: Vec<f64>,
}

/// One start of the server: every contender's instructions per call.
fn measure() -> Result<Run> {
    let server = Server::start()?;
    let mut client = Client::connect(server.port)?;
    let info = client.call(&["INFO", "server"])?;
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name)).map(str::trim);
    let version = match (field("valkey_version:"), field("redis_version:")) {
        (Some(version), _) => format!("Valkey {version}"),
        (None, Some(version)) => format!("Redis {version}"),
        (None, None) => return Err("the server does not tell its version".into()),
    };
    for contender in CONTENDERS {
        for call in contender.prepare {
            client.call(call)?;
        }
        // Caches, the first deadline and the like are not what a call costs.
        client.repeat(contender, PIPELINE)?;
        // Entering ECHO makes callgrind write what was counted since the last one, and start anew.
        client.call(&["ECHO", "before"])?;
        client.repeat(contender, CALLS)?;
        client.call(&["ECHO", "after"])?;
    }
    let profiles = server.stop()?;
    let costs = profiles.chunks(2).map(|pair| pair.last().map_or(f64::NAN, |total| *total as f64 / CALLS as f64));
    Ok(Run { version, costs: costs.collect() })
}

struct Server {
    child: Child,
    port: u16,
    dir: PathBuf,
}

impl Server {
    fn start() -> Result<Self> {
        let port = TcpListener::bind(("127.0.0.1", 0))?.local_addr()?.port();
        let dir = env::temp_dir().join(format!("tokenbucket-instructions-{}", std::process::id()));
        fs::create_dir_all(&dir)?;
        let module = module_path()?;
        let server = env::var("TB_SERVER").unwrap_or_else(|_| "redis-server".to_owned());
        let child = Command::new("valgrind")
            .args(["--tool=callgrind", "--toggle-collect=readQueryFromClient", "--dump-before=echoCommand"])
            .arg("--trace-children=yes")
            .arg(format!("--callgrind-out-file={}/profile.%p", dir.display()))
            .arg(server)
            .args(["--port", &port.to_string(), "--bind", "127.0.0.1", "--save", "", "--dir"])
            .arg(&dir)
            .args(env::var("SERVER_ARGS").unwrap_or_default().split_whitespace())
            .arg("--loadmodule")
            .arg(module)
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .map_err(|error| format!("cannot start valgrind (apt install valgrind): {error}"))?;
        Ok(Self { child, port, dir })
    }

    /// Ends the server and returns the total of each profile, in order.
    fn stop(mut self) -> Result<Vec<u64>> {
        // The server closes the connection instead of answering.
        let _ = Client::connect(self.port)?.call(&["SHUTDOWN", "NOSAVE"]);
        self.child.wait()?;
        let mut profiles = Vec::new();
        for entry in fs::read_dir(&self.dir)? {
            let path = entry?.path();
            // profile.PID.1, profile.PID.2, ...; what was counted after the last ECHO has no number.
            let number = path.extension().and_then(|number| number.to_str()?.parse::<u32>().ok());
            let named = path.file_stem().is_some_and(|stem| stem.to_string_lossy().starts_with("profile."));
            if let (Some(number), true) = (number, named) {
                profiles.push((number, total(&path)?));
            }
        }
        profiles.sort_unstable();
        Ok(profiles.into_iter().map(|(_, total)| total).collect())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
        let _ = fs::remove_dir_all(&self.dir);
    }
}

fn total(profile: &Path) -> Result<u64> {
    let text = fs::read_to_string(profile)?;
    let line = text.lines().find_map(|line| line.strip_prefix("totals:").or(line.strip_prefix("summary:")));
    Ok(line.ok_or("a profile without a total")?.trim().parse()?)
}

/// The module that `cargo bench` has just built beside this program, or the one named.
fn module_path() -> Result<PathBuf> {
    if let Some(path) = env::var_os("TB_MODULE") {
        return Ok(path.into());
    }
    let name = format!("{}redis_token_bucket{}", env::consts::DLL_PREFIX, env::consts::DLL_SUFFIX);
    Ok(env::current_exe()?.with_file_name(name))
}

struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    fn connect(port: u16) -> Result<Self> {
        // Under callgrind a server takes seconds to start.
        let deadline = Instant::now() + Duration::from_secs(60);
        loop {
            match TcpStream::connect(("127.0.0.1", port)) {
                Ok(stream) => {
                    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
                    return Ok(Self { stream: BufReader::new(stream) });
                }
                Err(error) if Instant::now() > deadline => return Err(error.into()),
                Err(_) => thread::sleep(Duration::from_millis(50)),
            }
        }
    }

    fn call(&mut self, call: &[&str]) -> Result<String> {
        self.stream.get_mut().write_all(&encode(call))?;
        Ok(self.reply()?)
    }

    /// Makes a contender's call so many times and holds every reply against what it must be.
    fn repeat(&mut self, contender: &Contender, times: usize) -> Result<()> {
        let batch = encode(contender.call).repeat(PIPELINE);
        for _ in 0..times / PIPELINE {
            self.stream.get_mut().write_all(&batch)?;
            for _ in 0..PIPELINE {
                let reply = self.reply()?;
                if !reply.starts_with(contender.reply) {
                    return Err(format!("{}: unexpected reply {reply:?}", contender.name).into());
                }
            }
        }
        Ok(())
    }

    /// One reply as it came, nested ones included.
    fn reply(&mut self) -> io::Result<String> {
        let mut text = String::new();
        let mut open = 1_usize;
        while open > 0 {
            let start = text.len();
            if self.stream.read_line(&mut text)? == 0 {
                return Err(io::ErrorKind::UnexpectedEof.into());
            }
            open -= 1;
            let line = text.split_at(start).1.trim_end();
            let count = line.get(1..).and_then(|count| count.parse::<usize>().ok()).unwrap_or(0);
            if line.starts_with('*') {
                open += count;
            } else if line.starts_with('$') {
                let mut bulk = vec![0; count + 2];
                self.stream.read_exact(&mut bulk)?;
                text.push_str(&String::from_utf8_lossy(&bulk));
            }
        }
        Ok(text)
    }
}

fn encode(call: &[&str]) -> Vec<u8> {
    let mut bytes = format!("*{}\r\n", call.len()).into_bytes();
    for word in call {
        bytes.extend_from_slice(format!("${}\r\n{word}\r\n", word.len()).as_bytes());
    }
    bytes
}
