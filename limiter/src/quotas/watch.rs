//! Tiers in a file that may change while the service runs.

use std::path::{Path, PathBuf};
use std::sync::{Arc, Weak};
use std::time::Duration;

use super::tenants::{Overrides, Tenants};
use super::tiers::{Tiers, TiersError};

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
    /// Changes are found by reading the file, for a file in a mounted volume changes in ways that no watcher sees.
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
    loop {
        let path = path.clone();
        let Ok(read) = tokio::task::spawn_blocking(move || Tiers::load(path)).await else { return };
        let Some(quotas) = quotas.upgrade() else { return };
        if last != read {
            last = read.clone();
            told(read.and_then(|tiers| quotas.reload(tiers)));
        }
        drop(quotas);
        tokio::time::sleep(every).await;
    }
}
