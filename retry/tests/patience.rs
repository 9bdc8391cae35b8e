//! How often and when a call is made again, by the helper and by tower's `Retry`, on a clock that the tests move.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

use std::cell::RefCell;
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use bucket::{Amount, Bucket, Micros, Quota, Rate};
use http::header::RETRY_AFTER;
use http::{Request, Response, StatusCode};
use redis_token_bucket_retry::{Patience, RetryPolicy, retry_after};
use tokio::time::{Instant, sleep};
use tower::retry::RetryLayer;
use tower::{ServiceBuilder, ServiceExt, service_fn};

const SECOND: Duration = Duration::from_secs(1);

type Answer = Result<Response<()>, &'static str>;

/// An answer with this status and, where there is one, this `Retry-After`.
fn answer(status: u16, seconds: Option<u64>) -> Answer {
    let mut response = Response::builder().status(status);
    if let Some(seconds) = seconds {
        response = response.header(RETRY_AFTER, seconds);
    }
    Ok(response.body(()).unwrap())
}

fn asked(answer: &Answer) -> Option<Duration> {
    answer.as_ref().ok().and_then(|response| retry_after(response.status(), response.headers()))
}

/// Calls a service with these answers, the last of them for ever, through the helper and through tower: the moments at which it
/// was called, which are the same for both, and what came back.
async fn calls(patience: Patience, answers: &[Answer]) -> (Vec<Duration>, Answer) {
    fastrand::seed(1);
    let by_helper = recorded(answers, async |next| patience.retry(|| std::future::ready(next()), asked).await).await;
    fastrand::seed(1);
    let by_tower = recorded(answers, async |next| {
        let service = service_fn(|_: Request<&str>| std::future::ready(next()));
        let retry = ServiceBuilder::new().layer(RetryLayer::new(RetryPolicy::http(patience))).service(service);
        retry.oneshot(Request::new("body")).await
    })
    .await;
    assert_eq!(format!("{by_helper:?}"), format!("{by_tower:?}"));
    by_helper
}

async fn recorded(
    answers: &[Answer],
    retry: impl AsyncFnOnce(&dyn Fn() -> Answer) -> Answer,
) -> (Vec<Duration>, Answer) {
    let (start, moments) = (Instant::now(), RefCell::new(Vec::new()));
    let next = || {
        let at = moments.borrow().len().min(answers.len() - 1);
        moments.borrow_mut().push(start.elapsed());
        match &answers[at] {
            Ok(response) => {
                let mut copy = Response::new(());
                (*copy.status_mut(), *copy.headers_mut()) = (response.status(), response.headers().clone());
                Ok(copy)
            }
            Err(why) => Err(*why),
        }
    };
    let last = retry(&next).await;
    (moments.into_inner(), last)
}

#[tokio::test(start_paused = true)]
async fn comes_back_after_what_was_asked_and_never_before() {
    let patience = Patience::new(5, 1_000 * SECOND);
    let (moments, last) = calls(patience, &[answer(429, Some(2)), answer(503, Some(3)), answer(200, None)]).await;
    assert_eq!(last.unwrap().status(), 200);
    assert_eq!(moments.len(), 3);
    let waits: Vec<_> = moments.windows(2).map(|pair| pair[1] - pair[0]).collect();
    assert!(waits[0] >= 2 * SECOND && waits[0] <= 6 * SECOND, "{waits:?}");
    assert!(waits[1] >= 3 * SECOND && waits[1] <= 15 * SECOND, "{waits:?}");
}

#[tokio::test(start_paused = true)]
async fn what_never_fits_is_sent_once() {
    let once: [Answer; 7] = [
        answer(429, None),
        answer(503, None),
        answer(400, Some(1)),
        answer(413, None),
        answer(500, Some(1)),
        answer(200, Some(1)),
        Err("the connection broke"),
    ];
    for only in once {
        let expected = format!("{only:?}");
        let (moments, last) = calls(Patience::default(), &[only]).await;
        assert_eq!((moments, format!("{last:?}")), (vec![Duration::ZERO], expected));
    }
}

#[tokio::test(start_paused = true)]
async fn gives_back_the_last_refusal_when_the_attempts_are_used_up() {
    for attempts in 0..6 {
        let (moments, last) = calls(Patience::new(attempts, 10_000 * SECOND), &[answer(429, Some(1))]).await;
        assert_eq!(moments.len(), attempts.max(1) as usize);
        assert_eq!(last.unwrap().status(), StatusCode::TOO_MANY_REQUESTS);
    }
}

#[tokio::test(start_paused = true)]
async fn gives_up_at_once_where_the_next_wait_would_go_beyond_the_total() {
    let start = Instant::now();
    let (moments, _) = calls(Patience::new(9, 10 * SECOND), &[answer(429, Some(11))]).await;
    assert_eq!((moments.len(), start.elapsed()), (1, Duration::ZERO));
    let (moments, _) = calls(Patience::new(u32::MAX, 60 * SECOND), &[answer(503, Some(1))]).await;
    assert!(moments.len() > 2 && *moments.last().unwrap() <= 60 * SECOND, "{moments:?}");
    let (moments, _) =
        calls(Patience::new(9, 1_000_000_000 * SECOND), &[answer(429, Some(u64::MAX)), answer(200, None)]).await;
    assert_eq!(moments.len(), 1, "that is for ever");
}

#[tokio::test(start_paused = true)]
async fn the_time_that_attempts_take_counts() {
    let patience = Patience::new(9, 10 * SECOND);
    let mut made = 0;
    let slow = || {
        made += 1;
        async {
            sleep(9 * SECOND).await;
            answer(429, Some(2))
        }
    };
    let last = patience.retry(slow, asked).await;
    assert_eq!((made, last.unwrap().status().as_u16()), (1, 429));
}

#[tokio::test(start_paused = true)]
async fn a_policy_counts_for_each_request_on_its_own() {
    let seen = Arc::new(Mutex::new(Vec::new()));
    let record = Arc::clone(&seen);
    let service = service_fn(move |request: Request<u32>| {
        record.lock().unwrap().push(*request.body());
        std::future::ready(answer(429, Some(1)))
    });
    let policy = RetryPolicy::http(Patience::new(3, 8 * SECOND));
    let retry = ServiceBuilder::new().layer(RetryLayer::new(policy)).service(service);
    for caller in 0..5 {
        retry.clone().oneshot(Request::new(caller)).await.unwrap();
        // Far beyond the total, which is each request's own.
        sleep(100 * SECOND).await;
    }
    let seen = seen.lock().unwrap();
    assert!((0..5).all(|caller| seen.iter().filter(|one| **one == caller).count() >= 2), "{seen:?}");
}

#[tokio::test(start_paused = true)]
async fn what_cannot_be_copied_is_sent_once() {
    let made = RefCell::new(0);
    let policy = RetryPolicy::new(Patience::default(), |_: &Request<()>| None, asked);
    let service = service_fn(|_| {
        *made.borrow_mut() += 1;
        std::future::ready(answer(429, Some(1)))
    });
    let retry = ServiceBuilder::new().layer(RetryLayer::new(policy)).service(service);
    assert_eq!(retry.oneshot(Request::new(())).await.unwrap().status(), 429);
    assert_eq!(made.into_inner(), 1);
}

#[test]
fn jitter_only_adds_and_its_window_doubles() {
    for seed in 0..1_000 {
        fastrand::seed(seed);
        for (made, asked) in
            [(1, 0), (1, 40), (1, 100), (1, 2_500), (2, 1_000), (3, 1_000), (31, 1), (32, 1), (u32::MAX, 1)]
        {
            let asked = Duration::from_millis(asked);
            let wait = Patience::new(u32::MAX, Duration::MAX).wait(made, Duration::ZERO, asked);
            let Some(wait) = wait else {
                assert_eq!(made, u32::MAX);
                continue;
            };
            let window = asked.max(Duration::from_millis(100)).saturating_mul(2_u32.saturating_pow(made));
            assert!(wait >= asked && wait <= asked + window, "{wait:?} after {made}, asked for {asked:?}");
        }
    }
}

/// Two hundred callers of one bucket of twenty tokens, which gains a hundred a second and owes ninety; the moments of each
/// caller's attempts.
async fn crowd(patience: Option<Patience>) -> Vec<Vec<Duration>> {
    let quota = Quota { capacity: Amount::parse(b"20").unwrap(), rate: Rate::parse(b"100").unwrap() };
    let start = Instant::now();
    let micros = move || Micros::new(u64::try_from(start.elapsed().as_micros()).unwrap());
    let full = Bucket::full(&quota, micros());
    let empty = full.debit(&quota, Amount::parse(b"110").unwrap(), micros()).unwrap().0;
    let bucket = Rc::new(RefCell::new(empty));
    let callers = tokio::task::LocalSet::new();
    let callers = callers.run_until(async move {
        let callers: Vec<_> = (0..200)
            .map(|_| {
                let bucket = Rc::clone(&bucket);
                tokio::task::spawn_local(async move {
                    let mut moments = Vec::new();
                    let call = || {
                        moments.push(start.elapsed());
                        let (after, decision) = bucket.borrow().take(&quota, Amount::ONE, micros());
                        if let Some(after) = after {
                            *bucket.borrow_mut() = after;
                        }
                        std::future::ready(if decision.allowed { answer(200, None) } else { answer(429, Some(1)) })
                    };
                    let _ = match patience {
                        Some(patience) => patience.retry(call, asked).await,
                        None => to_the_letter(call).await,
                    };
                    moments
                })
            })
            .collect();
        let mut moments = Vec::new();
        for caller in callers {
            moments.push(caller.await.unwrap());
        }
        moments
    });
    callers.await
}

/// What a caller does who has read `Retry-After` and thinks of nobody else.
async fn to_the_letter(mut call: impl FnMut() -> std::future::Ready<Answer>) -> Answer {
    loop {
        let answer = call().await;
        match asked(&answer) {
            None => return answer,
            Some(delay) => sleep(delay).await,
        }
    }
}

/// The most second attempts in any tenth of a second.
fn fullest(crowd: &[Vec<Duration>]) -> usize {
    let mut seconds: Vec<_> = crowd.iter().map(|moments| moments[1]).collect();
    seconds.sort();
    let within = |from: Duration| move |moment: &&Duration| **moment >= from && **moment < from + SECOND / 10;
    seconds.iter().map(|from| seconds.iter().filter(within(*from)).count()).max().unwrap()
}

#[tokio::test(start_paused = true)]
async fn two_hundred_refused_at_once_do_not_come_back_at_once() {
    let naive = crowd(None).await;
    assert_eq!(fullest(&naive), 200, "they all come back at the second");
    let naive_calls: usize = naive.iter().map(Vec::len).sum();
    for seed in 0..50 {
        fastrand::seed(seed);
        let crowd = crowd(Some(Patience::default())).await;
        assert!(crowd.iter().all(|moments| moments[1] >= SECOND && moments[1] <= 3 * SECOND), "seed {seed}");
        assert!(fullest(&crowd) <= 30, "{} of 200, seed {seed}", fullest(&crowd));
        let calls: usize = crowd.iter().map(Vec::len).sum();
        assert!(calls < naive_calls / 2, "{calls} and {naive_calls} calls, seed {seed}");
    }
}
