//! What a slow source said, kept for a while: one load at a time a tenant, absence kept like presence, the last good value
//! served while the source is down, and no more tenants than there is room for.

use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use quick_cache::Weighter;
use quick_cache::sync::Cache as Bounded;
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::tenants::SourceError;
use crate::time::{after, jittered};

/// How long a check waits for a value to be read anew when an older one is at hand.
const REFRESH_PATIENCE: Duration = Duration::from_millis(10);
/// How long a single load may take.
const LOAD_PATIENCE: Duration = Duration::from_secs(2);
/// How long the source is left alone after a load that failed.
const AFTER_FAILURE: Duration = Duration::from_secs(1);
/// How long the names of tenants may be, in bytes, for as many to have room as were asked for.
const USUAL_NAME: u64 = 256;

pub(super) struct Cache<V> {
    window: Duration,
    slots: Bounded<String, Arc<Slot<V>>, ByLength>,
}

/// A long name takes the room of several, so that the bound on tenants is one on memory too.
#[derive(Clone)]
struct ByLength;

impl<V> Weighter<String, V> for ByLength {
    fn weight(&self, name: &String, _: &V) -> u64 {
        u64::try_from(name.len()).unwrap_or(u64::MAX).div_ceil(USUAL_NAME).max(1)
    }
}

struct Slot<V> {
    state: Mutex<State<V>>,
}

struct State<V> {
    /// The last value that was read.
    good: Option<Arc<V>>,
    /// Why the last load failed, if it did.
    failed: Option<SourceError>,
    /// When to load again.
    due: Option<Instant>,
    /// Closed by the end of the load that is under way.
    loading: Option<watch::Receiver<()>>,
}

/// What a look at a slot says.
enum Look<V> {
    /// This, at once.
    Known(Arc<V>),
    Failed(SourceError),
    /// A load is under way, and perhaps there is something to serve if it takes too long.
    Loading(watch::Receiver<()>, Option<Arc<V>>),
}

impl<V: Send + Sync + 'static> Cache<V> {
    /// Keeps what it is told about so many tenants, each for a random time between two and four thirds of `window`.
    pub(super) fn new(window: Duration, tenants: usize) -> Self {
        Self { window, slots: Bounded::with_weighter(tenants, u64::try_from(tenants).unwrap_or(u64::MAX), ByLength) }
    }

    /// Has the next call for this tenant load again; the last good value stays, in case that fails. A load that is under way may
    /// have read what was there before.
    pub(super) fn expire(&self, tenant: &str) {
        if let Some(slot) = self.slots.get(tenant) {
            let mut state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
            (state.due, state.loading) = (None, None);
        }
    }

    /// What is known about a tenant, if it need not be loaded.
    pub(super) fn fresh(&self, tenant: &str) -> Option<Arc<V>> {
        let slot = self.slots.get(tenant)?;
        let state = slot.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.good.as_ref().filter(|_| state.due.is_some_and(|due| Instant::now() < due)).cloned()
    }

    /// What is known about a tenant; `load` runs in a task of its own, and ends whoever gives up waiting.
    pub(super) async fn get<L, F>(&self, tenant: &str, load: L) -> Result<Arc<V>, SourceError>
    where
        L: FnOnce() -> F,
        F: Future<Output = Result<V, SourceError>> + Send + 'static,
    {
        let slot = match self.slots.get(tenant) {
            Some(slot) => slot,
            None => self.slot(tenant),
        };
        match slot.look(self.window, load) {
            Look::Known(value) => Ok(value),
            Look::Failed(error) => Err(error),
            Look::Loading(mut loading, None) => {
                let _ = loading.changed().await;
                slot.last()
            }
            Look::Loading(mut loading, Some(old)) => {
                let waited = tokio::time::timeout(REFRESH_PATIENCE, loading.changed()).await;
                if waited.is_ok() { slot.last() } else { Ok(old) }
            }
        }
    }

    fn slot(&self, tenant: &str) -> Arc<Slot<V>> {
        let Ok(slot) =
            self.slots.get_or_insert_with(tenant, || Ok::<_, std::convert::Infallible>(Arc::new(Slot::new())));
        slot
    }
}

impl<V: Send + Sync + 'static> Slot<V> {
    fn new() -> Self {
        Self { state: Mutex::new(State { good: None, failed: None, due: None, loading: None }) }
    }

    fn last(&self) -> Result<Arc<V>, SourceError> {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        match (&state.good, &state.failed) {
            (Some(value), _) => Ok(Arc::clone(value)),
            (None, Some(error)) => Err(Arc::clone(error)),
            (None, None) => Err(failure("the load was abandoned")),
        }
    }

    fn look<L, F>(self: &Arc<Self>, window: Duration, load: L) -> Look<V>
    where
        L: FnOnce() -> F,
        F: Future<Output = Result<V, SourceError>> + Send + 'static,
    {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        if state.due.is_some_and(|due| now < due) {
            match (&state.good, &state.failed) {
                (Some(value), _) => return Look::Known(Arc::clone(value)),
                (None, Some(error)) => return Look::Failed(Arc::clone(error)),
                (None, None) => {}
            }
        }
        let loading = match &state.loading {
            Some(loading) if loading.has_changed().is_ok() => loading.clone(),
            _ => {
                let (done, loading) = watch::channel(());
                tokio::spawn(Arc::clone(self).load(window, load(), done));
                state.loading = Some(loading.clone());
                loading
            }
        };
        match &state.good {
            // Nobody waits for a source that did not answer the last time.
            Some(value) if state.failed.is_some() => Look::Known(Arc::clone(value)),
            good => Look::Loading(loading, good.clone()),
        }
    }

    async fn load<F>(self: Arc<Self>, window: Duration, load: F, done: watch::Sender<()>)
    where
        F: Future<Output = Result<V, SourceError>> + Send + 'static,
    {
        // A source that panics has failed, like one that says so.
        let mut task = JoinSet::new();
        task.spawn(load);
        let loaded = match tokio::time::timeout(LOAD_PATIENCE, task.join_next()).await {
            Ok(Some(Ok(loaded))) => loaded,
            Ok(_) => Err(failure("the source panicked")),
            Err(_) => Err(failure("no answer in time")),
        };
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let now = Instant::now();
        let is_expired = !state.loading.as_ref().is_some_and(|loading| loading.same_channel(&done.subscribe()));
        match loaded {
            // Better than nothing, until it has been read again.
            Ok(value) if is_expired => state.good = state.good.take().or(Some(Arc::new(value))),
            Err(_) if is_expired => {}
            Ok(value) => {
                *state = State {
                    good: Some(Arc::new(value)),
                    failed: None,
                    due: Some(after(now, jittered(window))),
                    loading: None,
                };
            }
            Err(error) => {
                state.failed = Some(error);
                state.due = Some(after(now, jittered(AFTER_FAILURE)));
                state.loading = None;
            }
        }
        drop(state);
        drop(done);
    }
}

fn failure(text: &str) -> SourceError {
    Arc::from(Box::<dyn std::error::Error + Send + Sync>::from(text))
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

    use super::*;

    const WINDOW: Duration = Duration::from_secs(45);

    /// A source that can be changed, slowed and broken.
    #[derive(Default)]
    struct Source {
        value: AtomicU32,
        loads: AtomicU32,
        delay_ms: AtomicU32,
        broken: AtomicBool,
    }

    impl Source {
        async fn load(self: Arc<Self>) -> Result<u32, SourceError> {
            self.loads.fetch_add(1, Ordering::Relaxed);
            tokio::time::sleep(Duration::from_millis(self.delay_ms.load(Ordering::Relaxed).into())).await;
            if self.broken.load(Ordering::Relaxed) {
                return Err(failure("down"));
            }
            Ok(self.value.load(Ordering::Relaxed))
        }

        fn loads(&self) -> u32 {
            self.loads.load(Ordering::Relaxed)
        }
    }

    async fn get(cache: &Cache<u32>, source: &Arc<Source>) -> Result<u32, SourceError> {
        cache.get("acme", || Arc::clone(source).load()).await.map(|value| *value)
    }

    #[tokio::test(start_paused = true)]
    async fn loads_once_in_thirty_to_sixty_seconds() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        for second in 0..30 {
            assert_eq!(get(&cache, &source).await.unwrap(), 0, "second {second}");
            tokio::time::advance(Duration::from_millis(999)).await;
        }
        assert_eq!(source.loads(), 1);
        source.value.store(1, Ordering::Relaxed);
        tokio::time::advance(Duration::from_millis(30_031)).await;
        assert_eq!(get(&cache, &source).await.unwrap(), 1, "a change is seen within the window");
        assert_eq!(source.loads(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn loads_once_however_many_ask() {
        let (cache, source) = (Arc::new(Cache::new(WINDOW, 100)), Arc::new(Source::default()));
        source.delay_ms.store(100, Ordering::Relaxed);
        for round in 1..=2 {
            let asking: Vec<_> = (0..256)
                .map(|_| {
                    let (cache, source) = (Arc::clone(&cache), Arc::clone(&source));
                    tokio::spawn(async move { get(&cache, &source).await.unwrap() })
                })
                .collect();
            for asked in asking {
                asked.await.unwrap();
            }
            assert_eq!(source.loads(), round);
            tokio::time::advance(Duration::from_secs(60)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn serves_the_last_good_value_while_the_source_is_down() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        source.value.store(7, Ordering::Relaxed);
        assert_eq!(get(&cache, &source).await.unwrap(), 7);
        source.broken.store(true, Ordering::Relaxed);
        for _ in 0..3_600 {
            tokio::time::advance(Duration::from_secs(1)).await;
            assert_eq!(get(&cache, &source).await.unwrap(), 7);
        }
        let loads = source.loads();
        assert!((1_000..=5_400).contains(&loads), "{loads} loads in an hour: about one a second");
        source.broken.store(false, Ordering::Relaxed);
        source.value.store(8, Ordering::Relaxed);
        let mut value = 7;
        for _ in 0..3 {
            tokio::time::sleep(Duration::from_secs(1)).await;
            value = get(&cache, &source).await.unwrap();
        }
        assert_eq!(value, 8, "and the new one soon after it is back");
    }

    #[tokio::test(start_paused = true)]
    async fn does_not_wait_long_for_a_slow_source_when_it_knows_an_older_value() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        get(&cache, &source).await.unwrap();
        source.value.store(1, Ordering::Relaxed);
        source.delay_ms.store(500, Ordering::Relaxed);
        tokio::time::advance(Duration::from_secs(60)).await;
        let asked = Instant::now();
        assert_eq!(get(&cache, &source).await.unwrap(), 0);
        assert!(asked.elapsed() <= REFRESH_PATIENCE + Duration::from_millis(1));
        tokio::time::sleep(Duration::from_millis(500)).await;
        assert_eq!(get(&cache, &source).await.unwrap(), 1, "the load went on");
        assert_eq!(source.loads(), 2);
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_is_down_is_asked_about_an_unknown_tenant_once_a_second() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        source.broken.store(true, Ordering::Relaxed);
        for _ in 0..100 {
            assert!(get(&cache, &source).await.is_err());
        }
        assert_eq!(source.loads(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_dropped_call_leaves_the_load_to_the_others() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        source.delay_ms.store(100, Ordering::Relaxed);
        let given_up = tokio::time::timeout(Duration::from_millis(50), get(&cache, &source)).await;
        assert!(given_up.is_err());
        tokio::time::sleep(Duration::from_millis(60)).await;
        assert_eq!(get(&cache, &source).await.unwrap(), 0);
        assert_eq!(source.loads(), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn a_load_that_never_ends_is_given_up() {
        let (cache, source) = (Cache::new(WINDOW, 100), Arc::new(Source::default()));
        source.delay_ms.store(u32::MAX, Ordering::Relaxed);
        assert_eq!(get(&cache, &source).await.unwrap_err().to_string(), "no answer in time");
    }

    #[tokio::test(start_paused = true)]
    async fn what_expires_while_it_is_loaded_is_loaded_again() {
        let (cache, source) = (Arc::new(Cache::new(WINDOW, 100)), Arc::new(Source::default()));
        for known in [false, true] {
            source.delay_ms.store(100, Ordering::Relaxed);
            let (early, before) = (source.value.load(Ordering::Relaxed), source.loads());
            let asked = {
                let (cache, source) = (Arc::clone(&cache), Arc::clone(&source));
                tokio::spawn(async move { get(&cache, &source).await.unwrap() })
            };
            tokio::time::sleep(Duration::from_millis(50)).await;
            cache.expire("acme");
            // The load that is under way answers with what it has, and that holds for nobody else.
            assert_eq!(asked.await.unwrap(), early);
            tokio::time::sleep(Duration::from_millis(100)).await;
            source.value.fetch_add(1, Ordering::Relaxed);
            source.delay_ms.store(0, Ordering::Relaxed);
            assert_eq!(get(&cache, &source).await.unwrap(), early + 1, "known {known}");
            assert_eq!(source.loads(), before + 2);
            tokio::time::sleep(Duration::from_secs(60)).await;
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_source_that_panics_is_asked_once_a_second() {
        let (cache, loads) = (Cache::<u32>::new(WINDOW, 100), Arc::new(AtomicU32::new(0)));
        for _ in 0..100 {
            let loads = Arc::clone(&loads);
            let load = || async move {
                loads.fetch_add(1, Ordering::Relaxed);
                panic!("a source of somebody else's")
            };
            assert_eq!(cache.get("acme", load).await.unwrap_err().to_string(), "the source panicked");
        }
        assert_eq!(loads.load(Ordering::Relaxed), 1);
    }

    #[tokio::test(start_paused = true)]
    async fn long_names_take_the_room_of_many() {
        let (cache, source) = (Cache::new(WINDOW, 1_000), Arc::new(Source::default()));
        for tenant in 0..1_000 {
            let name = format!("{tenant}{}", "x".repeat(10_000));
            cache.get(&name, || Arc::clone(&source).load()).await.unwrap();
        }
        assert!(cache.slots.len() <= 25, "{} names of 10,000 bytes", cache.slots.len());
    }

    #[tokio::test(start_paused = true)]
    async fn knows_no_more_tenants_than_it_may() {
        let (cache, source) = (Cache::new(WINDOW, 64), Arc::new(Source::default()));
        for tenant in 0..5_000 {
            cache.get(&format!("t{tenant}"), || Arc::clone(&source).load()).await.unwrap();
        }
        assert!(cache.slots.len() <= 64);
        assert_eq!(source.loads(), 5_000);
    }
}
