//! Asks pods to leave nodes that we drained, through Kubernetes' eviction, which
//! keeps disruption budgets. Only where a person asked for that.
//!
//! Never deletes a pod, never forces one, and gives up in a bounded time with a
//! reason for each that stays. Which may be asked, `act::evict` says.

use std::collections::BTreeMap;
use std::time::Duration;

use k8s_openapi::api::core::v1::Pod;
use kube::api::{DeleteParams, EvictParams, ListParams, Preconditions};
use kube::{Api, Client};
use tokio::sync::watch;
use tokio::time::Instant;

use super::Fence;
use crate::gate::journal::{Journal, JournalError};
use crate::gate::scheduler::Scheduler;
use crate::sources::kubernetes::connection::refusal_problem;
use engine::policy::evict;
use engine::policy::evict::{Choice, Target};
use engine::policy::journal_state::JournalState;
use model::eviction::{EvictionResult, NodeEviction, PodEviction};
use model::id::NodeName;
use model::journal::JournalEvent;
use model::kubernetes_node::{DEGRADED, NO_SCHEDULE, Taint};
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::text::clean;

/// Between two rounds of asking, where the server names no time.
const PAUSE: Duration = Duration::from_secs(2);

/// The longest that a server's own word about when to ask again is heeded.
const LONGEST_PAUSE: Duration = Duration::from_secs(30);

/// Whoever is patient for longer asks again with the next run; and no moment lies
/// beyond what clocks have.
const LONGEST_PATIENCE: Duration = Duration::from_secs(86_400);

/// The words by which the server says that a pod has several disruption budgets,
/// which its eviction does not do (`pkg/registry/core/pod/storage/eviction.go`,
/// a status 500 without a reason).
const SEVERAL: &str = "more than one PodDisruptionBudget";

/// Whom to ask about pods and nodes.
#[derive(Clone, Copy)]
#[expect(missing_debug_implementations, reason = "the client has none")]
pub struct Asking<'a> {
    /// The server.
    pub client: &'a Client,
    /// What the gate reads nodes through.
    pub scheduler: &'a dyn Scheduler,
    /// Whether it is still ours to ask pods, where several instances are.
    pub fence: Option<&'a dyn Fence>,
}

impl Asking<'_> {
    /// Why nobody is asked to leave now.
    async fn fenced(&self) -> Result<(), String> {
        let Some(fence) = self.fence else { return Ok(()) };
        fence.holds().await.map_err(|error| format!("it was not asked: {error}"))
    }
}

/// How nodes are emptied.
#[expect(missing_debug_implementations, reason = "it lends whom to tell")]
pub struct Emptying<'a> {
    /// Who is asked.
    pub asking: Asking<'a>,
    /// Where it is written down; its lock makes us the one gate.
    pub journal: &'a mut Journal,
    /// How long to keep asking for what a budget holds back.
    pub patience: Duration,
    /// Turns true where nothing more is to be begun.
    pub stop: watch::Receiver<bool>,
    /// Whom to tell how far it is.
    pub say: &'a mut dyn FnMut(&str),
}

/// What would be asked to leave the nodes that we drained, and those that would
/// be drained, each with the value of its taint; asks nobody to.
pub async fn look(
    asking: Asking<'_>,
    ledger: &JournalState,
    proposed: &BTreeMap<NodeName, String>,
) -> Vec<NodeEviction> {
    let mut evictions = Vec::new();
    let mut all = found(asking, ledger).await;
    for (node, class) in proposed.iter().filter(|(node, _)| !ledger.drains.contains_key(*node)) {
        all.push((node.clone(), chosen(asking.client, node, class).await));
    }
    for (node, found) in all {
        evictions.push(match found {
            Ok(choice) => {
                let mut eviction = told(&node, &choice);
                let go = choice.go.iter();
                eviction.pods.extend(go.map(|pod| of(pod, EvictionResult::Proposed, "")));
                eviction
            }
            Err(why) => NodeEviction { node, refused: Some(why), pods: Vec::new() },
        });
    }
    evictions
}

/// Asks the pods of all nodes that we drained to leave, and looks whether they
/// do.
pub async fn empty(mut it: Emptying<'_>) -> Result<Vec<NodeEviction>, JournalError> {
    let mut nodes = Vec::new();
    let mut evictions = Vec::new();
    for (node, found) in found(it.asking, it.journal.ledger()).await {
        match found {
            Ok(choice) if choice.go.is_empty() => evictions.push(told(&node, &choice)),
            Ok(choice) => {
                let pods = choice.go.iter().map(Target::shown).collect();
                it.journal.write(JournalEvent::Evicting { node: node.clone(), pods })?;
                nodes.push(Leaving::of(node, choice));
            }
            Err(why) => evictions.push(NodeEviction { node, refused: Some(why), pods: Vec::new() }),
        }
    }
    let until = Instant::now() + it.patience.min(LONGEST_PATIENCE);
    loop {
        let pause = round(&mut it, &mut nodes).await;
        let is_over = nodes.iter().all(|node| node.waiting.is_empty() && node.asked.is_empty());
        if is_over || *it.stop.borrow() || until <= Instant::now() {
            break;
        }
        let mut stop = it.stop.clone();
        let pause = pause.min(until.saturating_duration_since(Instant::now()));
        tokio::select! {
            () = tokio::time::sleep(pause) => {}
            // Where nobody is left who could say stop, the time alone counts.
            Ok(_) = stop.wait_for(|stop| *stop) => {}
        }
    }
    for node in nodes {
        let eviction = node.concluded();
        it.journal.write(JournalEvent::Evicted { eviction: eviction.clone() })?;
        evictions.push(eviction);
    }
    evictions.sort_by(|a, b| a.node.cmp(&b.node));
    Ok(evictions)
}

/// One node while its pods leave.
struct Leaving {
    node: NodeName,
    /// To be asked, with what was said the last time.
    waiting: BTreeMap<Target, (EvictionResult, String)>,
    /// Told to end, and still there.
    asked: BTreeMap<Target, String>,
    done: Vec<PodEviction>,
}

impl Leaving {
    fn of(node: NodeName, choice: Choice) -> Self {
        let done = told(&node, &Choice { ending: Vec::new(), ..choice.clone() }).pods;
        let asked = choice.ending.into_iter().map(|pod| (pod, "it was ending already".to_owned()));
        let waiting = choice.go.into_iter().map(|pod| (pod, (EvictionResult::Left, String::new())));
        Self { node, waiting: waiting.collect(), asked: asked.collect(), done }
    }

    fn concluded(mut self) -> NodeEviction {
        for (pod, (result, words)) in self.waiting {
            let words = if words.is_empty() { "it was not asked: we were stopped" } else { &words };
            self.done.push(of(&pod, result, words));
        }
        for (pod, words) in self.asked {
            self.done.push(of(&pod, EvictionResult::Ending, &words));
        }
        self.done.sort_by(|a, b| a.pod.cmp(&b.pod));
        NodeEviction { node: self.node, refused: None, pods: self.done }
    }
}

/// Asks every pod that is left once, and looks which are gone. Gives how long to
/// wait until the next time.
async fn round(it: &mut Emptying<'_>, nodes: &mut [Leaving]) -> Duration {
    let mut pause = PAUSE;
    let names: Vec<NodeName> = nodes
        .iter()
        .filter(|node| !(node.waiting.is_empty() && node.asked.is_empty()))
        .map(|node| node.node.clone())
        .collect();
    let live = it.asking.scheduler.read(&names).await;
    for leaving in nodes.iter_mut().filter(|node| names.contains(&node.node)) {
        // Our drain may have been lifted since: then they may stay.
        let may = match &live {
            Ok(live) => drained(live, &leaving.node, it.journal.ledger()).map(|_| ()),
            Err(error) => Err(format!("the node cannot be read: {error}")),
        };
        for (pod, said) in std::mem::take(&mut leaving.waiting) {
            if *it.stop.borrow() {
                leaving.waiting.insert(pod, said);
                continue;
            }
            if let Err(why) = &may {
                leaving.waiting.insert(pod, (said.0, why.clone()));
                continue;
            }
            if let Err(why) = it.asking.fenced().await {
                leaving.waiting.insert(pod, (said.0, why));
                continue;
            }
            match ask(it.asking.client, &pod).await {
                Answer::Accepted => {
                    (it.say)(&format!("{}: {} was told to end", leaving.node, pod.shown()));
                    leaving.asked.insert(pod, "it was told to end".to_owned());
                }
                Answer::Gone => leaving.done.push(of(&pod, EvictionResult::Gone, "")),
                Answer::Never(why) => leaving.done.push(of(&pod, EvictionResult::Left, &why)),
                Answer::Later(why, after) => {
                    pause = pause.max(after.min(LONGEST_PAUSE));
                    leaving.waiting.insert(pod, (EvictionResult::Left, why));
                }
                Answer::Unknown(why) => {
                    drop(leaving.waiting.insert(pod, (EvictionResult::Unknown, why)));
                }
            }
        }
        look_again(it.asking.client, leaving).await;
    }
    pause
}

/// Which of a node's pods are gone, or end though nobody answered us.
async fn look_again(client: &Client, leaving: &mut Leaving) {
    let Ok(pods) = pods_on(client, &leaving.node).await else { return };
    let there: BTreeMap<&str, &Pod> = pods
        .iter()
        .filter(|pod| !readers::claims::kubernetes::pods::has_ended(pod))
        .filter_map(|pod| Some((pod.metadata.uid.as_deref()?, pod)))
        .collect();
    let done = &mut leaving.done;
    leaving.asked.retain(|pod, _| {
        let is_there = there.contains_key(pod.uid.as_str());
        if !is_there {
            done.push(of(pod, EvictionResult::Gone, ""));
        }
        is_there
    });
    for (pod, said) in std::mem::take(&mut leaving.waiting) {
        match there.get(pod.uid.as_str()) {
            None => done.push(of(&pod, EvictionResult::Gone, "")),
            Some(seen) if seen.metadata.deletion_timestamp.is_some() => {
                drop(leaving.asked.insert(pod, "it ends".to_owned()));
            }
            Some(_) => drop(leaving.waiting.insert(pod, said)),
        }
    }
}

/// What a server makes of one eviction.
#[derive(Debug, PartialEq)]
enum Answer {
    Accepted,
    Gone,
    /// Refused, and again tomorrow.
    Never(String),
    /// Refused now; how long the server would like to be left alone.
    Later(String, Duration),
    /// No answer: it may have been done.
    Unknown(String),
}

/// Asks one pod to leave: this very one, and not another of its name.
async fn ask(client: &Client, pod: &Target) -> Answer {
    let api: Api<Pod> = Api::namespaced(client.clone(), &pod.namespace);
    let preconditions = Preconditions { uid: Some(pod.uid.clone()), resource_version: None };
    let delete = DeleteParams { preconditions: Some(preconditions), ..DeleteParams::default() };
    let with = EvictParams { delete_options: Some(delete), ..EvictParams::default() };
    match api.evict(&pod.name, &with).await {
        Ok(_) => Answer::Accepted,
        Err(error) => answer(&error),
    }
}

/// What a refusal means for the pod.
fn answer(error: &kube::Error) -> Answer {
    let words = refusal_problem(error).1;
    let kube::Error::Api(status) = error else { return Answer::Unknown(words) };
    match status.code {
        404 => Answer::Gone,
        429 => {
            let details = status.details.as_ref();
            let causes = details.iter().flat_map(|details| &details.causes);
            let budget: Vec<String> = causes
                .filter(|cause| cause.reason == "DisruptionBudget")
                .map(|cause| clean(&cause.message))
                .collect();
            let after = details.map_or(0, |details| details.retry_after_seconds);
            let words = if budget.is_empty() {
                words
            } else {
                format!("a disruption budget holds it: {}", budget.join("; "))
            };
            Answer::Later(words, Duration::from_secs(u64::from(after)))
        }
        // Another pod has its name now, or its budget was written meanwhile;
        // which, the list of pods says.
        409 => Answer::Later(words, Duration::ZERO),
        500 if status.message.contains(SEVERAL) => Answer::Never(format!(
            "it has more than one disruption budget, which eviction does not do: {words}"
        )),
        // It may have gone on with it.
        500..=599 => Answer::Unknown(words),
        _ => Answer::Never(words),
    }
}

/// What is to be done about the pods of every node that we drained.
async fn found(
    asking: Asking<'_>,
    ledger: &JournalState,
) -> Vec<(NodeName, Result<Choice, String>)> {
    let nodes: Vec<NodeName> = ledger.drains.keys().cloned().collect();
    if nodes.is_empty() {
        return Vec::new();
    }
    let live = match asking.scheduler.read(&nodes).await {
        Ok(live) => live,
        Err(error) => {
            let why = format!("the node cannot be read: {error}");
            return nodes.into_iter().map(|node| (node, Err(why.clone()))).collect();
        }
    };
    let mut found = Vec::new();
    for node in nodes {
        let choice = match drained(&live, &node, ledger) {
            Ok(seen) => chosen(asking.client, &node, class(seen)).await,
            Err(why) => Err(why),
        };
        found.push((node, choice));
    }
    found
}

/// What is to be done about the pods of one node.
async fn chosen(client: &Client, node: &NodeName, class: &str) -> Result<Choice, String> {
    let pods = pods_on(client, node).await;
    let pods =
        pods.map_err(|error| format!("its pods cannot be read: {}", refusal_problem(&error).1))?;
    Ok(evict::choose(&pods, class))
}

/// The node as it is shown, where its pods may be asked to leave.
fn drained<'l>(
    live: &'l SchedulerSnapshot,
    node: &NodeName,
    ledger: &JournalState,
) -> Result<&'l SchedulerNode, String> {
    let seen = live.nodes.get(node).ok_or("the cluster does not know it")?;
    evict::drained(seen, ledger).map(|_| seen)
}

/// The value of the taint of our drain; a mark has the same key.
fn class(node: &SchedulerNode) -> &str {
    let taints = node.kubernetes.iter().flat_map(|node| &node.taints);
    let is_drain = |taint: &&Taint| taint.key == DEGRADED && taint.effect == NO_SCHEDULE;
    taints.into_iter().find(is_drain).map_or("", |taint| &taint.value)
}

/// All pods of a node. There are some hundred at most: kubelets run 110 by
/// default.
async fn pods_on(client: &Client, node: &NodeName) -> Result<Vec<Pod>, kube::Error> {
    let api: Api<Pod> = Api::all(client.clone());
    let there = ListParams::default().fields(&format!("spec.nodeName={node}"));
    Ok(api.list(&there).await?.items)
}

/// What is said of a node's pods before any is asked.
fn told(node: &NodeName, choice: &Choice) -> NodeEviction {
    let stay = choice.stay.iter().map(|(pod, why)| PodEviction {
        pod: pod.clone(),
        result: EvictionResult::Kept,
        detail: why.clone(),
    });
    let ending = choice.ending.iter();
    let ending = ending.map(|pod| of(pod, EvictionResult::Ending, "it was ending already"));
    NodeEviction { node: node.clone(), refused: None, pods: stay.chain(ending).collect() }
}

fn of(pod: &Target, result: EvictionResult, words: &str) -> PodEviction {
    PodEviction { pod: pod.shown(), result, detail: words.to_owned() }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    #[test]
    fn the_class_is_that_of_the_drain_and_not_of_a_mark_beside_it() {
        let taint = |effect: &str, value: &str| Taint {
            key: DEGRADED.to_owned(),
            value: value.to_owned(),
            effect: effect.to_owned(),
        };
        let taints = vec![taint("PreferNoSchedule", "slow"), taint(NO_SCHEDULE, "nvlink-low")];
        let mut node = SchedulerNode::new("n1", &["IDLE", "DRAIN"]);
        let kubernetes = model::kubernetes_node::KubernetesNode { taints, ..Default::default() };
        node.kubernetes = Some(Box::new(kubernetes));
        assert_eq!(class(&node), "nvlink-low");
    }

    /// The answer to a status as a 1.36.4 server sends it.
    fn of_status(status: Value) -> Answer {
        let status: kube::core::Status = serde_json::from_value(status).expect("a status");
        answer(&kube::Error::Api(Box::new(status)))
    }

    #[test]
    fn a_budget_that_holds_a_pod_is_named_and_asked_again() {
        let held = of_status(json!({"status": "Failure", "code": 429, "reason": "TooManyRequests",
            "message": "Cannot evict pod as it would violate the pod's disruption budget.",
            "details": {"causes": [{"reason": "DisruptionBudget", "message":
                "The disruption budget train needs 8 healthy pods and has 8 currently"}],
                "retryAfterSeconds": 10}}));
        let Answer::Later(words, after) = held else { panic!("{held:?}") };
        assert!(words.contains("budget train needs 8"), "{words}");
        assert_eq!(after, Duration::from_secs(10));
    }

    #[test]
    fn two_budgets_are_told_and_not_asked_again() {
        let never = of_status(json!({"status": "Failure", "code": 500, "message":
            "This pod has more than one PodDisruptionBudget, which the eviction subresource \
             does not support."}));
        assert!(matches!(never, Answer::Never(_)), "{never:?}");
        let unknown = of_status(json!({"status": "Failure", "code": 500, "message": "etcd"}));
        assert!(matches!(unknown, Answer::Unknown(_)), "{unknown:?}");
    }

    #[test]
    fn a_right_that_is_missing_is_final_and_a_pod_that_is_not_there_is_gone() {
        let of_code = |code: u16| of_status(json!({"status": "Failure", "code": code}));
        assert!(matches!(of_code(403), Answer::Never(_)));
        assert_eq!(of_code(404), Answer::Gone);
        assert!(matches!(of_code(409), Answer::Later(..)));
        assert!(matches!(of_code(503), Answer::Unknown(_)));
    }
}
