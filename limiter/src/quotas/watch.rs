//! Tiers in a file that may change while the service runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::tenants::{Overrides, Tenants};
use super::tiers::{Tiers, TiersError};

/// How long a file has to say the same: it may be half written.
const WRITTEN: Duration = Duration::from_millis(100);

impl Tiers {
    /// Reads a file; the format is that of its extension: `.toml`, `.yaml`, `.yml` or `.json`.
    ///
    /// # Errors
    /// A file that cannot be read, a format that this build does not know, or what is wrong with the text.
    pub fn load(path: impl AsRef<Path>) -> Result<Self, TiersError> {
        let path = path.as_ref();
        let said = |error: &dyn std::fmt::Display| TiersError(format!("{}: {error}", path.display()));
        let text = std::fs::read_to_string(path).map_err(|error| said(&error))?;
        let tiers = match path.extension().and_then(|extension| extension.to_str()) {
            #[cfg(feature = "toml")]
            Some("toml") => Self::from_toml(&text),
            #[cfg(feature = "yaml")]
            Some("yaml" | "yml") => Self::from_yaml(&text),
            #[cfg(feature = "json")]
            Some("json") => Self::from_json(&text),
            _ => Err(TiersError("not a format of this build".to_owned())),
        };
        tiers.map_err(|error| said(&error))
    }
}

impl<D: Overrides> Tenants<D> {
    /// Looks at a file every so often, and goes by its tiers from when they have changed. `told` hears of each change, and of
    /// each one that was no good, in which case the old tiers stay. Ends with the quotas.
    ///
    /// Changes are found by reading the file, for a file in a mounted volume changes in ways that no watcher sees. A change holds
    /// once the file says the same a moment later: half of a file can be one without an error.
    pub fn watch(
        self: &Arc<Self>,
        path: impl Into<PathBuf>,
        every: Duration,
        told: impl Fn(Result<(), TiersError>) + Send + 'static,
    ) {
        let last = Ok(Tiers::clone(&self.tiers()));
        tokio::spawn(watch(Arc::downgrade(self), path.into(), every, last, told));
    }
}

async fn watch<D: Overrides>(
    quotas: Weak<Tenants<D>>,
    path: PathBuf,
    every: Duration,
    mut last: Result<Tiers, TiersError>,
    told: impl Fn(Result<(), TiersError>) + Send,
) {
    let mut seen = last.clone();
    loop {
        let path = path.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || Tiers::load(path)).await else { return };
        let Some(quotas) = quotas.upgrade() else { return };
        let is_written = std::mem::replace(&mut seen, read.clone()) == read;
        if is_written && last != read {
            last = read.clone();
            told(read.and_then(|tiers| quotas.reload(tiers)));
        }
        drop(quotas);
        tokio::time::sleep(if is_written { every } else { WRITTEN.min(every) }).await;
    }
}

#[cfg(all(test, feature = "toml"))]
mod tests {
    use super::super::tiers::UnknownTenant;
    use super::*;

    /// Written in two pieces, of which the first is a file that can be read, without the tenants.
    #[tokio::test(start_paused = true)]
    async fn half_of_a_file_changes_nothing() {
        let path = std::env::temp_dir().join(format!("tb-half-{}.toml", std::process::id()));
        let half = "unknown_tenant = \"refuse\"\n[tiers.free]\napi = \"1/second\"\n";
        std::fs::write(&path, half).unwrap();
        let old = Tiers::new(UnknownTenant::Refuse).tier("free", [("api", client::Quota::per_second(9))]);
        let quotas = Arc::new(Tenants::new(old.tenant("acme", "free")).unwrap());
        let (tell, told) = std::sync::mpsc::channel();
        quotas.watch(&path, Duration::from_secs(5), move |outcome| {
            let _ = tell.send(outcome);
        });
        tokio::time::sleep(WRITTEN / 2).await;
        std::fs::write(&path, format!("{half}[tenants]\nacme = \"free\"\n")).unwrap();
        tokio::time::sleep(Duration::from_secs(20)).await;
        assert_eq!(told.try_iter().collect::<Vec<_>>(), [Ok(())]);
        assert_eq!(quotas.tiers().tier_of("acme"), Some("free"));
        std::fs::remove_file(&path).unwrap();
    }
}
