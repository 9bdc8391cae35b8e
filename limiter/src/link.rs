//! A connection that is made in the background when it is first needed, and replaced when it is lost, stuck or read-only.
//!
//! redis-rs' own manager makes callers wait for a reconnection, sticks to a server that has become a replica, and to one that
//! has silently gone. Here nobody waits for a server that is known to be down.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use client::redis::aio::ConnectionLike;
use client::redis::{Cmd, Pipeline, RedisError, RedisFuture, RedisResult, ServerErrorKind, Value};
use tokio::sync::watch;
use tokio::time::Instant;

use crate::time::jittered;

/// The pause after the first failed attempt to connect. It doubles from one to the next.
const FIRST_PAUSE: Duration = Duration::from_millis(20);
/// The longest pause.
const LONGEST_PAUSE: Duration = Duration::from_millis(200);
/// So many calls in a row without an answer make a connection suspect: its other end may have gone without a word.
const UNANSWERED: u32 = 5;

/// How connections of one kind are made.
pub(crate) trait Connect: Send + Sync + 'static {
    type Connection: ConnectionLike + Clone + Send + Sync + 'static;

    /// The longest that an attempt may take.
    const PATIENCE: Duration;
    /// The shortest time between two replacements of a connection that works, in a way.
    const REST: Duration;

    fn connect(&self, on_loss: OnLoss) -> impl Future<Output = RedisResult<Self::Connection>> + Send;

    /// Whether a connection mends itself, and says when it is to be replaced.
    const MENDS_ITSELF: bool;

    /// Whether a connection leads to somebody who has this key. One to a single server does.
    fn leads_to(connection: &Self::Connection, key: &[u8]) -> impl Future<Output = bool> + Send {
        let _ = (connection, key);
        std::future::ready(true)
    }
}

/// To be called when a connection has broken off or is no longer right, by whoever notices.
pub(crate) struct OnLoss(Box<dyn Fn() + Send + Sync>);

impl OnLoss {
    pub(crate) fn report(&self) {
        (self.0)();
    }
}

pub(crate) struct Link<C: Connect>(Arc<Inner<C>>);

impl<C: Connect> Clone for Link<C> {
    fn clone(&self) -> Self {
        Self(Arc::clone(&self.0))
    }
}

struct Inner<C: Connect> {
    connector: C,
    epoch: Instant,
    state: watch::Sender<State<C::Connection>>,
    dialing: AtomicBool,
    /// When a connection was made last, in milliseconds since the epoch.
    made_at: AtomicU64,
    generation: AtomicU64,
    unanswered: AtomicU32,
}

enum State<K> {
    /// Nobody has needed it yet.
    Idle,
    /// An attempt is under way, and nothing says that it will fail.
    Dialing,
    Up {
        connection: K,
        generation: u64,
    },
    /// The last attempt failed; there will be others.
    Down(RedisError),
}

impl<C: Connect> Link<C> {
    pub(crate) fn new(connector: C) -> Self {
        Self(Arc::new(Inner {
            connector,
            epoch: Instant::now(),
            state: watch::Sender::new(State::Idle),
            dialing: AtomicBool::new(false),
            made_at: AtomicU64::new(0),
            generation: AtomicU64::new(0),
            unanswered: AtomicU32::new(0),
        }))
    }

    /// Waits until there is a connection, and it leads to somebody who has this key, however long that takes.
    pub(crate) async fn ready(&self, key: Option<&[u8]>) {
        let mut state = self.0.state.subscribe();
        loop {
            if let Ok((connection, _)) = self.connection().await {
                let Some(key) = key else { return };
                if C::leads_to(&connection, key).await {
                    return;
                }
                self.0.renew();
            }
            let _ = tokio::time::timeout(LONGEST_PAUSE, state.changed()).await;
        }
    }

    /// Whether there is a connection, or one can be made.
    pub(crate) async fn is_up(&self) -> bool {
        self.connection().await.is_ok()
    }

    /// Replaces the connection, if another can be made, though nothing says that it is broken.
    pub(crate) fn doubt(&self) {
        self.0.renew();
    }

    /// The connection; waits for an attempt that may succeed, but not for the next one where the last has failed.
    async fn connection(&self) -> RedisResult<(C::Connection, u64)> {
        if let Some(found) = self.0.look() {
            if found.is_err() {
                // Somebody dials already, unless the runtime that did has ended.
                self.0.dial();
            }
            return found;
        }
        let mut state = self.0.state.subscribe();
        loop {
            if let Some(found) = self.0.look() {
                return found;
            }
            self.0.dial();
            if state.changed().await.is_err() {
                return Err(gone());
            }
        }
    }
}

impl<C: Connect> Inner<C> {
    /// What there is without waiting.
    fn look(&self) -> Option<RedisResult<(C::Connection, u64)>> {
        match &*self.state.borrow() {
            State::Up { connection, generation } => Some(Ok((connection.clone(), *generation))),
            State::Down(error) => Some(Err(error.clone())),
            State::Idle | State::Dialing => None,
        }
    }

    /// What the outcome of a call says about the connection that it went over.
    fn judge(self: &Arc<Self>, generation: u64, error: Option<&RedisError>) {
        let Some(error) = error else { return };
        let kind = error.kind();
        if error.is_unrecoverable_error() {
            if C::MENDS_ITSELF { self.suspect() } else { self.lost(generation) }
        } else if !C::MENDS_ITSELF
            && (kind == ServerErrorKind::ReadOnly.into() || kind == ServerErrorKind::MasterDown.into())
        {
            self.renew();
        }
    }

    /// A call went unanswered.
    fn suspect(self: &Arc<Self>) {
        if self.unanswered.fetch_add(1, Ordering::Relaxed) >= UNANSWERED {
            self.renew();
        }
    }

    fn lost(self: &Arc<Self>, lost: u64) {
        let was_current = self.state.send_if_modified(|state| {
            let current = matches!(state, State::Up { generation, .. } if *generation == lost);
            if current {
                *state = State::Dialing;
            }
            current
        });
        if was_current {
            self.dial();
        }
    }

    /// Replaces a connection that works, in a way: it stays until there is another.
    fn renew(self: &Arc<Self>) {
        if self.age() >= C::REST {
            self.dial();
        }
    }

    fn age(&self) -> Duration {
        let made_at = Duration::from_millis(self.made_at.load(Ordering::Relaxed));
        self.epoch.elapsed().saturating_sub(made_at)
    }

    fn dial(self: &Arc<Self>) {
        if self.dialing.swap(true, Ordering::AcqRel) {
            return;
        }
        self.state.send_if_modified(|state| {
            let idle = matches!(state, State::Idle);
            if idle {
                *state = State::Dialing;
            }
            idle
        });
        tokio::spawn(keep_dialing(Arc::downgrade(self), Dialing(Arc::downgrade(self))));
    }

    fn on_loss(self: &Arc<Self>, generation: u64) -> OnLoss {
        let inner = Arc::downgrade(self);
        OnLoss(Box::new(move || {
            if let Some(inner) = inner.upgrade() {
                if C::MENDS_ITSELF { inner.renew() } else { inner.lost(generation) }
            }
        }))
    }

    async fn attempt(self: &Arc<Self>) -> RedisResult<(C::Connection, u64)> {
        let generation = self.generation.fetch_add(1, Ordering::Relaxed).saturating_add(1);
        let attempt = self.connector.connect(self.on_loss(generation));
        match tokio::time::timeout(C::PATIENCE, attempt).await {
            Ok(connection) => connection.map(|connection| (connection, generation)),
            Err(_) => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()),
        }
    }

    fn up(&self, (connection, generation): (C::Connection, u64)) {
        self.made_at.store(u64::try_from(self.epoch.elapsed().as_millis()).unwrap_or(u64::MAX), Ordering::Relaxed);
        self.unanswered.store(0, Ordering::Relaxed);
        self.state.send_replace(State::Up { connection, generation });
    }

    /// Whether dialing is over, for the connection that was to be replaced answers again.
    fn down(&self, error: RedisError) -> bool {
        let mut is_up = false;
        self.state.send_if_modified(|state| {
            is_up = matches!(state, State::Up { .. });
            if !is_up {
                *state = State::Down(error);
            }
            !is_up
        });
        is_up && self.unanswered.load(Ordering::Relaxed) == 0
    }
}

/// The right to dial, given back when the task that has it ends, also with its runtime: then those who wait dial themselves.
struct Dialing<C: Connect>(Weak<Inner<C>>);

impl<C: Connect> Drop for Dialing<C> {
    fn drop(&mut self) {
        if let Some(inner) = self.0.upgrade() {
            inner.dialing.store(false, Ordering::Release);
            inner.state.send_if_modified(|state| matches!(state, State::Dialing));
        }
    }
}

/// Ends with a connection, or with the link.
async fn keep_dialing<C: Connect>(link: Weak<Inner<C>>, dialing: Dialing<C>) {
    let mut pause = FIRST_PAUSE;
    while let Some(inner) = link.upgrade() {
        match inner.attempt().await {
            Ok(made) => {
                inner.up(made);
                // A connection that has broken off at once is wanted anew by whoever learns that nobody dials.
                return drop(dialing);
            }
            Err(error) => {
                if inner.down(error) {
                    return;
                }
            }
        }
        drop(inner);
        tokio::time::sleep(jittered(pause)).await;
        pause = pause.saturating_mul(2).min(LONGEST_PAUSE);
    }
}

fn gone() -> RedisError {
    std::io::Error::from(std::io::ErrorKind::NotConnected).into()
}

/// A call on its way. Dropped without an outcome, it counts as unanswered.
struct Waiting<'a, C: Connect> {
    inner: &'a Arc<Inner<C>>,
    generation: u64,
    over: bool,
}

impl<C: Connect> Waiting<'_, C> {
    /// The outcome: an answer, in which there may be an error of the server's, or an error of the connection's.
    fn over(mut self, error: Option<&RedisError>) {
        self.over = true;
        let answered = error.is_none_or(|error| error.code().is_some());
        if answered && self.inner.unanswered.load(Ordering::Relaxed) != 0 {
            self.inner.unanswered.store(0, Ordering::Relaxed);
        }
        self.inner.judge(self.generation, error);
    }
}

impl<C: Connect> Drop for Waiting<'_, C> {
    fn drop(&mut self) {
        if !self.over {
            self.inner.suspect();
        }
    }
}

impl<C: Connect> ConnectionLike for Link<C> {
    fn req_packed_command<'a>(&'a mut self, cmd: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move {
            let (mut connection, generation) = self.connection().await?;
            let waiting = Waiting { inner: &self.0, generation, over: false };
            let answer = connection.req_packed_command(cmd).await;
            match &answer {
                // An error in an answer comes as a value.
                Ok(Value::ServerError(error)) => waiting.over(Some(&error.clone().into())),
                answer => waiting.over(answer.as_ref().err()),
            }
            answer
        })
    }

    fn req_packed_commands<'a>(
        &'a mut self,
        pipeline: &'a Pipeline,
        offset: usize,
        count: usize,
    ) -> RedisFuture<'a, Vec<Value>> {
        Box::pin(async move {
            let (mut connection, generation) = self.connection().await?;
            let waiting = Waiting { inner: &self.0, generation, over: false };
            let answer = connection.req_packed_commands(pipeline, offset, count).await;
            waiting.over(answer.as_ref().err());
            answer
        })
    }

    fn get_db(&self) -> i64 {
        match &*self.0.state.borrow() {
            State::Up { connection, .. } => connection.get_db(),
            _ => 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Mutex;

    use client::redis::cmd;

    use super::*;

    /// What a server of the tests does with a call, or with an attempt to connect.
    #[derive(Clone, Copy, PartialEq, Eq, Debug)]
    enum Does {
        Answers,
        Refuses,
        Breaks,
        IsSilent,
        IsReplica,
    }

    #[derive(Clone)]
    struct Server(Arc<Mutex<(Does, u32)>>);

    impl Server {
        fn new(does: Does) -> Self {
            Self(Arc::new(Mutex::new((does, 0))))
        }

        fn now(&self, does: Does) {
            self.0.lock().unwrap().0 = does;
        }

        fn does(&self) -> Does {
            self.0.lock().unwrap().0
        }

        /// How often somebody tried to connect.
        fn attempts(&self) -> u32 {
            self.0.lock().unwrap().1
        }

        async fn act(does: Does) -> RedisResult<Value> {
            match does {
                Does::Answers => Ok(Value::Okay),
                Does::Refuses => Err(std::io::Error::from(std::io::ErrorKind::ConnectionRefused).into()),
                Does::Breaks => Err(std::io::Error::from(std::io::ErrorKind::BrokenPipe).into()),
                Does::IsSilent => std::future::pending().await,
                Does::IsReplica => Err((ServerErrorKind::ReadOnly.into(), "a replica").into()),
            }
        }
    }

    /// A connection that does what the server did when it was made, unless it answered.
    #[derive(Clone)]
    struct Connection(Server, Does);

    impl ConnectionLike for Connection {
        fn req_packed_command<'a>(&'a mut self, _: &'a Cmd) -> RedisFuture<'a, Value> {
            let does = if self.1 == Does::Answers { self.0.does() } else { self.1 };
            Box::pin(async move {
                tokio::time::sleep(Duration::from_millis(1)).await;
                Server::act(does).await
            })
        }

        fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
            Box::pin(async { Ok(Vec::new()) })
        }

        fn get_db(&self) -> i64 {
            0
        }
    }

    impl Connect for Server {
        type Connection = Connection;
        const PATIENCE: Duration = Duration::from_millis(500);
        const REST: Duration = Duration::from_millis(500);
        const MENDS_ITSELF: bool = false;

        async fn connect(&self, _: OnLoss) -> RedisResult<Connection> {
            let attempts = self.attempts().saturating_add(1);
            self.0.lock().unwrap().1 = attempts;
            tokio::time::sleep(Duration::from_millis(30)).await;
            let does = self.does();
            match does {
                Does::IsReplica => Ok(Connection(self.clone(), does)),
                _ => Self::act(does).await.map(|_| Connection(self.clone(), does)),
            }
        }
    }

    async fn call(link: &Link<Server>) -> RedisResult<Value> {
        link.clone().req_packed_command(&cmd("PING")).await
    }

    async fn call_for(link: &Link<Server>, patience: Duration) -> Option<RedisResult<Value>> {
        tokio::time::timeout(patience, call(link)).await.ok()
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_connected_before_it_is_needed_and_then_once() {
        let server = Server::new(Does::Answers);
        let link = Link::new(server.clone());
        tokio::time::sleep(Duration::from_secs(1)).await;
        assert_eq!(server.attempts(), 0);
        let calls: Vec<_> = (0..100)
            .map(|_| {
                tokio::spawn({
                    let link = link.clone();
                    async move { call(&link).await.unwrap() }
                })
            })
            .collect();
        for call in calls {
            call.await.unwrap();
        }
        assert_eq!(server.attempts(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn nobody_waits_for_a_server_that_is_known_to_be_down() {
        let server = Server::new(Does::Refuses);
        let link = Link::new(server.clone());
        assert!(call(&link).await.is_err(), "the first waits for the attempt");
        for _ in 0..100 {
            let start = Instant::now();
            assert!(call(&link).await.is_err());
            assert_eq!(start.elapsed(), Duration::ZERO);
        }
        tokio::time::sleep(Duration::from_secs(10)).await;
        let attempts = server.attempts();
        assert!((35..=70).contains(&attempts), "{attempts} attempts in ten seconds");
        server.now(Does::Answers);
        let start = Instant::now();
        link.ready(None).await;
        assert!(start.elapsed() <= Duration::from_millis(300), "{:?}", start.elapsed());
        assert!(call(&link).await.is_ok());
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_that_breaks_is_made_again_without_a_second_failure() {
        let server = Server::new(Does::Answers);
        let link = Link::new(server.clone());
        assert!(call(&link).await.is_ok());
        server.now(Does::Breaks);
        assert!(call(&link).await.is_err());
        server.now(Does::Answers);
        assert!(call(&link).await.is_ok());
        assert_eq!(server.attempts(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_connection_is_replaced_when_nothing_comes_back_and_kept_when_it_does() {
        let server = Server::new(Does::Answers);
        let link = Link::new(server.clone());
        assert!(call(&link).await.is_ok());
        tokio::time::sleep(Duration::from_secs(1)).await;
        server.now(Does::IsSilent);
        for _ in 0..UNANSWERED {
            assert!(call_for(&link, Duration::from_millis(50)).await.is_none());
        }
        assert_eq!(server.attempts(), 1);
        assert!(call_for(&link, Duration::from_millis(50)).await.is_none());
        tokio::time::sleep(Duration::from_secs(3)).await;
        assert!(server.attempts() >= 4, "it is tried again and again");
        server.now(Does::Answers);
        assert!(call(&link).await.is_ok());
        tokio::time::sleep(Duration::from_secs(2)).await;
        let attempts = server.attempts();
        tokio::time::sleep(Duration::from_secs(10)).await;
        assert_eq!(server.attempts(), attempts, "and no longer than needed");
    }

    #[tokio::test(start_paused = true)]
    async fn a_replica_is_left_for_whoever_is_there_now_but_not_every_moment() {
        let server = Server::new(Does::IsReplica);
        let link = Link::new(server.clone());
        for _ in 0..1_000 {
            assert!(call(&link).await.is_err());
        }
        let attempts = server.attempts();
        assert!((2..=4).contains(&attempts), "{attempts} attempts in a second");
        server.now(Does::Answers);
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert!(call(&link).await.is_err());
        tokio::time::sleep(Duration::from_millis(50)).await;
        assert!(call(&link).await.is_ok());
    }

    #[test]
    fn who_waits_dials_when_the_runtime_that_dialed_has_ended() {
        let runtime = || tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build().unwrap();
        let (first, second) = (runtime(), runtime());
        let server = Server::new(Does::IsSilent);
        let link = Link::new(server.clone());
        first.block_on(call_for(&link, Duration::from_millis(50)));
        let waiting = second.spawn({
            let link = link.clone();
            async move { link.ready(None).await }
        });
        while link.0.state.receiver_count() == 0 {
            std::thread::yield_now();
        }
        server.now(Does::Answers);
        first.shutdown_background();
        second.block_on(async { tokio::time::timeout(Duration::from_secs(30), waiting).await.unwrap().unwrap() });
    }

    #[tokio::test(start_paused = true)]
    async fn dialing_ends_with_the_link() {
        let server = Server::new(Does::Refuses);
        let link = Link::new(server.clone());
        assert!(call(&link).await.is_err());
        drop(link);
        tokio::time::sleep(Duration::from_secs(1)).await;
        let attempts = server.attempts();
        tokio::time::sleep(Duration::from_secs(60)).await;
        assert_eq!(server.attempts(), attempts);
    }
}
