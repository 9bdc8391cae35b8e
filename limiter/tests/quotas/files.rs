//! Tiers in a file that is edited while the service runs.

use std::fs;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use redis_token_bucket_limiter::{Quota, Quotas, Tenants, Tiers, TiersError};
use tokio::sync::mpsc;
use tokio::time::timeout;

use crate::support::PATIENCE;

struct File(PathBuf);

impl File {
    fn new(extension: &str, text: &str) -> File {
        static COUNT: AtomicU64 = AtomicU64::new(0);
        let name = format!("tb-tiers-{}-{}.{extension}", std::process::id(), COUNT.fetch_add(1, Ordering::Relaxed));
        let file = File(std::env::temp_dir().join(name));
        file.write(text);
        file
    }

    /// Puts another file in its place, as editors and mounted volumes do.
    fn write(&self, text: &str) {
        let new = self.0.with_extension("new");
        fs::write(&new, text).unwrap();
        fs::rename(new, &self.0).unwrap();
    }
}

impl Drop for File {
    fn drop(&mut self) {
        let _ = fs::remove_file(&self.0);
    }
}

fn toml(api: &str) -> String {
    format!("unknown_tenant = \"refuse\"\n[tiers.free]\napi = \"{api}\"\n[tenants]\nacme = \"free\"\n")
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_file_is_reloaded_without_a_restart() {
    let file = File::new("toml", &toml("10/second"));
    let quotas = Arc::new(Tenants::new(Tiers::load(&file.0).unwrap()).unwrap());
    let (tell, mut told) = mpsc::unbounded_channel::<Result<(), TiersError>>();
    quotas.watch(&file.0, Duration::from_millis(20), move |outcome| {
        let _ = tell.send(outcome);
    });
    let api = async || quotas.quota("acme", "api").await.unwrap();
    let mut next = async || timeout(PATIENCE, told.recv()).await.expect("nothing was told").unwrap();
    assert_eq!(api().await, Quota::per_second(10));

    file.write(&toml("20/second"));
    assert_eq!(next().await, Ok(()));
    assert_eq!(api().await, Quota::per_second(20));

    file.write(&toml("many"));
    assert!(next().await.unwrap_err().to_string().contains("a quota reads like"));
    assert_eq!(api().await, Quota::per_second(20), "a file that is no good changes nothing");

    fs::remove_file(&file.0).unwrap();
    assert!(next().await.is_err());
    assert_eq!(api().await, Quota::per_second(20));

    file.write(&toml("30/second"));
    assert_eq!(next().await, Ok(()));
    assert_eq!(api().await, Quota::per_second(30));

    drop(quotas);
    assert!(timeout(PATIENCE, told.recv()).await.unwrap().is_none(), "watching ends with the quotas");
}

#[test]
fn the_extension_says_the_format() {
    let yaml = "unknown_tenant: refuse\ntiers: {free: {api: 10/second}}\n";
    let json = r#"{"unknown_tenant": "refuse", "tiers": {"free": {"api": "10/second"}}}"#;
    let files = [File::new("yaml", yaml), File::new("yml", yaml), File::new("json", json)];
    let tiers = files.each_ref().map(|file| Tiers::load(&file.0).unwrap());
    assert_eq!(tiers[0], tiers[1]);
    assert_eq!(tiers[0], tiers[2]);
    let unknown = File::new("ini", "");
    assert!(Tiers::load(&unknown.0).unwrap_err().to_string().contains("not a format"));
    assert!(Tiers::load("/nowhere/tiers.toml").unwrap_err().to_string().contains("/nowhere/tiers.toml"));
}
