//! Faults of a real Kubernetes: its API server and etcd are killed, hung and restarted in the
//! middle of turns, answers are lost, and operators edit nodes meanwhile. The nodes are measured
//! in a simulated fabric; the updates are real.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard};
use std::time::{Duration, Instant};

use engine::policy::drain_reason;
use rustix::process::Signal;
use serde_json::{Value, json};

use super::daemons::{Daemons, Kept};
use super::proxy::{Call, InjectedFault as ProxyFault, Proxy};
use super::storm::episode::Episode;
use super::storm::fates::Victim;
use super::storm::hand::Edit;
use super::storm::log::Log;
use super::storm::model::{By, DRAIN, Entry, Fields, Order, What};
use super::storm::world::{Domains, FaultPlan, InjectedFault, World};
use super::turns::{Admin, now};
use super::{lab, storm};

/// Episodes of the ordinary test command: each takes most of a minute.
const RUNS: u64 = 1;

/// Time limit for servers to be back: an API server that finds no store ends only after a while.
const BACK: Duration = Duration::from_secs(120);

const NODES: &str = "/api/v1/nodes";
const TAINT: &str = "fabricgate.io/degraded";
const REASON: &str = "fabricgate.io/reason";

fn fields(node: &Value) -> Fields {
    let mut fields = Fields::new();
    let own = |key: &str| if key.starts_with("fabricgate.io/") { "own/" } else { "" };
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    let reason = node["metadata"]["annotations"][REASON].as_str();
    let taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let is_drain = |it: &Value| it["key"] == TAINT && it["effect"] == "NoSchedule";
    let drained = reason.filter(|_| taints.iter().any(is_drain));
    if let Some(reason) = drained {
        fields.insert(DRAIN.to_owned(), reason.to_owned());
    }
    for taint in &taints {
        if is_drain(taint) {
            // Only a person may remove half a drain.
            if drained.is_none() {
                fields.insert("taint/half a drain:NoSchedule".to_owned(), text(&taint["value"]));
            }
            continue;
        }
        let key = text(&taint["key"]);
        let name = format!("{}taint/{key}:{}", own(&key), text(&taint["effect"]));
        fields.insert(name, text(&taint["value"]));
    }
    for kind in ["labels", "annotations"] {
        for (key, value) in node["metadata"][kind].as_object().into_iter().flatten() {
            if key != REASON || drained.is_none() {
                fields.insert(format!("{}{kind}/{key}", own(key)), text(value));
            }
        }
    }
    for condition in node["status"]["conditions"].as_array().into_iter().flatten() {
        let kind = text(&condition["type"]);
        let own = if kind == "GpuFabricVerified" { "own/" } else { "" };
        let message = format!("{} {}", text(&condition["status"]), text(&condition["reason"]));
        fields.insert(format!("{own}condition/{kind}"), message);
    }
    if node["spec"]["unschedulable"] == true {
        fields.insert("unschedulable".to_owned(), "true".to_owned());
    }
    fields
}

/// A merge patch (RFC 7386) on a document.
fn merged(document: &mut Value, patch: &Value) {
    let Some(entries) = patch.as_object() else {
        *document = patch.clone();
        return;
    };
    if !document.is_object() {
        *document = json!({});
    }
    for (key, value) in entries {
        if value.is_null() {
            document.as_object_mut().expect("an object").remove(key);
        } else {
            merged(&mut document[key.as_str()], value);
        }
    }
}

/// A patch of a node as an order. The type identifies a condition.
fn order(node: &Value, patch: &Value) -> Order {
    let mut after = node.clone();
    let mut patch = patch.clone();
    if let Some(new) = patch["status"]["conditions"].as_array().cloned() {
        let mut all = node["status"]["conditions"].as_array().cloned().unwrap_or_default();
        all.retain(|it| new.iter().all(|own| own["type"] != it["type"]));
        all.extend(new);
        patch["status"]["conditions"] = json!(all);
    }
    merged(&mut after, &patch);
    let (before, after) = (fields(node), fields(&after));
    let unset = before.keys().filter(|key| !after.contains_key(*key)).cloned().collect();
    let set = after.into_iter().filter(|(key, value)| before.get(key) != Some(value)).collect();
    Order { unset, set }
}

/// A person's edit as a patch of the node as it is.
fn patch(node: &Value, edit: &Edit) -> Value {
    let annotations = &node["metadata"]["annotations"];
    let mut taints = node["spec"]["taints"].as_array().cloned().unwrap_or_default();
    let mut with = |taint: Value| {
        taints.retain(|it| it["key"] != taint["key"] || it["effect"] != taint["effect"]);
        taints.push(taint);
        taints.clone()
    };
    match edit {
        Edit::Drain(reason) if reason.starts_with("fabricgate:") => {
            let taint = json!({"key": TAINT, "value": "nvlink-low", "effect": "NoSchedule"});
            json!({"metadata": {"annotations": {REASON: reason}}, "spec": {"taints": with(taint)}})
        }
        Edit::Drain(_) => json!({"spec": {"unschedulable": true}}),
        Edit::Append => match annotations[REASON].as_str() {
            Some(is) => json!({"metadata": {"annotations": {REASON: format!("{is} : mine, jo")}}}),
            None => json!({}),
        },
        Edit::Resume => {
            taints.retain(|it| it["key"] != TAINT);
            json!({"spec": {"taints": taints, "unschedulable": null}})
        }
        Edit::Down(_) => {
            // A taint that marks a node as out, without a value.
            let key = "node.kubernetes.io/out-of-service";
            let taint = json!({"key": key, "value": "dimm", "effect": "NoSchedule"});
            json!({"spec": {"taints": with(taint)}})
        }
        Edit::Comment => json!({"metadata": {"annotations": {"example.com/note": "bay 7"}}}),
        Edit::Entry => json!({"metadata": {"labels": {"example.com/asset": "12"}}}),
        Edit::Text => json!({"metadata": {"annotations": {"fabricgate.io/certificate": null}}}),
        Edit::Feature => json!({"metadata": {"labels": {"fabricgate.io/verdict": "mine"}}}),
    }
}

struct State {
    log: Log,
    victims: BTreeMap<u32, Victim>,
    fault_plan: FaultPlan,
    /// Copies of the store, oldest first.
    copies: Vec<PathBuf>,
}

/// State that the proxy's rule and the world share.
#[derive(Clone)]
struct Shared {
    state: Arc<Mutex<State>>,
    /// Locked while nodes are read for the log, or changed by a person: the log is in the order
    /// of the readings.
    order: Arc<Mutex<()>>,
    kubeconfig: PathBuf,
    site: PathBuf,
    names: Vec<String>,
    daemons: Daemons,
}

/// A real Kubernetes behind a proxy that records.
struct Cluster {
    shared: Shared,
    begin: BTreeMap<String, Fields>,
    proxy: Proxy,
    folder: PathBuf,
    kept: Kept,
}

impl Shared {
    fn state(&self) -> MutexGuard<'_, State> {
        held(&self.state)
    }

    /// A node as it is; `None` where the server does not answer. Runs in its own thread: the
    /// caller may be inside a runtime.
    fn node(&self, name: &str) -> Option<Value> {
        let (kubeconfig, path) = (self.kubeconfig.clone(), format!("{NODES}/{name}"));
        let asking = std::thread::spawn(move || now(Admin::of(&kubeconfig).try_get(&path)));
        asking.join().ok().flatten()
    }

    fn look(&self, by: Option<By>) {
        let _order = held(&self.order);
        let seen = |name: &String| Some((name.clone(), fields(&self.node(name)?)));
        // A server without an answer to the first request gets no seven others.
        let seen: BTreeMap<String, Fields> = self.names.iter().map_while(seen).collect();
        self.state().log.seen(by, &seen);
    }

    /// A person changes a node, or finds no server. Also in its own thread. A write of another
    /// client in between is kept.
    fn by_hand(&self, name: &str, edit: &Edit) -> bool {
        let _order = held(&self.order);
        for _ in 0..5 {
            let Some(node) = self.node(name) else { return false };
            let before = BTreeMap::from([(name.to_owned(), fields(&node))]);
            self.state().log.seen(None, &before);
            let mut patch = patch(&node, edit);
            patch["metadata"]["resourceVersion"] = node["metadata"]["resourceVersion"].clone();
            let (kubeconfig, path) = (self.kubeconfig.clone(), format!("{NODES}/{name}"));
            let writing =
                std::thread::spawn(move || now(Admin::of(&kubeconfig).try_patch(&path, &patch)));
            if let Some(node) = writing.join().ok().flatten() {
                let now = BTreeMap::from([(name.to_owned(), fields(&node))]);
                self.state().log.seen(Some(By::Hand), &now);
                return true;
            }
        }
        false
    }

    fn kill(&self) {
        for victim in self.state().victims.values() {
            victim.signal(Signal::KILL);
        }
    }

    /// Records a patch that is about to be forwarded; false where it cannot be.
    fn note(&self, call: &Call) -> bool {
        let _order = held(&self.order);
        let Some(name) = node_of(call) else { return true };
        let Some(node) = self.node(&name) else { return false };
        let patch: Value = serde_json::from_str(&call.body).unwrap_or_default();
        let version = &patch["metadata"]["resourceVersion"];
        if !version.is_null() && *version != node["metadata"]["resourceVersion"] {
            // The server refuses it.
            return true;
        }
        let order = order(&node, &patch);
        let journal = fs::metadata(self.site.join("gate/journal.jsonl")).map_or(0, |it| it.len());
        let run =
            order.set.get(DRAIN).and_then(|it| drain_reason::parse_reason(it)).map(|own| own.run);
        let verdicts = run.map(|run| self.site.join("runs").join(run).join("verdicts.json"));
        let evidence = verdicts.is_none_or(|file| file.is_file());
        let mut state = self.state();
        state.log.read(1, BTreeMap::from([(name.clone(), fields(&node))]));
        state.log.record_sent(1, vec![name], order, journal, evidence);
        true
    }

    /// The fate of a request.
    fn rule(&self, call: &Call) -> ProxyFault {
        let fault = self.state().fault_plan.next();
        let fault = match fault {
            Some(late @ (InjectedFault::Late(_) | InjectedFault::HandAfter(..)))
                if call.method != "PATCH" =>
            {
                self.state().fault_plan.postpone(late);
                None
            }
            fault => fault,
        };
        let is_heard = !matches!(
            fault,
            Some(
                InjectedFault::KillBefore
                    | InjectedFault::Late(_)
                    | InjectedFault::Lost
                    | InjectedFault::Refused
                    | InjectedFault::Hand(..)
            )
        );
        if call.method == "PATCH" && is_heard && !self.note(call) {
            return ProxyFault::Lost;
        }
        let own = self.clone();
        match fault {
            None => ProxyFault::Fine,
            Some(InjectedFault::KillBefore) => {
                self.kill();
                ProxyFault::Lost
            }
            Some(InjectedFault::Orphan) => {
                self.kill();
                ProxyFault::Fine
            }
            Some(InjectedFault::Late(time)) => {
                self.kill();
                let call = call.clone();
                ProxyFault::Late(time, Box::new(move || own.note(&call)))
            }
            Some(InjectedFault::HandAfter(time, edit)) => match node_of(call) {
                Some(name) => ProxyFault::FineThen(Box::new(move || {
                    std::thread::sleep(time);
                    own.by_hand(&name, &edit);
                })),
                None => ProxyFault::Fine,
            },
            Some(InjectedFault::KillAfter) => {
                ProxyFault::LostAnswerThen(Box::new(move || own.kill()))
            }
            Some(InjectedFault::Lost) => ProxyFault::Lost,
            Some(InjectedFault::LostAnswer | InjectedFault::RefusedAfter | InjectedFault::Torn) => {
                ProxyFault::LostAnswer
            }
            Some(InjectedFault::Refused) => ProxyFault::Answer(500, Vec::new()),
            Some(InjectedFault::Slow(time)) => ProxyFault::Slow(time),
            Some(InjectedFault::Hand(name, edit)) => {
                // The request now meets the node as that person left it.
                let is_done = self.by_hand(&name, &edit);
                let is_patch = call.method == "PATCH";
                if !is_done || is_patch && !self.note(call) {
                    ProxyFault::Lost
                } else {
                    ProxyFault::Fine
                }
            }
            Some(InjectedFault::Crash(away, forgets)) => {
                // The dice decide between the two as well.
                let at = usize::from(forgets.as_millis() % 2 == 1);
                ProxyFault::LostAnswerThen(Box::new(move || own.daemons.crash(at, away)))
            }
            Some(InjectedFault::Hang(time)) => {
                self.daemons.hang(usize::from(time.as_millis() % 2 == 1), time);
                ProxyFault::Fine
            }
        }
    }
}

/// The node that a request is about.
fn node_of(call: &Call) -> Option<String> {
    let path = call.path.split('?').next().unwrap_or_default();
    path.strip_prefix(NODES).and_then(|it| it.split('/').nth(1)).map(str::to_owned)
}

fn held<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Cluster {
    fn start(lab: &Path, folder: &Path, site: &Path, domains: &Domains) -> Self {
        let kubeconfig = lab.join("admin.kubeconfig");
        let admin = Admin::of(&kubeconfig);
        let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id").expect("a boot");
        let names: Vec<String> = domains.iter().flat_map(|(_, nodes)| nodes).cloned().collect();
        let mut begin = BTreeMap::new();
        for name in &names {
            now(admin.make(name));
            // Workers of the simulated fabric report the boot of this machine.
            let boot = json!({"status": {"nodeInfo": {"bootID": boot.trim()}}});
            now(admin.patch(&format!("{NODES}/{name}/status"), &boot));
            begin.insert(name.clone(), fields(&now(admin.node(name))));
        }
        let state = State {
            log: Log::of(begin.clone()),
            victims: BTreeMap::new(),
            fault_plan: FaultPlan::default(),
            copies: Vec::new(),
        };
        let kept = Daemons::kept(lab);
        let daemons = kept.clone();
        let state = Arc::new(Mutex::new(state));
        let site = site.to_owned();
        let order = Arc::default();
        let shared = Shared { state, order, kubeconfig: kubeconfig.clone(), site, names, daemons };
        let proxy = Proxy::to(&kubeconfig, folder);
        let own = shared.clone();
        proxy.inject(move |call| own.rule(call));
        Self { shared, begin, proxy, folder: folder.to_owned(), kept }
    }
}

impl Cluster {
    /// Waits until every node is reported.
    fn answers(&self) {
        let begun = Instant::now();
        // One after the other: the first request waits for a missing server, the others need not.
        while !self.shared.names.iter().all(|name| self.shared.node(name).is_some()) {
            assert!(begun.elapsed() < BACK, "no answer in {BACK:?}\n{}", self.kept.last_words());
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    /// Copies the current store, for a later moment at which it is restored.
    fn copy(&self) {
        let mut state = self.shared.state();
        let to = self.folder.join(format!("store-{}", state.copies.len()));
        self.kept.copy(&to);
        state.copies.push(to);
    }
}

impl World for Cluster {
    fn begin(&self) -> BTreeMap<String, Fields> {
        self.begin.clone()
    }

    fn gate(&self, _site: &Path, _command: u32) -> String {
        let kubeconfig = self.folder.join("admin.proxy.kubeconfig");
        format!(
            "[gate]\nthrough = \"kubernetes\"\nlimit_s = 5\nsettle_s = 3\nkeep_s = 1\n\
             in_flight_s = {}\n[gate.kubernetes]\nkubeconfig = {kubeconfig:?}\n",
            self.in_flight().as_secs()
        )
    }

    fn expect(&self, fault: BTreeMap<usize, InjectedFault>) {
        self.proxy.quiet();
        self.shared.state().fault_plan = FaultPlan::of(fault);
    }

    fn met(&self) -> Vec<String> {
        self.shared.state().fault_plan.met.clone()
    }

    fn questions(&self) -> usize {
        16
    }

    fn begins(&self, command: u32, victim: Victim) {
        if self.shared.state().victims.is_empty() {
            self.copy();
        }
        self.shared.state().victims.insert(command, victim);
    }

    fn forgets(&self) -> bool {
        // Requests in flight then rest on a newer state than the old store has.
        self.quiet();
        self.mend();
        let copies = self.shared.state().copies.clone();
        // The whole record, or its end.
        let copy = if copies.len().is_multiple_of(2) { copies.first() } else { copies.last() };
        let Some(copy) = copy else { return false };
        self.kept.put_back(copy);
        self.answers();
        self.shared.look(Some(By::Fate));
        true
    }

    fn quiet(&self) {
        while self.proxy.is_late() {
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    fn restored(&self) -> bool {
        self.shared.state().log.entries.push(Entry { by: By::Hand, what: What::Restored });
        true
    }

    fn is_late(&self) -> bool {
        true
    }

    fn latest(&self) -> Duration {
        Duration::from_secs(storm::number("FABRICGATE_CHAOS_LATE_S", 20))
    }

    // A change is delayed per request; with the server's own delays it takes longer.
    fn in_flight(&self) -> Duration {
        self.latest() + Duration::from_secs(10)
    }

    fn over(&self, command: u32) {
        self.shared.state().victims.remove(&command);
    }

    fn edit(&self, name: &str, edit: &Edit) {
        // A person retries when no server answers.
        for _ in 0..20 {
            if self.shared.by_hand(name, edit) {
                return;
            }
            std::thread::sleep(Duration::from_millis(200));
        }
    }

    fn mend(&self) {
        self.kept.calm();
        self.answers();
        self.proxy.quiet();
        self.shared.look(None);
    }

    fn needs_workers(&self) -> bool {
        true
    }

    fn log(&self) -> Vec<Entry> {
        self.shared.look(None);
        self.shared.state().log.entries.clone()
    }
}

#[test]
fn under_every_fault_of_kubernetes_the_gate_keeps_its_invariants() {
    let Some(lab) = lab::own_lab(&[("FABRICGATE_LAB_BARE", "1")]) else { return };
    let names = |prefix: &str| (1..=4).map(|at| format!("chaos-{prefix}{at}")).collect();
    let domains: Domains = vec![("d1".to_owned(), names("a")), ("d2".to_owned(), names("b"))];
    storm::play("ci/lab-kubernetes test", RUNS, 1, |seed| {
        Episode::new(seed, domains.clone(), |folder, site| {
            Box::new(Cluster::start(&lab.folder, folder, site, &domains)) as Box<dyn World>
        })
    });
}
