//! The key of a tenant's bucket: `rl:{tenant}:class`, for any bytes.

use std::fmt::{self, Write as _};

use redis::{RedisWrite, ToRedisArgs, ToSingleRedisArg};

/// The key of the bucket of a tenant for a class of calls: `rl:{tenant}:class`.
///
/// The tenant is the key's hash tag, so all buckets of a tenant lie in one cluster slot and can be taken from together.
///
/// # Encoding
/// In the tenant and in the class, each byte `%`, `{` or `}` is written as `%` and its two hexadecimal digits in upper
/// case, every other byte as it is; an empty tenant is written as a lone `%`. So
///
/// - two different pairs of tenant and class never share a key: the first `}` ends the tenant, whatever it holds;
/// - the slot is that of the whole encoded tenant, which no tenant can cut short by holding a brace, or avoid by being
///   empty.
///
/// ```
/// use redis_token_bucket_client::Key;
///
/// assert_eq!(Key::new("acme", "api").as_bytes(), b"rl:{acme}:api");
/// assert_eq!(Key::new("a}:api", "b{c").as_bytes(), b"rl:{a%7D:api}:b%7Bc");
/// assert_eq!(Key::new("", "api").as_bytes(), b"rl:{%}:api");
/// ```
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Key(Box<[u8]>);

impl Key {
    /// The key of `tenant` and `class`, text or any other bytes.
    #[must_use]
    pub fn new(tenant: impl AsRef<[u8]>, class: impl AsRef<[u8]>) -> Self {
        let (tenant, class) = (tenant.as_ref(), class.as_ref());
        let mut key = Vec::with_capacity(tenant.len().saturating_add(class.len()).saturating_add(8));
        key.extend(b"rl:{");
        if tenant.is_empty() {
            key.push(b'%');
        }
        encode(tenant, &mut key);
        key.extend(b"}:");
        encode(class, &mut key);
        Self(key.into())
    }

    /// The key as sent.
    #[must_use]
    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }
}

fn encode(bytes: &[u8], out: &mut Vec<u8>) {
    for byte in bytes {
        match byte {
            b'%' => out.extend(b"%25"),
            b'{' => out.extend(b"%7B"),
            b'}' => out.extend(b"%7D"),
            _ => out.push(*byte),
        }
    }
}

impl AsRef<[u8]> for Key {
    fn as_ref(&self) -> &[u8] {
        &self.0
    }
}

impl fmt::Display for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.escape_ascii().try_for_each(|byte| f.write_char(char::from(byte)))
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Key({self})")
    }
}

impl ToRedisArgs for Key {
    fn write_redis_args<W: ?Sized + RedisWrite>(&self, out: &mut W) {
        out.write_arg(&self.0);
    }
}

impl ToSingleRedisArg for Key {}
