//! Which way a command goes, to the module or to the script, without the sending.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use redis::{Cmd, RedisError, RedisResult, Value};

use crate::fault::Fault;
use crate::script;

/// What answers the commands.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Implementation {
    /// The server's own commands.
    Module,
    /// The script that this crate carries.
    Script,
}

impl fmt::Display for Implementation {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Module => "module",
            Self::Script => "script",
        })
    }
}

/// What is known of the servers that a connection leads to. Clones know the same.
#[derive(Clone)]
pub(crate) struct Route {
    told: Option<Implementation>,
    pub(crate) ask_again: Duration,
    memory: Arc<Memory>,
}

/// When each answer was heard last.
struct Memory {
    /// The moments are milliseconds since this one, plus one; 0 for never.
    start: Instant,
    present: AtomicU64,
    missing: AtomicU64,
}

impl Route {
    pub(crate) fn new(told: Option<Implementation>, ask_again: Duration) -> Self {
        let memory = Memory { start: Instant::now(), present: AtomicU64::new(0), missing: AtomicU64::new(0) };
        Self { told, ask_again, memory: Arc::new(memory) }
    }

    /// The course of a command, if it is one that the script replaces.
    pub(crate) fn call<'a>(&'a self, cmd: &'a Cmd) -> Option<Call<'a>> {
        if !script::replaces(cmd) {
            return None;
        }
        let stage = match (self.told, self.guess()) {
            (Some(Implementation::Module), _) => Stage::Last,
            (_, Some(Implementation::Script)) => Stage::Hash,
            _ => Stage::Ask,
        };
        let script = (stage == Stage::Hash).then(|| script::by_hash(cmd));
        Some(Call { route: self, cmd, script, stage })
    }

    /// What answered last; before that, what was chosen, if anything was.
    pub(crate) fn served_by(&self) -> Option<Implementation> {
        self.told.or(match self.moments() {
            (0, 0) => None,
            (present, missing) if present >= missing => Some(Implementation::Module),
            _ => Some(Implementation::Script),
        })
    }

    /// What will answer, where that is known: every server that was heard of lately agrees.
    pub(crate) fn settled(&self) -> Option<Implementation> {
        self.guess().filter(|guess| self.served_by() == Some(*guess))
    }

    /// What to try first. It is the script only if nothing has been heard of the module for a while, for some nodes of
    /// a cluster may have it.
    fn guess(&self) -> Option<Implementation> {
        if self.told.is_some() {
            return self.told;
        }
        let ask_again = u64::try_from(self.ask_again.as_millis()).unwrap_or(u64::MAX);
        let (present, missing) = self.moments();
        if missing == 0 || present > 0 && missing <= present.saturating_add(ask_again) {
            return (present > 0).then_some(Implementation::Module);
        }
        (self.now() < missing.saturating_add(ask_again)).then_some(Implementation::Script)
    }

    fn moments(&self) -> (u64, u64) {
        (self.memory.present.load(Ordering::Relaxed), self.memory.missing.load(Ordering::Relaxed))
    }

    fn now(&self) -> u64 {
        u64::try_from(self.memory.start.elapsed().as_millis()).unwrap_or(u64::MAX).saturating_add(1)
    }

    /// What an answer to one of our commands says of the server. One that did not come from a server says nothing.
    fn learn(&self, error: Option<&RedisError>) {
        let heard = match error {
            Some(error) if is_missing(error) => &self.memory.missing,
            Some(error) if error.code().is_none() => return,
            _ => &self.memory.present,
        };
        heard.store(self.now(), Ordering::Relaxed);
    }

    /// Learns from the answer to [`script::question`]. Without an answer the module is as good a guess as any.
    pub(crate) fn learn_from_question(&self, answer: RedisResult<Value>) -> Implementation {
        let error = answer.and_then(Value::extract_error).err();
        self.learn(error.as_ref());
        if error.is_some_and(|error| is_missing(&error)) { Implementation::Script } else { Implementation::Module }
    }

    /// Learns from the answers to a pipeline, in which a transaction's are one.
    pub(crate) fn learn_from_pipeline(&self, answers: &RedisResult<Vec<Value>>) {
        let mut values: Vec<&Value> = answers.iter().flatten().collect();
        while let Some(value) = values.pop() {
            match value {
                Value::Array(items) => values.extend(items),
                Value::ServerError(error) => self.learn(Some(&error.clone().into())),
                _ => {}
            }
        }
    }
}

fn is_missing(error: &RedisError) -> bool {
    Fault::of(error) == Fault::ModuleMissing
}

/// A command under way.
pub(crate) struct Call<'a> {
    route: &'a Route,
    cmd: &'a Cmd,
    /// What to send instead of the command.
    script: Option<Cmd>,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Stage {
    /// The command is out. A server that does not know it may have the script.
    Ask,
    /// The script's hash is out. A server that does not know it may be a new one, with the module.
    Hash,
    /// The command is out to a server that does not have the script.
    AskNew,
    /// The script's hash is out to a server without the module.
    HashOnly,
    /// Whatever the answer is, it is the answer.
    Last,
}

impl Call<'_> {
    pub(crate) fn request(&self) -> &Cmd {
        self.script.as_ref().unwrap_or(self.cmd)
    }

    /// The answer to the call, or `None` if something else has to be sent: a server that does not know a command or a
    /// script has done nothing. No other error leads on.
    pub(crate) fn answered(&mut self, answer: RedisResult<Value>) -> Option<RedisResult<Value>> {
        let answer = answer.and_then(Value::extract_error);
        let error = answer.as_ref().err();
        if matches!(self.stage, Stage::Ask | Stage::AskNew) {
            self.route.learn(error);
        }
        let (missing, no_script) =
            (error.is_some_and(is_missing), error.and_then(RedisError::code) == Some("NOSCRIPT"));
        (self.stage, self.script) = match self.stage {
            Stage::Ask if missing => (Stage::HashOnly, Some(script::by_hash(self.cmd))),
            Stage::AskNew if missing => (Stage::Last, Some(script::by_text(self.cmd))),
            Stage::Hash if no_script && self.route.told.is_none() => (Stage::AskNew, None),
            Stage::Hash | Stage::HashOnly if no_script => (Stage::Last, Some(script::by_text(self.cmd))),
            _ => return Some(answer),
        };
        None
    }
}
