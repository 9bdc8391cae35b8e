//! How often and for how long somebody tries, and how long they wait each time.

use std::time::Duration;

/// What is spread at least, where a server asks for less or for nothing.
const LEAST_WINDOW: Duration = Duration::from_millis(100);

/// How often a request is sent at most, and how long its retries may take together.
///
/// A server that says "in two seconds" says when *one* caller passes, and it says so to everybody whom it turns away at that
/// moment. So nobody comes back before the time that was asked for, and everybody at a random moment of a window behind it,
/// which is longer than that time and doubles with each attempt, as nobody knows how many others there are:
///
/// ```text
/// wait = asked + random(0, max(asked, 100 ms) * 2^attempts)
/// ```
///
/// with `attempts` made so far. It is the "full jitter" of Marc Brooker's
/// [Exponential Backoff And Jitter](https://aws.amazon.com/blogs/architecture/exponential-backoff-and-jitter/), with the time
/// that the server asked for in the place of a guess, and added to instead of being shortened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Patience {
    attempts: u32,
    total: Duration,
}

impl Default for Patience {
    /// Four attempts, the last of which begins within 30 seconds of the first.
    fn default() -> Self {
        Self::new(4, Duration::from_secs(30))
    }
}

impl Patience {
    /// At most so many attempts, the first included, the last of which begins within `total` of the first. It is no deadline for
    /// an attempt itself; the client has one.
    #[must_use]
    pub const fn new(attempts: u32, total: Duration) -> Self {
        Self { attempts, total }
    }

    /// How long to wait after `made` attempts, which have taken `spent` with the waits between them, when the last answer asked
    /// for `asked`: never less, and a random time more. `None` to give up, at once where the wait would go beyond the total.
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redis_token_bucket_retry::Patience;
    /// let (patience, second) = (Patience::new(3, Duration::from_secs(10)), Duration::from_secs(1));
    /// let wait = patience.wait(1, Duration::ZERO, second).unwrap();
    /// assert!(wait >= second && wait <= 3 * second);
    /// assert_eq!(patience.wait(3, Duration::ZERO, second), None);
    /// assert_eq!(patience.wait(1, 9 * second, 2 * second), None);
    /// ```
    #[must_use]
    pub fn wait(&self, made: u32, spent: Duration, asked: Duration) -> Option<Duration> {
        let doublings = 1_u32.checked_shl(made).unwrap_or(u32::MAX);
        let window = asked.max(LEAST_WINDOW).saturating_mul(doublings);
        let wait = asked.saturating_add(random_up_to(window));
        (made < self.attempts && spent.saturating_add(wait) <= self.total).then_some(wait)
    }

    /// Makes a call, and makes it again as long as its answer asks for that and patience lasts; gives the last answer, whatever it
    /// is. `asked` reads an answer, with [`retry_after`](crate::retry_after) or `retry_info`; where it finds nothing, the call is
    /// not made again.
    ///
    /// ```no_run
    /// # use redis_token_bucket_retry::{Patience, retry_after};
    /// # async fn example(client: reqwest::Client) -> reqwest::Result<()> {
    /// let response = Patience::default()
    ///     .retry(
    ///         || client.post("http://localhost:3000/export").body("all of it").send(),
    ///         |answer| answer.as_ref().ok().and_then(|it| retry_after(it.status(), it.headers())),
    ///     )
    ///     .await?;
    /// # Ok(())
    /// # }
    /// ```
    #[cfg(feature = "tokio")]
    pub async fn retry<Answer, Call: Future<Output = Answer>>(
        &self,
        mut call: impl FnMut() -> Call,
        mut asked: impl FnMut(&Answer) -> Option<Duration>,
    ) -> Answer {
        let start = tokio::time::Instant::now();
        let mut made = 0_u32;
        loop {
            let answer = call().await;
            made = made.saturating_add(1);
            let Some(wait) = asked(&answer).and_then(|asked| self.wait(made, start.elapsed(), asked)) else {
                return answer;
            };
            tokio::time::sleep(wait).await;
        }
    }
}

fn random_up_to(most: Duration) -> Duration {
    Duration::from_nanos(fastrand::u64(..=u64::try_from(most.as_nanos()).unwrap_or(u64::MAX)))
}
