//! Evictions after a turn, where a person asked for them: what would leave, or
//! what left and what did not.
//!
//! Which pods may be asked, `act::evict` decides, and `gate` asks them; here that
//! is told.

use std::collections::BTreeMap;
use std::time::Duration;

use tokio::sync::watch;

use super::config::Config;
use super::failure::CommandError;
use super::gating::GateBackend;
use super::stdout::note;
use super::{acting, exit};
use control::gate::journal::Journal;
use control::gate::kubernetes::evict::{Asking, Emptying};
use control::gate::kubernetes::{Fence, Kubernetes as Cluster, evict};
use control::gate::turn::Turned;
use control::sources::kubernetes::connection;
use control::sources::kubernetes::connection::ResponseReadLimit;
use control::sweep::signals::Signals;
use model::action::{Action, ActionKind};
use model::eviction::{EvictionResult, NodeEviction};
use model::id::NodeName;

/// Asks pods to leave the nodes that we drained, or without `apply` tells which
/// would be asked. A failure is told of every node: the turn before it stands.
pub fn after(config: &Config, turned: &Turned, apply: bool) -> Vec<NodeEviction> {
    let evictions = asked(config, turned, apply).unwrap_or_else(|failure| {
        let refused = Some(failure.to_string());
        let of = |node: &NodeName| NodeEviction {
            node: node.clone(),
            refused: refused.clone(),
            pods: Vec::new(),
        };
        turned.ledger.drains.keys().map(of).collect()
    });
    for eviction in &evictions {
        tell(eviction);
    }
    evictions
}

fn asked(config: &Config, turned: &Turned, apply: bool) -> Result<Vec<NodeEviction>, CommandError> {
    let gate = acting::require_gate(config)?;
    let GateBackend::Kubernetes(server) = &gate.backend else {
        note("evict: jobs of Slurm end by themselves; only Kubernetes has evictions");
        return Ok(Vec::new());
    };
    let cluster = Cluster::new(server.clone());
    let fence = acting::term_fence(server);
    let (stopper, stop) = watch::channel(false);
    let emptying = async {
        let access = connection::connect(server, ResponseReadLimit::Bounded).await;
        let client = access.map_err(|problem| CommandError::Environment(problem.message))?.client;
        let asking = Asking {
            client: &client,
            scheduler: &cluster,
            fence: fence.as_ref().map(|it| it as &dyn Fence),
        };
        if !apply {
            return Ok(evict::look(asking, &turned.ledger, &proposed(turned)).await);
        }
        let mut journal = Journal::open(&gate.folder).map_err(CommandError::environment)?;
        let patience = Duration::try_from_secs_f64(config.policy.evict_s);
        let mut say = |text: &str| note(text);
        let emptied = evict::empty(Emptying {
            asking,
            journal: &mut journal,
            patience: patience.unwrap_or(Duration::MAX),
            stop,
            say: &mut say,
        });
        emptied.await.map_err(CommandError::environment)
    };
    super::build_runtime()?.block_on(async {
        let mut signals = Signals::listen();
        let mut emptying = std::pin::pin!(emptying);
        loop {
            tokio::select! {
                emptied = &mut emptying => break emptied,
                name = signals.next() => {
                    note(&format!("{name}: asking no more pods to leave"));
                    stopper.send_replace(true);
                }
            }
        }
    })
}

/// The nodes that would be drained, with the value that our taint would have.
fn proposed(turned: &Turned) -> BTreeMap<NodeName, String> {
    let drains = turned.plan.actions.iter().filter(|action| action.kind == ActionKind::Drain);
    let class = |action: &Action| {
        action
            .mark
            .as_ref()
            .and_then(|it| it.class.as_ref())
            .map(ToString::to_string)
            .unwrap_or_default()
    };
    drains.map(|action| (action.node.clone(), class(action))).collect()
}

fn tell(eviction: &NodeEviction) {
    if let Some(why) = &eviction.refused {
        note(&format!("evict: {}: no pod is asked to leave: {why}", eviction.node));
    }
    for pod in &eviction.pods {
        let how = match pod.result {
            EvictionResult::Proposed => "would be asked to leave",
            EvictionResult::Gone => "is gone",
            EvictionResult::Ending => "ends",
            EvictionResult::Kept => "is not asked to leave",
            EvictionResult::Left => "stays",
            EvictionResult::Unknown => "may or may not leave",
        };
        let why = if pod.detail.is_empty() { String::new() } else { format!(": {}", pod.detail) };
        note(&format!("evict: {}: {} {how}{why}", eviction.node, pod.pod));
    }
}

/// The exit code of evictions: whether all that were asked to leave do.
pub fn code(evictions: &[NodeEviction]) -> u8 {
    let stays = |result| matches!(result, EvictionResult::Left | EvictionResult::Unknown);
    let is_partly = |eviction: &NodeEviction| {
        eviction.refused.is_some() || eviction.pods.iter().any(|pod| stays(pod.result))
    };
    if evictions.iter().any(is_partly) { exit::ACTION_REFUSED } else { exit::PASS }
}
