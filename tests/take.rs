//! `TB.TAKE` as a caller sees it: what it grants, what it refuses, and its three integers. Topics that need more than a
//! caller and a clock have files of their own.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

mod support;

use support::{NEVER, on_a_frozen_clock};

#[test]
fn counts_down_from_a_full_bucket_and_then_refuses() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 3 1 1"), [1, 2, 0]);
    assert_eq!(client.take("k 3 1 1"), [1, 1, 0]);
    assert_eq!(client.take("k 3 1 1"), [1, 0, 0]);
    assert_eq!(client.take("k 3 1 1"), [0, 0, 1000]);
}

#[test]
fn a_call_without_a_cost_takes_one() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1"), [1, 9, 0]);
    assert_eq!(client.take("k 10 1 1"), [1, 8, 0]);
}

#[test]
fn the_name_is_known_in_any_case() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.ask("tb.take k 10 1").ints(), [1, 9, 0]);
    assert_eq!(client.ask("Tb.Take k 10 1").ints(), [1, 8, 0]);
}

#[test]
fn refills_with_the_servers_clock_and_never_above_capacity() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 2 10"), [1, 0, 0]);
    clock.advance_s(3);
    assert_eq!(client.take("k 10 2 0"), [1, 6, 0]);
    clock.advance_s(1000);
    assert_eq!(client.take("k 10 2 1"), [1, 9, 0]);
}

#[test]
fn refills_by_the_microsecond() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 5 1000000 5"), [1, 0, 0]);
    for _ in 0..10 {
        clock.advance(1);
        assert_eq!(client.take("k 5 1000000 1"), [1, 0, 0]);
        assert_eq!(client.take("k 5 1000000 1"), [0, 0, 1]);
    }
}

#[test]
fn a_rate_may_be_tokens_over_seconds() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 100 100/60 100"), [1, 0, 0]);
    clock.advance(600_000 - 1);
    assert_eq!(client.take("k 100 100/60"), [0, 0, 1]);
    clock.advance(1);
    assert_eq!(client.take("k 100 100/60"), [1, 0, 0]);
    clock.advance_s(60);
    assert_eq!(client.take("k 100 100/60 0"), [1, 100, 0]);
}

#[test]
fn one_a_day_is_granted_a_day_later_and_not_sooner() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 1 1/86400"), [1, 0, 0]);
    clock.advance_s(1);
    assert_eq!(client.take("k 1 1/86400"), [0, 0, 86_399_000]);
    clock.advance_s(86_399);
    assert_eq!(client.take("k 1 1/86400"), [1, 0, 0]);
}

#[test]
fn three_tenths_are_exactly_three_times_a_tenth() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    for _ in 0..3 {
        assert_eq!(client.take("k 0.3 0 0.1")[0], 1);
    }
    assert_eq!(client.take("k 0.3 0 0.1"), [0, 0, NEVER]);
}

#[test]
fn remaining_is_whole_tokens_rounded_down() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 2.5 0 0.6"), [1, 1, 0]);
    assert_eq!(client.take("k 2.5 0 0.9"), [1, 1, 0]);
    assert_eq!(client.take("k 2.5 0 0.000000001"), [1, 0, 0]);
}

#[test]
fn a_refusal_consumes_nothing_and_the_part_grown_token_survives_it() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 2 1 2"), [1, 0, 0]);
    for waited_ms in (0..1000).step_by(50) {
        assert_eq!(client.take("k 2 1"), [0, 0, 1000 - waited_ms]);
        clock.advance_ms(50);
    }
    assert_eq!(client.take("k 2 1"), [1, 0, 0]);
}

#[test]
fn a_cost_above_capacity_is_never_granted_and_leaves_the_tokens_to_others() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 5 1 50"), [0, 5, NEVER]);
    assert_eq!(client.take("k 5 1 3"), [1, 2, 0]);
    assert_eq!(client.take("k 5 1 5.000000001"), [0, 2, NEVER]);
    assert_eq!(client.take("k 5 1 2"), [1, 0, 0]);
}

#[test]
fn a_capacity_of_nothing_denies_every_cost() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for rate in ["0", "1", "1000000"] {
        assert_eq!(client.take(&format!("k 0 {rate}")), [0, 0, NEVER]);
        assert_eq!(client.take(&format!("k 0 {rate} 0.5")), [0, 0, NEVER]);
        assert_eq!(client.take(&format!("k 0 {rate} 0")), [1, 0, 0]);
        clock.advance_s(10);
    }
    assert_eq!(client.int("EXISTS k"), 0);
}

#[test]
fn a_rate_of_nothing_grants_the_capacity_once() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    for left in (0..5).rev() {
        assert_eq!(client.take("k 5 0"), [1, left, 0]);
    }
    clock.advance_s(1_000_000_000);
    assert_eq!(client.take("k 5 0"), [0, 0, NEVER]);
    assert_eq!(client.take("k 5 0/60"), [0, 0, NEVER]);
}

#[test]
fn a_cost_of_nothing_is_allowed_in_an_empty_bucket_and_shows_what_is_left() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 2 1 0"), [1, 2, 0]);
    assert_eq!(client.int("EXISTS k"), 0);
    assert_eq!(client.take("k 2 1 2"), [1, 0, 0]);
    assert_eq!(client.take("k 2 1 0"), [1, 0, 0]);
    clock.advance_s(1);
    assert_eq!(client.take("k 2 1 0"), [1, 1, 0]);
}

#[test]
fn a_lower_capacity_clamps_from_the_call_that_brings_it() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 100 1 10"), [1, 90, 0]);
    assert_eq!(client.take("k 5 1 1"), [1, 4, 0]);
    assert_eq!(client.take("k 100 1 0"), [1, 4, 0]);
}

#[test]
fn a_refused_call_with_a_lower_capacity_clamps_nothing() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 100 1 10"), [1, 90, 0]);
    assert_eq!(client.take("k 5 1 6"), [0, 5, NEVER]);
    assert_eq!(client.take("k 100 1 1"), [1, 89, 0]);
}

#[test]
fn a_higher_capacity_adds_nothing_at_once() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 10 1 7"), [1, 3, 0]);
    assert_eq!(client.take("k 100 1 0"), [1, 3, 0]);
    clock.advance_s(4);
    assert_eq!(client.take("k 100 1 0"), [1, 7, 0]);
}

#[test]
fn a_higher_rate_never_denies_what_was_allowed() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    for _ in 0..4 {
        assert_eq!(client.take("k 16 0.5")[0], 1);
    }
    assert_eq!(client.take("k 16 50"), [1, 11, 0]);
    assert_eq!(client.take("k 16 1e12"), [1, 10, 0]);
}

#[test]
fn a_rate_above_the_capacity_still_limits_the_burst() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 1 3"), [1, 0, 0]);
    assert_eq!(client.take("k 1 3"), [0, 0, 334]);
    clock.advance_s(60);
    assert_eq!(client.take("k 1 3"), [1, 0, 0]);
    assert_eq!(client.take("k 1 3"), [0, 0, 334]);
}

#[test]
fn counts_whole_tokens_up_to_the_largest_capacity() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 1e15 1"), [1, 999_999_999_999_999, 0]);
    assert_eq!(client.take("k 1e15 1 0.000000001"), [1, 999_999_999_999_998, 0]);
    assert_eq!(client.take("k 1000000000000000 1 999999999999998"), [1, 0, 0]);
    assert_eq!(client.take("k 1e15 1 1"), [0, 0, 1]);
}

#[test]
fn a_wait_too_long_for_the_reply_is_the_largest_that_fits() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 1e15 1e-18 1e15"), [1, 0, 0]);
    assert_eq!(client.take("k 1e15 1e-18 1e15"), [0, 0, i64::MAX]);
}

#[test]
fn the_fastest_rate_refills_the_largest_bucket_in_a_thousand_seconds() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 1e15 1e12 1e15"), [1, 0, 0]);
    assert_eq!(client.take("k 1e15 1e12 1e15"), [0, 0, 1_000_000]);
    clock.advance(1);
    assert_eq!(client.take("k 1e15 1e12 0"), [1, 1_000_000, 0]);
    clock.advance_s(1000);
    assert_eq!(client.take("k 1e15 1e12 1e15"), [1, 0, 0]);
}

#[test]
fn every_key_and_every_database_has_its_own_bucket() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("a 2 1 2"), [1, 0, 0]);
    assert_eq!(client.take("b 2 1 2"), [1, 0, 0]);
    client.ok("SELECT 1");
    assert_eq!(client.take("a 2 1 2"), [1, 0, 0]);
    client.ok("SELECT 0");
    assert_eq!(client.take("a 2 1 2"), [0, 0, 2000]);
}

#[test]
fn a_deleted_bucket_is_a_full_one() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    assert_eq!(client.take("k 2 1 2"), [1, 0, 0]);
    assert_eq!(client.int("DEL k"), 1);
    assert_eq!(client.take("k 2 1 2"), [1, 0, 0]);
}

#[test]
fn a_bucket_is_a_plain_string_of_twenty_four_bytes() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    client.take("k 10 1");
    assert_eq!(client.ask("TYPE k").text(), "string");
    assert_eq!(client.int("STRLEN k"), 24);
    client.take("k 10 1");
    assert_eq!(client.int("STRLEN k"), 24);
}

#[test]
fn a_pipeline_of_takes_is_answered_in_order() {
    let (_server, _clock, mut client) = on_a_frozen_clock();
    let takes: Vec<Vec<&str>> = (0..1000).map(|_| vec!["TB.TAKE", "k", "600", "1"]).collect();
    let replies = client.pipeline(&takes);
    for (left, reply) in (0..600).rev().zip(&replies) {
        assert_eq!(reply.ints(), [1, left, 0]);
    }
    assert!(replies[600..].iter().all(|reply| reply.ints() == [0, 0, 1000]));
}

#[test]
fn no_token_drifts_away_over_a_thousand_seconds_of_a_third_each() {
    let (_server, clock, mut client) = on_a_frozen_clock();
    let mut granted = client.take("k 10 1/3 10")[0] * 10;
    for _ in 0..1000 {
        clock.advance_s(1);
        granted += client.take("k 10 1/3")[0];
    }
    assert_eq!(granted, 10 + 333);
}
