//! What somebody with a password may not do: reach a key that his call does not name, or that his rules do not cover,
//! or end the server.

use std::collections::BTreeMap;

use crate::random::Random;
use crate::short_or_long;
use crate::support::{Client, Reply, Server};

type Call = Vec<Vec<u8>>;

/// Everything that can be seen of every key in the first two databases, but for keys that begin so.
fn all_but(client: &mut Client, prefix: &str) -> BTreeMap<(u8, Vec<u8>), (Reply, i64)> {
    let mut found = BTreeMap::new();
    for database in [1, 0] {
        client.ok(&format!("SELECT {database}"));
        for key in
            client.ask("KEYS *").items().iter().map(Reply::bytes).filter(|key| !key.starts_with(prefix.as_bytes()))
        {
            let (dump, expiry) = (client.call(&[b"DUMP", key]), client.call(&[b"PEXPIRETIME", key]).int());
            found.insert((database, key.to_vec()), (dump, expiry));
        }
    }
    found
}

/// Keys of all kinds that nobody is to touch, with names that look like numbers and commands too.
fn bystanders(client: &mut Client) {
    for database in [1, 0] {
        client.ok(&format!("SELECT {database}"));
        for key in ["other:a", "other:b", "10", "1", "0.5", "1/60", "SET", "KEEPTTL", "PXAT", "mine", "{mine:}"] {
            assert!(!client.ask(&format!("TB.TAKE {key} 10 1/3600 3")).is_error());
        }
        client.ok("SET other:text 10");
        client.ok("SET mine;x 10");
        client.int("RPUSH other:list a b");
        client.int("HSET other:hash field value");
        client.take("other:kept 10 1/3600");
        client.int("PERSIST other:kept");
    }
}

/// A call of the family whose keys begin with `mine:`, unless they are to be strangers; numbers may be anything.
fn family_call(random: &mut Random, key: &mut dyn FnMut(&mut Random) -> Vec<u8>) -> Call {
    const NUMBERS: [&[u8]; 14] = [
        b"10", b"1", b"0.5", b"1/60", b"3", b"0", b"1e15", b"100", b"other:a", b"", b"\xff\0", b"-1", b"SET", b"1e999",
    ];
    let number = |random: &mut Random| {
        let sound = if random.once_in(5) { NUMBERS.len() } else { 8 };
        NUMBERS[random.below(sound as u64) as usize].to_vec()
    };
    let (name, groups, numbers) = match random.below(7) {
        0 => ("TB.TAKE", 1, 3),
        1 => ("TB.PEEK", 1, 3),
        2 => ("TB.MTAKE", 1 + random.below(4), 3),
        3 => ("TB.LEASE", 1, 3 + random.below(2)),
        4 => ("TB.REFUND", 1, 3),
        5 => ("TB.DEBIT", 1, 3),
        _ => ("TB.STATE", 1, 0),
    };
    let mut call = vec![name.as_bytes().to_vec()];
    for _ in 0..groups {
        call.push(key(random));
        call.extend((0..numbers).map(|_| number(random)));
    }
    call
}

fn keys_of(call: &Call) -> Vec<&[u8]> {
    let step = if call[0] == b"TB.MTAKE" { 4 } else { usize::MAX };
    call.iter().skip(1).step_by(step).map(Vec::as_slice).collect()
}

#[test]
fn no_call_reaches_a_key_that_it_does_not_name() {
    let (server, clock) = Server::frozen();
    let (mut client, mut random) = (server.client(), Random::new(17));
    bystanders(&mut client);
    let before = all_but(&mut client, "mine:");
    let mut mine = |random: &mut Random| format!("mine:{}", random.below(8)).into_bytes();
    for round in 0..short_or_long(40, 1000) {
        // A part of the rounds at the memory limit, where the module asks the server whether it may create a key.
        client.ok(if round % 4 == 3 { "CONFIG SET maxmemory 1" } else { "CONFIG SET maxmemory 0" });
        let batch: Vec<Call> = (0..200).map(|_| family_call(&mut random, &mut mine)).collect();
        client.pipeline(&batch);
        clock.advance_ms(250);
        let keys: Vec<Call> =
            batch.iter().map(|call| [vec![b"COMMAND".to_vec(), b"GETKEYS".to_vec()], call.clone()].concat()).collect();
        for (call, keys) in batch.iter().zip(client.pipeline(&keys)) {
            let told: Vec<&[u8]> = keys.items().iter().map(Reply::bytes).collect();
            assert_eq!(told, keys_of(call), "the server is told other keys than {call:?} has");
        }
    }
    assert_eq!(all_but(&mut client, "mine:"), before);
}

#[test]
fn a_user_kept_to_a_pattern_changes_nothing_outside_of_it_whatever_he_sends() {
    let (server, _clock) = Server::frozen();
    let (mut admin, mut random) = (server.client(), Random::new(19));
    bystanders(&mut admin);
    let family = "+tb.take +tb.peek +tb.mtake +tb.lease +tb.refund +tb.debit +tb.state";
    admin.ok(&format!("ACL SETUSER limited reset on >secret ~mine:* {family} +eval +multi +exec"));
    let mut user = server.client();
    user.ok("AUTH limited secret");
    let before = all_but(&mut admin, "mine:");
    let names =
        ["mine:1", "mine:2", "mine:3", "other:a", "mine", "10", "mine;x", "other:text", "other:list", "", "fresh"];
    let mut any = |random: &mut Random| random.pick(&names).as_bytes().to_vec();
    let (mut refused, mut allowed) = (0, 0);
    for _ in 0..short_or_long(40, 1000) {
        let batch: Vec<Call> = (0..200).map(|_| family_call(&mut random, &mut any)).collect();
        for (call, reply) in batch.iter().zip(user.pipeline(&batch)) {
            let inside = keys_of(call).iter().all(|key| key.starts_with(b"mine:"));
            let no_permission = matches!(&reply, Reply::Error(text) if text.starts_with(b"NOPERM "));
            assert_eq!(no_permission, !inside, "{call:?}: {reply:?}");
            *(if inside { &mut allowed } else { &mut refused }) += 1;
        }
        // Scripts get no further.
        let call = family_call(&mut random, &mut any);
        let inside = keys_of(&call).iter().all(|key| key.starts_with(b"mine:"));
        let script = [b"EVAL".to_vec(), b"return redis.pcall(unpack(ARGV))".to_vec(), b"0".to_vec()];
        let reply = user.call(&[&script[..], &call[..]].concat());
        assert!(inside || reply.is_error(), "{call:?}: {reply:?}");
        assert!(user.ask("GET mine:1").is_error() && user.ask("SET mine:1 x").is_error());
    }
    assert_eq!(all_but(&mut admin, "mine:"), before);
    assert!(refused > 1000 && allowed > 1000);
}

#[test]
fn no_shape_of_a_call_ends_the_server() {
    let server = Server::setup().config("proto-max-bulk-len", "64mb").start();
    let mut client = server.client();
    let pid = client.info("process_id");
    let words =
        |count: usize, word: &str| -> Call { (0..count).map(|at| format!("{word}{at}").into_bytes()).collect() };
    let named = |name: &str, rest: Call| -> Call { [vec![name.as_bytes().to_vec()], rest].concat() };
    let family = ["TB.TAKE", "TB.PEEK", "TB.MTAKE", "TB.LEASE", "TB.REFUND", "TB.DEBIT", "TB.STATE"];
    for name in family {
        assert!(client.call(&named(name, words(100_000, "x"))).is_error(), "{name} with 100,000 words");
        let mut long = vec![b"k".to_vec(), vec![b'9'; 32 << 20], b"1".to_vec(), b"1".to_vec()];
        assert!(client.call(&named(name, long.clone())).is_error(), "{name} with a number of 32 MiB");
        long.swap(0, 1);
        client.call(&named(name, long));
        for count in 0..12 {
            client.call(&named(name, words(count, "")));
            client.call(&named(name, vec![Vec::new(); count]));
        }
    }
    let groups = |count: usize| -> Call {
        let group = |at: usize| [format!("many{at}"), "10".into(), "1".into(), "1".into()].map(String::into_bytes);
        (0..count).flat_map(group).collect()
    };
    let reply = client.call(&named("TB.MTAKE", groups(20_000)));
    assert_eq!((reply.items()[0].int(), reply.items()[3].items().len()), (1, 20_000));
    let mut twice = groups(20_000);
    twice[79_996] = b"many0".to_vec();
    assert!(client.call(&named("TB.MTAKE", twice)).error().starts_with("ERR the same key"));
    client.ok("MULTI");
    for _ in 0..5000 {
        client.ask("TB.TAKE k 10 1");
    }
    assert_eq!(client.ask("EXEC").items().len(), 5000);
    let script = "for i = 1, 20000 do redis.pcall('TB.TAKE', 'k' .. i % 50, i, '1/' .. i, i % 7) end return 1";
    assert_eq!(client.call(&["EVAL", script, "0"]).int(), 1);
    for state in
        ["HELLO 3", "CLIENT TRACKING ON BCAST", "CLIENT NO-EVICT ON", "CLIENT REPLY ON", "RESET", "SUBSCRIBE x"]
    {
        let mut other = server.client();
        other.ask(state);
        for name in family {
            other.call(&named(name, groups(1)));
        }
    }
    for question in ["COMMAND GETKEYS", "COMMAND GETKEYSANDFLAGS", "COMMAND DOCS", "COMMAND INFO"] {
        for name in family {
            for count in [0, 1, 3, 4, 5, 8] {
                client.ask(format!("{question} {name} {}", "x ".repeat(count)).trim_end());
            }
        }
    }
    for name in family {
        // Somebody who is ended while his calls are under way.
        let mut other = server.client();
        let id = other.int("CLIENT ID");
        let batch: Vec<Call> = (0..200).map(|_| named(name, groups(1))).collect();
        batch.iter().for_each(|call| other.send(call));
        assert_eq!(client.ask(&format!("CLIENT KILL ID {id}")).int(), 1);
    }
    assert_eq!(client.info("process_id"), pid);
    assert!(!server.log().contains("BUG REPORT"), "{}", server.log());
    assert_eq!(client.take("after-all 10 1"), [1, 9, 0]);
}
