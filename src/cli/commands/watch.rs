//! `fabricgate watch`: the continuous gate.
//!
//! Turns a configuration into the arguments of the loop, and the loop's events into lines.

use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crate::cli::stdout::{Globals, note};
use crate::cli::{expectations, gate_apply, stdout};
use crate::config::Config;
use crate::config::gate::{GateBackend, GateConfig};
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::clock;
use control::gate::lease::{LeaseTerm, leader_elector};
use control::gate::watch::monitor::MetricsMonitor;
use control::gate::watch::self_metrics::WatchMetrics;
use control::gate::watch::{WatchError, WatchLoop, http, monitor, node_events, run_watch, state};
use control::notify::background::BackgroundNotifier;
use control::sources::kubernetes::KubernetesClientConfig;
use control::sweep::signals::StopSignals;
use engine::report;
use model::claims::Claims;
use model::watch::{WATCH_FORMAT, WatchEvent, WatchLine};
use node::exec::executable;

/// The file with the namespace of the pod in which the process runs.
const POD_NAMESPACE_FILE: &str = "/var/run/secrets/kubernetes.io/serviceaccount/namespace";

/// Interval at which start-up retries while another instance holds the address.
const POLL: Duration = Duration::from_secs(1);

/// Retries while the address stays in use after the other instance released the lock.
const RELEASE_RETRIES: u32 = 5;

/// Run the gate continuously: certify unverified nodes, re-certify expired and repaired ones.
#[derive(Debug, clap::Args)]
pub struct WatchArgs {
    /// Start due runs; without it, only print them.
    #[arg(long)]
    apply: bool,
    /// Decide once, run what is due, and exit with the worst of its exit codes.
    #[arg(long)]
    once: bool,
}

/// Runs the command.
pub fn run(args: &WatchArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = Arc::new(config::open(globals.config.as_deref())?);
    let gate = gate_apply::require_gate(&config)?;
    let watching = &config.watch;
    let scheduler = gate_apply::scheduler_for(gate);
    let keys = config.certificates.read_keys();
    if let Some(trouble) = keys.problems.first().filter(|_| keys.trust.required) {
        // Fail now: later no operator sees the message, and every node would count as uncertified.
        return Err(CommandError::Environment(trouble.clone()).into());
    }
    keys.problems.iter().for_each(|trouble| note(trouble));
    let vitals = Arc::new(WatchMetrics::default());
    // Reading a large fleet may miss several turns.
    let within_s = watching.interval().as_secs_f64() * 3.0 + 60.0;
    if let Some(address) = watching.listen {
        let serve = || http::serve(address, Arc::clone(&vitals), within_s);
        let waits = args.apply && !args.once;
        let Some(bound) = start_listener(address, &serve, waits.then_some(&gate.folder))? else {
            return Ok(exit::PASS);
        };
        note(&format!("/healthz, /readyz and /metrics are at {bound}"));
    }
    let kubernetes = kubernetes_server(gate);
    if !args.once {
        start_monitoring(&config, gate, &vitals)?;
    }
    let lease = lease_settings(&config, kubernetes.as_ref());
    let changes = match &kubernetes {
        Some(kubernetes) if !args.once => {
            let changes = node_events::start_node_watch(kubernetes.clone(), Arc::clone(&vitals));
            Some(
                changes
                    .map_err(|error| CommandError::Environment(format!("no thread: {error}")))?,
            )
        }
        _ => None,
    };
    let program = executable::current_executable()?.display().to_string();
    let path = std::path::absolute(&config.path).map_err(CommandError::environment)?;
    let (stopper, stop) = tokio::sync::watch::channel(false);
    let mut lines = WatchOutput { json: globals.json, lost: None };
    let mut tell = |event: WatchEvent| lines.print_event(event);
    let claims_config = Arc::clone(&config);
    let writer = |term: &LeaseTerm| gate_apply::scheduler_for_term(gate, Some(term));
    let mut arguments: Vec<String> =
        ["--apply", "--config", &path.display().to_string()].map(str::to_owned).into();
    if watching.even_if_tenants {
        arguments.push("--even-if-tenants".to_owned());
    }
    let watching = run_watch(WatchLoop {
        folder: gate.folder.clone(),
        scheduler: scheduler.as_ref(),
        fetch_claims: Arc::new(move || collect_claims(&claims_config)),
        settings: watching.schedule(&config.policy),
        policy: &config.policy,
        trust: &keys.trust,
        taints: watching.taints_expired(),
        writer: Some(&writer),
        intervals: watching.intervals(),
        program: vec![program],
        arguments,
        apply: args.apply,
        once: args.once,
        lease,
        node_changes: changes,
        stop,
        metrics: vitals,
        emit: &mut tell,
    });
    let ended = crate::cli::runtime::build_runtime()?.block_on(async {
        let mut signals = StopSignals::listen();
        let mut watching = std::pin::pin!(watching);
        loop {
            tokio::select! {
                ended = &mut watching => break ended,
                name = signals.next() => {
                    note(&format!("{name}: starting no more runs, waiting for running ones"));
                    stopper.send_replace(true);
                }
            }
        }
    });
    let code = ended.map_err(|error| match error {
        WatchError::Folder { .. }
        | WatchError::Locked(_)
        | WatchError::LeaderUnknown(_)
        | WatchError::ObservationFailed(_) => CommandError::environment(error),
    })?;
    match lines.lost {
        Some(error) => Err(error),
        None => Ok(code),
    }
}

/// Opens the listening socket. While another instance of this folder holds the address, waits for
/// its end; `None` if a signal arrives first.
fn start_listener(
    address: SocketAddr,
    serve: &dyn Fn() -> io::Result<SocketAddr>,
    waits: Option<&PathBuf>,
) -> Result<Option<SocketAddr>, CommandError> {
    let failed = |error: io::Error| CommandError::Environment(format!("listen {address}: {error}"));
    let in_use = match serve() {
        Ok(bound) => return Ok(Some(bound)),
        Err(error) if error.kind() == io::ErrorKind::AddrInUse => error,
        Err(error) => return Err(failed(error)),
    };
    let Some(folder) = waits else { return Err(failed(in_use)) };
    crate::cli::runtime::build_runtime()?.block_on(async {
        let mut signals = StopSignals::listen();
        let (mut is_reported, mut left) = (false, RELEASE_RETRIES);
        loop {
            match state::lock_folder(folder).map_err(failed)? {
                Err(holder) => {
                    if !is_reported {
                        let folder = folder.display();
                        note(&format!(
                            "watch: waiting: {folder}: {holder} runs here and holds {address}"
                        ));
                    }
                    (is_reported, left) = (true, RELEASE_RETRIES);
                }
                // It is exiting, or an unrelated program holds the address.
                Ok(_) if left == 0 => return Err(failed(in_use)),
                Ok(_) => left -= 1,
            }
            tokio::select! {
                () = tokio::time::sleep(POLL) => {}
                _ = signals.next() => return Ok(None),
            }
            match serve() {
                Ok(bound) => return Ok(Some(bound)),
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => {}
                Err(error) => return Err(failed(error)),
            }
        }
    })
}

/// Starts the thread that collects the metrics, and the notification thread if targets are
/// configured.
fn start_monitoring(
    config: &Config,
    gate: &GateConfig,
    vitals: &Arc<WatchMetrics>,
) -> Result<(), CommandError> {
    let failed = |error: io::Error| CommandError::Environment(format!("no thread: {error}"));
    let notify_config = config.notify.clone().filter(|it| !it.targets.is_empty());
    let background = notify_config.map(|notify| {
        let log = |text: &str| note(&format!("notify: {text}"));
        BackgroundNotifier::start(
            notify,
            crate::cli::post_run::notification_store(config),
            crate::cli::runtime::random_number(),
            clock::now,
            log,
        )
    });
    let keys = config.certificates.read_keys();
    let monitor = MetricsMonitor {
        runs: config.run_dir.clone(),
        max_runs: config.metrics.runs.size(),
        max_nodes: config.metrics.nodes.size(),
        is_simulated: config.launcher.is_stand_in(),
        gate: gate.folder.clone(),
        policy: config.policy.clone(),
        trust: keys.trust,
        unread_keys: keys.problems,
        history: config.history_path(&config.run_dir),
        interval: config.watch.interval(),
        notifier: background.transpose().map_err(failed)?,
    };
    let log = |text: &str| note(&format!("metrics: {text}"));
    monitor::start_monitor(monitor, Arc::clone(vitals), log).map_err(failed)
}

/// The current claims. Unreadable sources are left out, as in a sweep.
fn collect_claims(config: &Config) -> Result<Claims, String> {
    let in_force =
        expectations::load_thresholds(&config.thresholds).map_err(|error| error.to_string())?;
    config.collect_measurable_claims(&in_force.catalogue).map_err(|error| error.to_string())
}

/// The Kubernetes client settings, if the gate is one of Kubernetes.
fn kubernetes_server(gate: &GateConfig) -> Option<KubernetesClientConfig> {
    match &gate.backend {
        GateBackend::Kubernetes(kubernetes) => Some(kubernetes.clone()),
        GateBackend::Scontrol(_) | GateBackend::Slurmrestd(_) => None,
    }
}

/// The Lease: the configured one, or the default one for a Kubernetes gate.
fn lease_settings(
    config: &Config,
    kubernetes: Option<&KubernetesClientConfig>,
) -> Option<leader_elector::LeaderElectionConfig> {
    let kubernetes = kubernetes?;
    let named = config.watch.lease().cloned().unwrap_or_default();
    let of_pod =
        || std::fs::read_to_string(POD_NAMESPACE_FILE).ok().map(|text| text.trim().to_owned());
    let holder = || {
        // A pod's host name is its pod name.
        let host = clock::host_name();
        if std::path::Path::new(POD_NAMESPACE_FILE).exists() {
            host
        } else {
            format!("{host}_{}", std::process::id())
        }
    };
    Some(leader_elector::LeaderElectionConfig {
        kubernetes: kubernetes.clone(),
        name: named.name().to_owned(),
        duration: named.duration(),
        renew: named.renewal(),
        namespace: named.namespace.or_else(of_pod).unwrap_or_else(|| "fabricgate".to_owned()),
        holder: named.holder.unwrap_or_else(holder),
    })
}

/// Prints the events of the watch.
struct WatchOutput {
    json: bool,
    lost: Option<anyhow::Error>,
}

impl WatchOutput {
    fn print_event(&mut self, event: WatchEvent) {
        if !self.json {
            for line in report::watch::event_lines(&event) {
                note(&line);
            }
            return;
        }
        let line = WatchLine { format: WATCH_FORMAT.to_owned(), at: clock::now().at, event };
        let mut text = serde_json::to_string(&line)
            .expect("events are structs, lists and numbers, which JSON can represent");
        text.push('\n');
        // A closed output is no reason to leave nodes partly measured.
        if let Err(error) = stdout::write_document(text.as_bytes()) {
            self.lost.get_or_insert(error);
        }
    }
}
