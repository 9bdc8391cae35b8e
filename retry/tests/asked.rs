//! What is read out of an answer, and what is not.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

use std::time::{Duration, SystemTime};

use http::header::{DATE, RETRY_AFTER};
use http::{HeaderMap, StatusCode};
use redis_token_bucket_retry::{retry_after, retry_info};
use tonic::{Code, Status};
use tonic_types::{ErrorDetails, StatusExt};

const SECOND: Duration = Duration::from_secs(1);

fn asked(retry_after_values: &[&[u8]]) -> Option<Duration> {
    let mut headers = HeaderMap::new();
    headers.insert(DATE, "Sun, 06 Nov 1994 08:49:37 GMT".parse().unwrap());
    for value in retry_after_values {
        headers.append(RETRY_AFTER, http::HeaderValue::from_bytes(value).unwrap());
    }
    retry_after(StatusCode::TOO_MANY_REQUESTS, &headers)
}

#[test]
fn seconds_are_read() {
    for (text, seconds) in [("0", 0), ("1", 1), ("007", 7), ("86400", 86_400), ("99999999999999999999999", u64::MAX)] {
        assert_eq!(asked(&[text.as_bytes()]), Some(Duration::from_secs(seconds)), "{text}");
    }
}

#[test]
fn dates_in_all_three_forms_are_taken_against_the_date_of_the_response() {
    for text in ["Sun, 06 Nov 1994 08:49:47 GMT", "Sunday, 06-Nov-94 08:49:47 GMT", "Sun Nov  6 08:49:47 1994"] {
        assert_eq!(asked(&[text.as_bytes()]), Some(10 * SECOND), "{text}");
    }
    assert_eq!(asked(&[b"Sun, 06 Nov 1994 08:49:36 GMT"]), Some(Duration::ZERO), "past");
}

#[test]
fn a_date_is_taken_against_the_clock_where_the_response_has_none() {
    let mut headers = HeaderMap::new();
    let date = httpdate::fmt_http_date(SystemTime::now() + 100 * SECOND);
    headers.insert(RETRY_AFTER, date.parse().unwrap());
    let asked = retry_after(StatusCode::SERVICE_UNAVAILABLE, &headers).unwrap();
    assert!(asked <= 100 * SECOND && asked > 60 * SECOND, "{asked:?}");
}

#[test]
fn nonsense_is_as_if_it_were_not_there() {
    let nonsense: [&[u8]; 9] = [b"", b" ", b"-1", b"+1", b"1.5", b"1 s", b"soon", b"0x10", b"\xff"];
    for text in nonsense {
        assert_eq!(asked(&[text]), None, "{text:?}");
        assert_eq!(asked(&[text, b"3"]), Some(3 * SECOND), "{text:?} and a number");
    }
    assert_eq!(asked(&[]), None);
}

#[test]
fn of_several_the_latest_counts() {
    assert_eq!(asked(&[b"2", b"Sun, 06 Nov 1994 08:49:47 GMT", b"3"]), Some(10 * SECOND));
}

#[test]
fn only_what_refuses_for_now_is_asked_again() {
    let headers: HeaderMap = [(RETRY_AFTER, 2.into())].into_iter().collect();
    for code in 100..600 {
        let expected = (code == 429 || code == 503).then_some(2 * SECOND);
        assert_eq!(retry_after(StatusCode::from_u16(code).unwrap(), &headers), expected, "{code}");
    }
}

/// As it comes from the other end.
fn sent(status: &Status) -> Status {
    let mut headers = HeaderMap::new();
    status.add_header(&mut headers).unwrap();
    Status::from_header_map(&headers).unwrap()
}

#[test]
fn retry_info_counts_with_the_two_codes_that_refuse_for_now() {
    let delay = Duration::from_millis(1_234);
    for code in 1..=16 {
        let code = Code::from_i32(code);
        let expected = matches!(code, Code::ResourceExhausted | Code::Unavailable).then_some(delay);
        let details = ErrorDetails::with_retry_info(Some(delay));
        assert_eq!(retry_info(&sent(&Status::with_error_details(code, "refused", details))), expected, "{code:?}");
        let details = ErrorDetails::with_retry_info(None);
        assert_eq!(retry_info(&sent(&Status::with_error_details(code, "refused", details))), None, "{code:?}");
        assert_eq!(retry_info(&sent(&Status::new(code, "refused"))), None, "{code:?}");
    }
}

#[test]
fn details_that_are_none_ask_for_nothing() {
    let status = Status::with_details(Code::ResourceExhausted, "refused", vec![0xff; 9].into());
    assert_eq!(retry_info(&sent(&status)), None);
}
