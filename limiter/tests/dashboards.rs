//! What dashboards/ says, on real parts: Prometheus scrapes the example and the server's exporter, and every panel and every
//! alert finds what it is there for.
#![allow(clippy::restriction, reason = "a test fails by panicking")]

#[path = "support/program.rs"]
mod program;
#[path = "../../tests/support/mod.rs"]
mod support;

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

use program::{Program, serving};
use reqwest::{Client, Url};
use serde_json::Value;
use support::{PATIENCE, Server, free_port};

fn dashboards() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../dashboards")
}

fn read(name: &str) -> String {
    fs::read_to_string(dashboards().join(name)).unwrap()
}

fn promtool(args: &[&str]) {
    let run = Command::new("promtool").current_dir(dashboards()).args(args).output();
    let run = run.expect("promtool starts: prometheus is installed");
    let (out, err) = (String::from_utf8_lossy(&run.stdout), String::from_utf8_lossy(&run.stderr));
    assert!(run.status.success(), "promtool {args:?}: {out}{err}");
}

#[test]
fn promtool_accepts_the_configuration_and_the_rules() {
    promtool(&["check", "config", "prometheus.yml"]);
    promtool(&["check", "rules", "alerts.yml"]);
}

#[test]
fn every_alert_fires_on_what_it_is_there_for_and_on_nothing_else() {
    promtool(&["test", "rules", "alerts.test.yml"]);
    let (rules, tests) = (read("alerts.yml"), read("alerts.test.yml"));
    let alerts: Vec<_> = rules.lines().filter_map(|line| line.trim().strip_prefix("- alert: ")).collect();
    assert!(!alerts.is_empty());
    for alert in alerts {
        assert!(tests.contains(&format!("alertname: {alert} }}")), "{alert} is never shown to be silent");
        assert!(tests.contains(&format!("alertname: {alert}\n        exp_alerts")), "{alert} is never shown to fire");
    }
}

fn dashboard() -> Value {
    serde_json::from_str(&read("grafana.json")).unwrap()
}

/// The panels that show something, which rows do not.
fn panels(dashboard: &Value) -> Vec<&Value> {
    dashboard["panels"].as_array().unwrap().iter().filter(|panel| panel["type"] != "row").collect()
}

fn expressions(panel: &Value) -> Vec<&str> {
    panel["targets"].as_array().unwrap().iter().map(|target| target["expr"].as_str().unwrap()).collect()
}

#[test]
fn the_dashboard_is_what_grafana_imports() {
    let dashboard = dashboard();
    assert!(dashboard["schemaVersion"].as_u64().unwrap() >= 36 && dashboard["id"].is_null());
    let variables = dashboard["templating"]["list"].as_array().unwrap();
    let variables: Vec<_> = variables.iter().map(|variable| variable["name"].as_str().unwrap()).collect();
    assert_eq!(variables[0], "datasource");

    let mut ids: Vec<_> = dashboard["panels"].as_array().unwrap().iter().map(|panel| panel["id"].as_u64()).collect();
    let all = ids.len();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), all, "the number of a panel is its own");

    for panel in panels(&dashboard) {
        let title = panel["title"].as_str().unwrap();
        assert_eq!(panel["datasource"]["uid"], "${datasource}", "{title}");
        for expression in expressions(panel) {
            let used = expression.split('$').skip(1).map(|rest| {
                rest.split(|letter: char| !letter.is_ascii_alphanumeric() && letter != '_').next().unwrap()
            });
            let unknown: Vec<_> = used.filter(|name| *name != "__rate_interval" && !variables.contains(name)).collect();
            assert!(!expression.is_empty() && unknown.is_empty(), "{title}: {unknown:?}");
        }
        let at = |key: &str| panel["gridPos"][key].as_u64().unwrap();
        assert!(at("x") + at("w") <= 24 && at("h") > 0, "{title}");
    }
}

/// Starts a program on a free port, which somebody else may take before, until it answers there.
async fn listening(path: &str, command: impl Fn(u16) -> Command) -> (Program, String) {
    for _ in 0..5 {
        let port = free_port();
        let mut program = Program::start(&mut command(port));
        let (address, deadline) = (format!("127.0.0.1:{port}"), Instant::now() + PATIENCE);
        while !program.has_ended() {
            if reqwest::get(format!("http://{address}{path}")).await.is_ok_and(|answer| answer.status().is_success()) {
                return (program, address);
            }
            assert!(Instant::now() < deadline, "{:?} does not answer", command(port));
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }
    panic!("{:?} ends instead of serving", command(0));
}

async fn exporter(server: &Server) -> (Program, String) {
    let server = format!("redis://127.0.0.1:{}", server.port());
    // Debian's name, and its own.
    let names = ["prometheus-redis-exporter", "redis_exporter"];
    let is_there = |name: &&str| Command::new(name).arg("-version").output().is_ok();
    let name = names.into_iter().find(is_there).expect("redis_exporter is installed");
    listening("/metrics", |port| {
        let mut command = Command::new(name);
        command.args(["-redis.addr", &server, "-web.listen-address", &format!("127.0.0.1:{port}"), "-script"]);
        command.arg(dashboards().join("info.lua")).stderr(Stdio::null());
        command
    })
    .await
}

/// With the files of dashboards/, except where the targets are and how often they are asked.
async fn prometheus(dir: &Path, limiter: &str, redis: &str) -> (Program, String) {
    let config = read("prometheus.yml");
    let own = [("127.0.0.1:3000", limiter), ("127.0.0.1:9121", redis), ("_interval: 5s", "_interval: 500ms")];
    let config = own.iter().fold(config, |config, (from, to)| {
        assert!(config.contains(from), "{from}");
        config.replace(from, to)
    });
    fs::write(dir.join("prometheus.yml"), config).unwrap();
    fs::copy(dashboards().join("alerts.yml"), dir.join("alerts.yml")).unwrap();
    listening("/-/ready", |port| {
        let mut command = Command::new("prometheus");
        command.arg(format!("--config.file={}", dir.join("prometheus.yml").display()));
        command.arg(format!("--storage.tsdb.path={}", dir.join("prometheus").display()));
        command.arg(format!("--web.listen-address=127.0.0.1:{port}"));
        command.stderr(File::create(dir.join("prometheus.log")).unwrap());
        command
    })
    .await
}

/// A service with its callers, and the Prometheus that looks at it.
struct Watched {
    client: Client,
    service: String,
    prometheus: String,
}

impl Watched {
    /// Some calls of two tenants at once, one of which may not do much.
    async fn call(&self) {
        let mut calls = tokio::task::JoinSet::new();
        for tenant in ["acme", "bigco"].into_iter().cycle().take(40) {
            let request = self.client.get(format!("http://{}/", self.service));
            calls.spawn(request.header("Authorization", format!("Bearer key-of-{tenant}")).send());
        }
        while let Some(call) = calls.join_next().await {
            let status = call.unwrap().unwrap().status();
            assert!(status == 200 || status == 429, "{status}");
        }
    }

    async fn ask(&self, path: &str, parameters: &[(&str, &str)]) -> Value {
        let url = Url::parse_with_params(&format!("http://{}/api/v1/{path}", self.prometheus), parameters).unwrap();
        let answer: Value = self.client.get(url).send().await.unwrap().json().await.unwrap();
        assert_eq!(answer["status"], "success", "{parameters:?}: {answer}");
        answer["data"].clone()
    }

    /// Whether a panel's expression finds a number.
    async fn has_data(&self, panel: &str) -> bool {
        let query = panel.replace("$__rate_interval", "1m").replace("$job", ".*").replace("$class", ".*");
        let data = self.ask("query", &[("query", &query)]).await;
        let is_number = |sample: &Value| sample["value"][1].as_str().unwrap().parse::<f64>().unwrap().is_finite();
        data["result"].as_array().unwrap().iter().any(is_number)
    }

    /// The panels that find nothing so far.
    async fn without_data(&self, panels: Vec<String>) -> Vec<String> {
        let mut empty = Vec::new();
        for panel in panels {
            if !self.has_data(&panel).await {
                empty.push(panel);
            }
        }
        empty
    }

    /// The alerts whose expressions find something, be it not for long enough yet.
    async fn active(&self) -> Vec<String> {
        let data = self.ask("rules", &[]).await;
        let groups = data["groups"].as_array().unwrap();
        let rules = groups.iter().flat_map(|group| group["rules"].as_array().unwrap());
        let active = rules.filter(|rule| {
            assert_ne!(rule["health"], "err", "{rule}");
            rule["state"] != "inactive"
        });
        active.map(|rule| rule["name"].as_str().unwrap().to_owned()).collect()
    }

    /// Goes on with `call` until these alerts are active, and no more panels than those that speak of `but` are without data.
    async fn until(&self, alerts: &[&str], panels: &mut Vec<String>, but: &[&str], mut call: impl AsyncFnMut()) {
        let deadline = Instant::now() + PATIENCE;
        loop {
            call().await;
            let active = self.active().await;
            *panels = self.without_data(std::mem::take(panels)).await;
            let missing: Vec<_> = panels.iter().filter(|panel| !but.iter().any(|but| panel.contains(but))).collect();
            if missing.is_empty() && alerts.iter().all(|alert| active.iter().any(|name| name == alert)) {
                return;
            }
            assert!(Instant::now() < deadline, "active: {active:?}, wanted: {alerts:?}, without data: {missing:#?}");
        }
    }
}

#[tokio::test]
async fn every_panel_and_every_alert_finds_its_data_in_a_real_prometheus() {
    let mut server = Server::start();
    let (example, service) = serving("axum", &server);
    let (_exporter, redis) = exporter(&server).await;
    let (_prometheus, prometheus) = prometheus(server.dir(), &service, &redis).await;
    let watched = Watched { client: Client::new(), service, prometheus };
    let dashboard = dashboard();
    let mut panels: Vec<_> = panels(&dashboard).into_iter().flat_map(expressions).map(str::to_owned).collect();

    let of_faults = ["ratelimit_faults_total", "ratelimit_breaker_flips_total"];
    let well = ["RateLimitRefusalsOfTenantRise", "TokenBucketCallersAtFault"];
    let with_nonsense = async || {
        server.client().call(&["TB.TAKE", "key", "nonsense", "1"]);
        watched.call().await;
    };
    watched.until(&well, &mut panels, &of_faults, with_nonsense).await;

    let behind_a_slow_command = async || {
        let mut busy = server.client();
        busy.send(&["DEBUG", "SLEEP", "0.02"]);
        watched.call().await;
    };
    watched.until(&["RateLimitCheckSlow"], &mut panels, &of_faults, behind_a_slow_command).await;

    server.kill();
    watched.until(&["RateLimitFailsOpen"], &mut panels, &[], async || watched.call().await).await;

    drop(example);
    watched.until(&["RateLimitMetricsMissing"], &mut panels, &[], async || {}).await;
}
