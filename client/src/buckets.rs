//! A connection that answers the commands whether the server has the module or not.

use std::fmt;
use std::time::Duration;

use redis::{Cmd, RedisResult, Value};

use crate::route::{Implementation, Route};
use crate::script;

/// A connection that answers the commands whether the server has the module or not: by the module where it is,
/// otherwise by a script, which gives the same answers more slowly.
///
/// It is a redis-rs connection itself, blocking or async as the one inside, and passes every other command through.
/// Clones share what they have learnt.
///
/// # Which of the two
/// Nobody is asked in advance: a server without the module answers `unknown command` to the first call, and has done
/// nothing. That call and the next ones go to the script, until a server turns up that does not know the script, or
/// until some seconds have passed ([`TokenBuckets::ask_again_after`]): then the next call asks again. So the handle
/// follows a failover to a node without the module, and back. [`TokenBuckets::served_by`] says what answered last.
///
/// In a cluster of which only some nodes have the module, each call is tried as a command first, for the rest of the
/// cluster answers: correct, with a second round trip on those nodes. Load the module on all of them.
///
/// # What is never done twice
/// A call that the server answered with `unknown command` or `NOSCRIPT` has not been carried out, and goes out once
/// more in another form. After any other error, a timeout first of all, nothing is sent again.
///
/// # Two kinds of buckets
/// The script keeps a bucket in a hash, under the key with `%script` behind it, for neither of the two can read what
/// the other wrote. A tenant whose server changes from one to the other finds a full bucket: at each change it may get
/// its capacity once more.
///
/// # Pipelines
/// The handle asks before it sends one, unless it knows. If the module is gone all the same, `unknown command` comes
/// back as [`Fault::ModuleMissing`](crate::Fault::ModuleMissing), for the rest of the pipeline has been carried out;
/// the next one uses the script.
///
/// ```no_run
/// # async fn example() -> redis::RedisResult<()> {
/// use redis_token_bucket_client::{AsyncTokenBucketCommands, Key, Quota, TokenBuckets};
///
/// let connection = redis::Client::open("redis://127.0.0.1")?.get_multiplexed_async_connection().await?;
/// let mut buckets = TokenBuckets::new(connection);
/// let decision = buckets.tb_take(Key::new("acme", "api"), Quota::per_second(50), 1).await?;
/// println!("{}: {:?}", if decision.allowed { "yes" } else { "no" }, buckets.served_by());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TokenBuckets<C> {
    connection: C,
    route: Route,
}

impl<C> TokenBuckets<C> {
    /// How long the script is used until the server is asked again for the module, unless
    /// [`TokenBuckets::ask_again_after`] says otherwise.
    pub const ASK_AGAIN_AFTER: Duration = Duration::from_secs(10);

    /// Uses the module where the server has it, and the script where not.
    pub fn new(connection: C) -> Self {
        Self { connection, route: Route::new(None, Self::ASK_AGAIN_AFTER) }
    }

    /// Uses this one, whatever the server has.
    pub fn using(implementation: Implementation, connection: C) -> Self {
        Self { connection, route: Route::new(Some(implementation), Self::ASK_AGAIN_AFTER) }
    }

    /// How long the script is used until the server is asked again for the module. Each time costs one call a round
    /// trip.
    #[must_use]
    pub fn ask_again_after(mut self, time: Duration) -> Self {
        self.route.ask_again = time;
        self
    }

    /// What answered last; before the first answer, what was chosen, if anything was.
    pub fn served_by(&self) -> Option<Implementation> {
        self.route.served_by()
    }

    /// The connection inside.
    pub fn get_ref(&self) -> &C {
        &self.connection
    }

    /// The connection inside.
    pub fn get_mut(&mut self) -> &mut C {
        &mut self.connection
    }

    /// The connection inside.
    pub fn into_inner(self) -> C {
        self.connection
    }
}

impl<C: fmt::Debug> fmt::Debug for TokenBuckets<C> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let served_by = self.served_by();
        f.debug_struct("TokenBuckets").field("connection", &self.connection).field("served_by", &served_by).finish()
    }
}

#[cfg(feature = "aio")]
impl<C: redis::aio::ConnectionLike + Send> redis::aio::ConnectionLike for TokenBuckets<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> redis::RedisFuture<'a, Value> {
        let Self { connection, route } = self;
        let Some(mut call) = route.call(cmd) else { return connection.req_packed_command(cmd) };
        Box::pin(async move {
            loop {
                let answer = connection.req_packed_command(call.request()).await;
                if let Some(answer) = call.answered(answer) {
                    return answer;
                }
            }
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a redis::Pipeline,
        offset: usize,
        count: usize,
    ) -> redis::RedisFuture<'a, Vec<Value>> {
        let Self { connection, route } = self;
        let Some(first) = pipeline.cmd_iter().find(|cmd| script::replaces(cmd)) else {
            return connection.req_packed_commands(pipeline, offset, count);
        };
        Box::pin(async move {
            let implementation = match route.settled() {
                Some(implementation) => implementation,
                None => route.learn_from_question(connection.req_packed_command(&script::question(first)).await),
            };
            if implementation == Implementation::Module {
                let answers = connection.req_packed_commands(pipeline, offset, count).await;
                route.learn_from_pipeline(&answers);
                return answers;
            }
            let mut scripts = redis::Pipeline::new();
            if pipeline.is_transaction() {
                scripts.atomic();
            }
            for cmd in script::replace_all(pipeline.cmd_iter()) {
                scripts.add_command(cmd);
            }
            connection.req_packed_commands(&scripts, offset, count).await
        })
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }
}

impl<C: redis::ConnectionLike> redis::ConnectionLike for TokenBuckets<C> {
    fn req_command(&mut self, cmd: &Cmd) -> RedisResult<Value> {
        let Self { connection, route } = self;
        let Some(mut call) = route.call(cmd) else { return connection.req_command(cmd) };
        loop {
            let answer = connection.req_command(call.request());
            if let Some(answer) = call.answered(answer) {
                return answer;
            }
        }
    }

    fn req_packed_command(&mut self, packed: &[u8]) -> RedisResult<Value> {
        match script::parse(packed).as_deref() {
            Some([cmd]) if script::replaces(cmd) => self.req_command(cmd),
            _ => self.connection.req_packed_command(packed),
        }
    }

    fn req_packed_commands(&mut self, packed: &[u8], offset: usize, count: usize) -> RedisResult<Vec<Value>> {
        let Self { connection, route } = self;
        let commands = script::parse(packed).unwrap_or_default();
        let Some(first) = commands.iter().find(|cmd| script::replaces(cmd)) else {
            return connection.req_packed_commands(packed, offset, count);
        };
        let implementation = match route.settled() {
            Some(implementation) => implementation,
            None => route.learn_from_question(connection.req_command(&script::question(first))),
        };
        if implementation == Implementation::Module {
            let answers = connection.req_packed_commands(packed, offset, count);
            route.learn_from_pipeline(&answers);
            return answers;
        }
        let scripts: Vec<u8> = script::replace_all(commands.iter()).iter().flat_map(Cmd::get_packed_command).collect();
        connection.req_packed_commands(&scripts, offset, count)
    }

    fn get_db(&self) -> i64 {
        self.connection.get_db()
    }

    fn supports_pipelining(&self) -> bool {
        self.connection.supports_pipelining()
    }

    fn check_connection(&mut self) -> bool {
        self.connection.check_connection()
    }

    fn is_open(&self) -> bool {
        self.connection.is_open()
    }
}
