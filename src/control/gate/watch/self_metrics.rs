//! The watch's state: liveness, readiness, and metrics for Prometheus.
//!
//! Metrics here have no node names as labels; series of single nodes come from
//! `report::metrics`, which bounds their number.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::atomic::{AtomicI64, AtomicU64};
use std::sync::{Arc, Mutex, PoisonError};

use prometheus_client::collector::Collector;
use prometheus_client::encoding::DescriptorEncoder;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::counter::Counter;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::{Registry, Unit};

use super::state::WatchState;
use super::uptime_s;
use engine::policy::certificate::explain_outlived;
use engine::policy::journal_state::JournalState;
use engine::policy::schedule::MeasurementSchedule;
use engine::policy::{certificate, node_state};
use engine::report::metrics::exposition::{MetricDefinition, MetricFamily as Shown};
use engine::report::metrics::{definitions, exposition};
use model::certificate::Certificate;
use model::claims::Claims;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::watch::WatchEvent;

type MetricLabels = Vec<(&'static str, String)>;
type GaugeFamily = Family<MetricLabels, Gauge<i64, AtomicI64>>;
type CounterFamily = Family<MetricLabels, Counter<u64, AtomicU64>>;

/// Times by the local uptime; negative means never.
#[derive(Clone, Copy, Debug)]
struct WatchTimes {
    last_turn_s: f64,
    last_observation_s: f64,
    is_leading: bool,
    is_standby: bool,
}

/// The last state of metric families that are built elsewhere.
#[derive(Clone, Debug, Default)]
struct CachedFamilies(Arc<Mutex<Vec<Shown>>>);

impl Collector for CachedFamilies {
    fn encode(&self, encoder: DescriptorEncoder<'_>) -> Result<(), fmt::Error> {
        exposition::encode_families(&self.0.lock().unwrap_or_else(PoisonError::into_inner), encoder)
    }
}

/// Metrics that this module updates live; filtered from the cached families.
static LIVE_METRICS: [&MetricDefinition; 3] =
    [&definitions::BREAKER, &definitions::DRAINS, &definitions::OPEN];

/// Health and metrics of the watch.
#[derive(Debug)]
pub struct WatchMetrics {
    cached: CachedFamilies,
    claims: Mutex<Option<Arc<Claims>>>,
    times: Mutex<WatchTimes>,
    registry: Registry,
    nodes: GaugeFamily,
    certificates: GaugeFamily,
    due: GaugeFamily,
    drains: Gauge,
    undone: Gauge,
    unrecorded: Gauge,
    open: Gauge,
    breaker: Gauge,
    running: Gauge,
    leading: Gauge,
    observations: CounterFamily,
    last_observation: Gauge,
    started: CounterFamily,
    ended: CounterFamily,
    success: GaugeFamily,
    expired_marks: Counter,
    node_events: CounterFamily,
}

impl Default for WatchMetrics {
    fn default() -> Self {
        let mut registry = Registry::with_prefix("fabricgate");
        let mut gauges = |name: &str, help: &str| {
            let family = GaugeFamily::default();
            registry.register(name, help, family.clone());
            family
        };
        let nodes = gauges("nodes", "Nodes known to the scheduler, by state");
        let certificates = gauges("certificates", "Certificates on disk, by state");
        let due = gauges("nodes_due", "Nodes that are due, by cause");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let drains = gauge("drains_outstanding", "Outstanding drains by fabricgate");
        let undone = gauge("drains_undone", "Drains by fabricgate that were undone manually");
        let unrecorded = gauge(
            "drains_unrecorded",
            "Drains with a fabricgate reason that are missing in the journal",
        );
        let open = gauge("actions_open", "Actions without a result");
        let breaker = gauge("breaker_tripped", "1 if only releases are allowed until a reset");
        let running = gauge("jobs_running", "Running jobs");
        let leading = gauge("leading", "1 if this instance is the active one");
        let last_observation = Gauge::default();
        let help = "When the scheduler was last read and a decision made";
        registry.register_with_unit(
            "last_look_timestamp",
            help,
            Unit::Seconds,
            last_observation.clone(),
        );
        let success = GaugeFamily::default();
        let help = "When a job of this profile last passed";
        registry.register_with_unit(
            "job_last_success_timestamp",
            help,
            Unit::Seconds,
            success.clone(),
        );
        let mut counters = |name: &str, help: &str| {
            let family = CounterFamily::default();
            registry.register(name, help, family.clone());
            family
        };
        let observations = counters("looks", "Times that the scheduler was read, by result");
        let started = counters("jobs_started", "Jobs that were started, by profile");
        let ended = counters("jobs_ended", "Jobs that ended, by profile and outcome");
        let watched = counters("watch_events", "Events of the watch on nodes, by result");
        let lapsed = Counter::default();
        registry.register("marks_lapsed", "Marks removed after they expired", lapsed.clone());
        let build: GaugeFamily = Family::default();
        registry.register("build_info", "The version that runs", build.clone());
        build.get_or_create(&vec![("version", env!("CARGO_PKG_VERSION").to_owned())]).set(1);
        let cached = CachedFamilies::default();
        registry.register_collector(Box::new(cached.clone()));
        let never = WatchTimes {
            last_turn_s: uptime_s(),
            last_observation_s: -1.0,
            is_leading: false,
            is_standby: false,
        };
        Self {
            cached,
            claims: Mutex::new(None),
            times: Mutex::new(never),
            registry,
            nodes,
            certificates,
            due,
            drains,
            undone,
            unrecorded,
            open,
            breaker,
            running,
            leading,
            observations,
            last_observation,
            started,
            ended,
            success,
            expired_marks: lapsed,
            node_events: watched,
        }
    }
}

impl WatchMetrics {
    fn update_times(&self, change: impl FnOnce(&mut WatchTimes)) -> WatchTimes {
        let mut moments = self.times.lock().expect("no panic while the times are locked");
        change(&mut moments);
        *moments
    }

    /// Records a turn of the loop.
    pub fn record_turn(&self) {
        self.update_times(|it| it.last_turn_s = uptime_s());
    }

    /// Sets whether this instance is active.
    pub fn set_leading(&self, leads: bool) {
        self.update_times(|it| it.is_leading = leads);
        self.leading.set(i64::from(leads));
    }

    /// Sets whether this instance waits for one that is known to be active.
    pub fn set_standby(&self, knowingly: bool) {
        self.update_times(|it| it.is_standby = knowingly);
    }

    /// Whether this instance is active.
    pub fn is_leading(&self) -> bool {
        self.update_times(|_| ()).is_leading
    }

    /// Sets the current claims.
    pub fn set_claims(&self, claims: &Claims) {
        let mut known = self.claims.lock().unwrap_or_else(PoisonError::into_inner);
        *known = Some(Arc::new(claims.clone()));
    }

    /// The claims as last read.
    pub fn claims(&self) -> Option<Arc<Claims>> {
        self.claims.lock().unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Sets the metrics of nodes and runs.
    pub fn set_cached_families(&self, mut families: Vec<Shown>) {
        families.retain(|it| !LIVE_METRICS.contains(&it.definition));
        *self.cached.0.lock().unwrap_or_else(PoisonError::into_inner) = families;
    }

    /// Counts an observation.
    pub fn record_observation(&self, well: bool) {
        if well {
            self.update_times(|it| it.last_observation_s = uptime_s());
        }
        let result = if well { "ok" } else { "error" };
        self.observations.get_or_create(&vec![("result", result.to_owned())]).inc();
    }

    /// Counts a watch event or error.
    pub fn record_node_event(&self, well: bool) {
        let result = if well { "ok" } else { "error" };
        self.node_events.get_or_create(&vec![("result", result.to_owned())]).inc();
    }

    /// Sets the metrics of an observation.
    pub fn set_node_states(
        &self,
        live: &SchedulerSnapshot,
        certificates: &BTreeMap<NodeName, Certificate>,
        ledger: &JournalState,
        due: &MeasurementSchedule,
        ahead_s: i64,
        now: &ClockStamp,
    ) {
        let mut states: BTreeMap<&str, i64> =
            ["in_service", "drained_by_us", "drained", "out"].map(|state| (state, 0)).into();
        for (name, node) in &live.nodes {
            let state = if ledger.drains.contains_key(name) {
                "drained_by_us"
            } else if node_state::has_drain(node) {
                "drained"
            } else if node_state::is_out(node) {
                "out"
            } else {
                "in_service"
            };
            *states.entry(state).or_default() += 1;
        }
        set_gauges(&self.nodes, "state", states);
        let mut kinds: BTreeMap<&str, i64> =
            ["valid", "expiring", "expired", "void"].map(|kind| (kind, 0)).into();
        for it in certificates.values() {
            let kind = if it.voided.is_some() {
                "void"
            } else if certificate::explain_expiry(it, now.unix).is_some() {
                "expired"
            } else if live.nodes.get(&it.node).is_some_and(|at| explain_outlived(it, at).is_some())
            {
                "void"
            } else if it.expires_unix.saturating_sub(now.unix) <= ahead_s {
                "expiring"
            } else {
                "valid"
            };
            *kinds.entry(kind).or_default() += 1;
        }
        set_gauges(&self.certificates, "state", kinds);
        let mut causes: BTreeMap<&str, i64> =
            ["unverified", "repaired", "expired", "missing", "expiring", "audit"]
                .map(|cause| (cause, 0))
                .into();
        for job in &due.jobs {
            *causes.entry(job.cause.as_str()).or_default() += to_gauge(job.nodes.len());
        }
        set_gauges(&self.due, "cause", causes);
        self.drains.set(to_gauge(ledger.drains.len()));
        self.undone.set(to_gauge(ledger.undone_drains.len()));
        self.unrecorded.set(to_gauge(node_state::unrecorded_drains(live, ledger).len()));
        self.open.set(to_gauge(ledger.open_intents.len()));
        self.breaker.set(i64::from(ledger.breaker.is_some()));
        self.last_observation.set(now.unix);
    }

    /// Counts a started job.
    pub fn record_job_start(&self, event: &WatchEvent, state: &WatchState) {
        self.running.set(to_gauge(state.jobs.len()));
        if let WatchEvent::Started(job) = event {
            self.started.get_or_create(&vec![("profile", job.profile.clone())]).inc();
        }
    }

    /// Counts a finished job.
    pub fn record_job_end(&self, event: &WatchEvent, state: &WatchState, now: i64) {
        self.running.set(to_gauge(state.jobs.len()));
        if let WatchEvent::Ended { job, outcome, code, .. } = event {
            let profile = ("profile", job.profile.clone());
            let labels = vec![profile.clone(), ("outcome", outcome.as_str().to_owned())];
            self.ended.get_or_create(&labels).inc();
            if *code == Some(0) {
                self.success.get_or_create(&vec![profile]).set(now);
            }
        }
    }

    /// Counts removed marks.
    pub fn count_expired_marks(&self, nodes: usize) {
        self.expired_marks.inc_by(nodes as u64);
    }

    /// Liveness: whether the loop has turned within this time, with an explanation.
    pub fn check_health(&self, within_s: f64) -> Result<String, String> {
        let since = uptime_s() - self.update_times(|_| ()).last_turn_s;
        if since <= within_s {
            return Ok(format!("the loop turned {since:.0} s ago\n"));
        }
        Err(format!("the loop has not turned for {since:.0} s, expected {within_s:.0} s\n"))
    }

    /// Readiness: whether this instance works, or waits for a known active one, with an
    /// explanation.
    pub fn check_readiness(&self, within_s: f64) -> Result<String, String> {
        let it = self.update_times(|_| ());
        if !it.is_leading && !it.is_standby {
            return Err("cannot determine whether another instance is active\n".to_owned());
        }
        if !it.is_leading && it.last_observation_s < 0.0 {
            return Ok("another instance is active\n".to_owned());
        }
        let since = uptime_s() - it.last_observation_s;
        if it.last_observation_s < 0.0 || within_s < since {
            return Err("the scheduler has not answered recently\n".to_owned());
        }
        Ok(format!("the last decision was {since:.0} s ago\n"))
    }

    /// All metrics in the Prometheus text format.
    pub fn encode_metrics(&self) -> String {
        let mut text = String::new();
        encode(&mut text, &self.registry).expect("a text takes everything");
        text
    }
}

fn set_gauges(family: &GaugeFamily, label: &'static str, values: BTreeMap<&str, i64>) {
    for (value, count) in values {
        family.get_or_create(&vec![(label, value.to_owned())]).set(count);
    }
}

fn to_gauge(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use super::*;
    use engine::report::metrics;
    use model::scheduler_snapshot::SchedulerNode;
    use model::watch::{DueReason, JobOutcome, WatchJob};

    #[test]
    fn names_have_the_prefix_and_units_and_no_node_label() {
        let vitals = WatchMetrics::default();
        vitals.record_observation(true);
        vitals.set_leading(true);
        let text = vitals.encode_metrics();
        for expected in [
            "fabricgate_looks_total{result=\"ok\"} 1",
            "fabricgate_leading 1",
            "fabricgate_last_look_timestamp_seconds 0",
            "fabricgate_build_info{version=",
        ] {
            assert!(text.contains(expected), "{expected}: {text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    /// fabricgate metric names in a text; a counter includes its `_total` name.
    fn metric_names(text: &str) -> BTreeSet<String> {
        let is_word = |c: char| c.is_ascii_lowercase() || c == '_';
        let words = text.split(|c: char| !is_word(c) && !c.is_ascii_digit());
        let words = words.filter(|it| it.starts_with("fabricgate_"));
        words.filter(|it| !it.ends_with('_')).map(str::to_owned).collect()
    }

    /// Every metric name of the watch's endpoint and of textfiles.
    fn exported_names() -> BTreeSet<String> {
        let vitals = WatchMetrics::default();
        vitals.record_observation(true);
        vitals.record_node_event(true);
        let job = WatchJob {
            job: "j".to_owned(),
            profile: "audit".to_owned(),
            domain: "d".into(),
            nodes: Vec::new(),
            partners: Vec::new(),
            cause: DueReason::Audit,
            why: String::new(),
            command: Vec::new(),
            log: String::new(),
        };
        let state = WatchState::default();
        vitals.record_job_start(&WatchEvent::Started(job.clone()), &state);
        let outcome = JobOutcome::Passed;
        let ended = WatchEvent::Ended { job, code: Some(0), outcome, seconds: 1.0 };
        vitals.record_job_end(&ended, &state, 1);
        let (live, ledger, due) =
            (SchedulerSnapshot::default(), JournalState::default(), MeasurementSchedule::default());
        vitals.set_node_states(&live, &BTreeMap::new(), &ledger, &due, 0, &ClockStamp::default());
        let samples = |text: &str| -> String {
            text.lines().filter(|line| !line.starts_with('#')).collect::<Vec<_>>().join("\n")
        };
        let mut names = metric_names(&samples(&vitals.encode_metrics()));
        names.extend(definitions::ALL.iter().map(|it| it.full_name()));
        names
    }

    fn read_repo_file(path: &str) -> String {
        let path = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join(path);
        std::fs::read_to_string(&path).expect("a file of the repository")
    }

    #[test]
    fn rules_dashboard_and_documentation_name_exactly_the_exported_metrics() {
        let shown = exported_names();
        for file in [
            "ci/monitoring/alerts.yml",
            "ci/monitoring/alerts_test.yml",
            "ci/monitoring/dashboard.json",
            "docs/monitoring.md",
            "docs/watch.md",
        ] {
            let unknown: Vec<String> =
                metric_names(&read_repo_file(file)).difference(&shown).cloned().collect();
            assert!(unknown.is_empty(), "{file} names metrics that are not exported: {unknown:?}");
        }
        for file in ["ci/monitoring/dashboard.json", "docs/monitoring.md"] {
            let text = read_repo_file(file);
            let left: Vec<&String> =
                shown.iter().filter(|it| !text.contains(it.as_str())).collect();
            assert!(left.is_empty(), "{file} leaves out {left:?}");
        }
    }

    #[test]
    fn the_documentation_describes_every_gauge_as_the_code_does() {
        let text = read_repo_file("docs/monitoring.md");
        for it in definitions::ALL {
            let labels: Vec<String> = it.labels.iter().map(|it| format!("`{it}`")).collect();
            let row = format!("| `{}` | {} | {} |", it.full_name(), labels.join(", "), it.help);
            assert!(text.contains(&row), "docs/monitoring.md needs this row:\n{row}");
        }
        let alerts = read_repo_file("ci/monitoring/alerts.yml");
        for line in alerts.lines().filter_map(|it| it.trim().strip_prefix("- alert: ")) {
            assert!(text.contains(&format!("### {line}\n")), "docs/monitoring.md: {line}");
            let anchor = format!("runbook: docs/monitoring.md#{}", line.to_lowercase());
            assert!(alerts.contains(&anchor), "{anchor}");
        }
    }

    #[test]
    fn live_metrics_are_not_exported_twice() {
        let vitals = WatchMetrics::default();
        let state = metrics::MetricsState {
            gate: Some(metrics::GateMetricsState::default()),
            ..metrics::MetricsState::default()
        };
        vitals.set_cached_families(metrics::build_families(&state, 10));
        let text = vitals.encode_metrics();
        let types: Vec<&str> = text.lines().filter(|it| it.starts_with("# TYPE ")).collect();
        let different: BTreeSet<&str> = types.iter().copied().collect();
        assert_eq!(types.len(), different.len(), "{text}");
        assert!(text.contains("fabricgate_nodes_by_verdict{"), "{text}");
        assert_eq!(text.matches("# EOF").count(), 1);
    }

    #[test]
    fn drains_with_a_fabricgate_reason_that_the_journal_lacks_are_counted() {
        let vitals = WatchMetrics::default();
        let mut live = SchedulerSnapshot::default();
        for (name, state, reason) in [
            ("n1", &["IDLE", "DRAIN"][..], "fabricgate:nvlink-low:run9 e3"),
            ("n2", &["IDLE", "DRAIN"], "maintenance"),
            // The annotation of a drain that has ended.
            ("n3", &["IDLE"], "fabricgate:nvlink-low:run9 e3"),
        ] {
            let node = SchedulerNode {
                reason: Some(reason.to_owned()),
                ..SchedulerNode::new(name, state)
            };
            live.nodes.insert(name.into(), node);
        }
        let (ledger, due) = (JournalState::default(), MeasurementSchedule::default());
        vitals.set_node_states(&live, &BTreeMap::new(), &ledger, &due, 0, &ClockStamp::default());
        assert!(vitals.encode_metrics().contains("\nfabricgate_drains_unrecorded 1\n"));
    }

    #[test]
    fn a_known_standby_is_ready_and_an_unknown_state_is_not() {
        let vitals = WatchMetrics::default();
        assert!(vitals.check_readiness(60.0).is_err());
        vitals.set_standby(true);
        assert!(vitals.check_readiness(60.0).is_ok());
        vitals.set_leading(true);
        assert!(vitals.check_readiness(60.0).is_err(), "nothing was read yet");
        vitals.record_observation(true);
        assert!(vitals.check_readiness(60.0).is_ok());
        assert!(vitals.check_health(60.0).is_ok() && vitals.check_health(-1.0).is_err());
    }
}
