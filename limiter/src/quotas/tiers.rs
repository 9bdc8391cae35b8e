//! Tiers: named sets of quotas, and who is in which. Values, and texts in three formats; files are read elsewhere.

use std::collections::BTreeMap;
use std::fmt;

use client::Quota;

/// What the tenants of each tier may do, a quota a class of calls; and, for services that keep it nowhere else, which tenant is
/// in which tier.
///
/// ```
/// # #[cfg(feature = "toml")] {
/// use redis_token_bucket_limiter::Tiers;
///
/// let tiers = Tiers::from_toml(r#"
///     unknown_tenant = "refuse"     # or: unknown_tenant = { tier = "free" }
///
///     [tiers.free]
///     api = "100/minute, burst 20"
///     export = "5/hour"
///
///     [tiers.pro]
///     api = "50/second, burst 100"
///     export = "100/hour"
///
///     [tenants]
///     acme = "pro"
/// "#)?;
/// # let _ = tiers;
/// # }
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
#[derive(Clone, Debug, PartialEq, Eq)]
#[cfg_attr(
    any(feature = "toml", feature = "yaml", feature = "json"),
    derive(serde::Deserialize),
    serde(try_from = "file::Tiers")
)]
pub struct Tiers {
    tiers: BTreeMap<String, BTreeMap<String, Quota>>,
    tenants: BTreeMap<String, String>,
    unknown_tenant: UnknownTenant,
}

/// What becomes of a tenant that nobody knows. It has to be said: nobody falls into a tier in silence.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
#[cfg_attr(
    any(feature = "toml", feature = "yaml", feature = "json"),
    derive(serde::Deserialize),
    serde(rename_all = "snake_case")
)]
pub enum UnknownTenant {
    /// It is turned away, as [`Denied::UnknownTenant`](crate::Denied::UnknownTenant).
    Refuse,
    /// It is in this tier.
    Tier(String),
}

impl Tiers {
    /// No tiers yet, and this for tenants that nobody knows.
    #[must_use]
    pub const fn new(unknown_tenant: UnknownTenant) -> Self {
        Self { tiers: BTreeMap::new(), tenants: BTreeMap::new(), unknown_tenant }
    }

    /// Adds a tier, or replaces it.
    #[must_use]
    pub fn tier<C: Into<String>>(
        mut self,
        name: impl Into<String>,
        quotas: impl IntoIterator<Item = (C, Quota)>,
    ) -> Self {
        self.tiers.insert(name.into(), quotas.into_iter().map(|(class, quota)| (class.into(), quota)).collect());
        self
    }

    /// Puts a tenant in a tier. A database that knows the tenant's tier has the last word.
    #[must_use]
    pub fn tenant(mut self, tenant: impl Into<String>, tier: impl Into<String>) -> Self {
        self.tenants.insert(tenant.into(), tier.into());
        self
    }

    /// Whether every tier that is named exists.
    ///
    /// # Errors
    /// The first one that does not.
    pub fn check(&self) -> Result<(), TiersError> {
        let unknown = match &self.unknown_tenant {
            UnknownTenant::Tier(tier) => Some(tier),
            UnknownTenant::Refuse => None,
        };
        match self.tenants.values().chain(unknown).find(|tier| !self.tiers.contains_key(*tier)) {
            Some(tier) => Err(TiersError(format!("there is no tier {tier:?}"))),
            None => Ok(()),
        }
    }

    /// Reads TOML.
    ///
    /// # Errors
    /// What is wrong, and where.
    #[cfg(feature = "toml")]
    pub fn from_toml(text: &str) -> Result<Self, TiersError> {
        toml::from_str(text).map_err(|error| TiersError(error.to_string()))
    }

    /// Reads YAML.
    ///
    /// # Errors
    /// What is wrong, and where.
    #[cfg(feature = "yaml")]
    pub fn from_yaml(text: &str) -> Result<Self, TiersError> {
        serde_saphyr::from_str(text).map_err(|error| TiersError(error.to_string()))
    }

    /// Reads JSON.
    ///
    /// # Errors
    /// What is wrong, and where.
    #[cfg(feature = "json")]
    pub fn from_json(text: &str) -> Result<Self, TiersError> {
        serde_json::from_str(text).map_err(|error| TiersError(error.to_string()))
    }

    /// The tier of a tenant of which a database knows nothing.
    pub(crate) fn tier_of(&self, tenant: &str) -> Option<&str> {
        let unknown = match &self.unknown_tenant {
            UnknownTenant::Tier(tier) => Some(tier),
            UnknownTenant::Refuse => None,
        };
        self.tenants.get(tenant).or(unknown).map(String::as_str)
    }

    /// The quotas of a tier.
    pub(crate) fn quotas(&self, tier: &str) -> Option<&BTreeMap<String, Quota>> {
        self.tiers.get(tier)
    }
}

/// Why a text or a file holds no tiers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TiersError(pub(crate) String);

impl fmt::Display for TiersError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for TiersError {}

#[cfg(any(feature = "toml", feature = "yaml", feature = "json"))]
mod file {
    //! Tiers as written, before the names in them are looked up.

    use std::collections::BTreeMap;
    use std::fmt;
    use std::marker::PhantomData;

    use client::Quota;
    use serde::de::{Deserialize, Deserializer, Error, MapAccess, Visitor};

    use super::{TiersError, UnknownTenant};

    #[derive(serde::Deserialize)]
    #[serde(deny_unknown_fields)]
    pub(super) struct Tiers {
        unknown_tenant: UnknownTenant,
        tiers: Named<Named<Quota>>,
        #[serde(default)]
        tenants: Named<String>,
    }

    /// A map in which no name stands twice. JSON would let the last one win, in silence.
    struct Named<V>(BTreeMap<String, V>);

    impl<V> Default for Named<V> {
        fn default() -> Self {
            Self(BTreeMap::new())
        }
    }

    impl<'de, V: Deserialize<'de>> Deserialize<'de> for Named<V> {
        fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
            struct Names<V>(PhantomData<V>);

            impl<'de, V: Deserialize<'de>> Visitor<'de> for Names<V> {
                type Value = Named<V>;

                fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                    f.write_str("a map of names")
                }

                fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Named<V>, A::Error> {
                    let mut named = BTreeMap::new();
                    while let Some(name) = map.next_key::<String>()? {
                        if named.contains_key(&name) {
                            return Err(A::Error::custom(format_args!("{name:?} stands here twice")));
                        }
                        named.insert(name, map.next_value()?);
                    }
                    Ok(Named(named))
                }
            }

            deserializer.deserialize_map(Names(PhantomData))
        }
    }

    impl TryFrom<Tiers> for super::Tiers {
        type Error = TiersError;

        fn try_from(file: Tiers) -> Result<Self, TiersError> {
            let tiers = file.tiers.0.into_iter().map(|(name, quotas)| (name, quotas.0)).collect();
            let tiers = Self { tiers, tenants: file.tenants.0, unknown_tenant: file.unknown_tenant };
            tiers.check().map(|()| tiers)
        }
    }
}

#[cfg(all(test, feature = "toml", feature = "yaml", feature = "json"))]
mod tests {
    use super::*;

    #[test]
    fn reads_the_same_from_three_formats() {
        let expected = Tiers::new(UnknownTenant::Tier("free".to_owned()))
            .tier("free", [("api", Quota::per_minute(100).burst(20))])
            .tier("pro", [("api", Quota::per_second(50).burst(100)), ("export", Quota::per_hour(100))])
            .tenant("acme", "pro");
        let toml = r#"
            unknown_tenant = { tier = "free" }
            [tiers.free]
            api = "100/minute, burst 20"
            [tiers.pro]
            api = "50/second, burst 100"
            export = "100/hour"
            [tenants]
            acme = "pro"
        "#;
        let yaml = "
unknown_tenant:
  tier: free
tiers:
  free:
    api: 100/minute, burst 20
  pro:
    api: 50/second, burst 100
    export: 100/hour
tenants:
  acme: pro
";
        let json = r#"{
            "unknown_tenant": {"tier": "free"},
            "tiers": {
                "free": {"api": "100/minute, burst 20"},
                "pro": {"api": "50/second, burst 100", "export": "100/hour"}
            },
            "tenants": {"acme": "pro"}
        }"#;
        assert_eq!(Tiers::from_toml(toml).unwrap(), expected);
        assert_eq!(Tiers::from_yaml(yaml).unwrap(), expected);
        assert_eq!(Tiers::from_json(json).unwrap(), expected);
    }

    #[test]
    fn no_name_stands_twice() {
        let json = |tiers: &str, tenants: &str| {
            format!(r#"{{"unknown_tenant": "refuse", "tiers": {{{tiers}}}, "tenants": {{{tenants}}}}}"#)
        };
        let twice = [
            json(r#""free": {"api": "1/second"}, "free": {"api": "9/second"}"#, ""),
            json(r#""free": {"api": "1/second", "api": "9/second"}"#, ""),
            json(r#""free": {}, "pro": {}"#, r#""acme": "free", "acme": "pro""#),
        ];
        for text in twice {
            assert!(Tiers::from_json(&text).unwrap_err().to_string().contains("twice"), "{text}");
        }
        assert!(Tiers::from_yaml("unknown_tenant: refuse\ntiers: {free: {}, free: {}}").is_err());
        assert!(Tiers::from_toml("unknown_tenant = \"refuse\"\n[tiers.free]\n[tiers.free]").is_err());
    }

    #[test]
    fn says_what_is_wrong() {
        let refused = |text: &str| Tiers::from_toml(text).unwrap_err().to_string();
        assert!(refused("[tiers]").contains("unknown_tenant"));
        assert!(refused("unknown_tenant = \"refuse\"\n[tiers.free]\napi = \"many\"").contains("a quota reads like"));
        assert!(refused("unknown_tenant = { tier = \"gold\" }\n[tiers]").contains("no tier \"gold\""));
        assert!(
            refused("unknown_tenant = \"refuse\"\n[tiers]\n[tenants]\nacme = \"gold\"").contains("no tier \"gold\"")
        );
        assert!(refused("unknown_tenant = \"refuse\"\n[tiers]\n[teirs.free]").contains("teirs"));
        assert!(Tiers::from_yaml("unknown_tenant: refuse\ntiers: {free: {api: 0x10/minute}}").is_err());
        assert!(Tiers::from_json("{}").is_err());
    }
}
