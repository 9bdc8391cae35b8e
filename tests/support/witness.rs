//! What a call that must change nothing is held against: one key and every trace that a write leaves in a server.

use super::{Client, Reply};

/// Two of these are equal when nothing was written between them.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct Witness {
    value: Reply,
    expires_at_ms: i64,
    keys: i64,
    dirty: i64,
    replication_offset: i64,
    aof_bytes: String,
}

impl Witness {
    /// Looks at `key` and at the server.
    pub(crate) fn of(client: &mut Client, key: &[u8]) -> Witness {
        Witness {
            value: client.call(&[b"DUMP", key]),
            expires_at_ms: client.call(&[b"PEXPIRETIME", key]).int(),
            keys: client.int("DBSIZE"),
            dirty: client.info_int("rdb_changes_since_last_save"),
            replication_offset: client.info_int("master_repl_offset"),
            aof_bytes: client.info("aof_current_size"),
        }
    }
}
