//! Deletes the objects of a run: pods first, then the objects that they used. Also, by labels
//! alone, those of runs whose process has ended.

use std::collections::BTreeMap;
use std::time::Duration;

use serde::Deserialize;
use serde_json::Value;
use tokio::time::{Instant, sleep};

use super::object_client::{ObjectCallFailure, PodObjectClient, PodObjectKind};
use crate::launch::kubernetes::manifest;
use crate::launch::kubernetes::manifest::{OWNER_ANNOTATION, UNTIL_ANNOTATION};
use model::journal::ClockStamp;
use model::kubernetes_node::RUN;
use model::text::clean;

/// The maximum time for deleted objects to disappear: the grace period of a pod, and a driver's
/// controller that removes its finalizer.
const DELETE_TIMEOUT: Duration = Duration::from_secs(60);

const POLL_INTERVAL: Duration = Duration::from_millis(500);

/// The process that needs an object, from its annotation.
#[derive(Clone, Debug, Deserialize)]
pub(crate) struct PodOwnerProcess {
    pub(crate) host: String,
    pub(crate) pid: u32,
    /// When it requested the object.
    pub(crate) stamp: ClockStamp,
}

/// The objects of a run.
#[derive(Clone, Debug, Default)]
pub(crate) struct RunObjects {
    /// The number of objects of each kind.
    counts: BTreeMap<PodObjectKind, usize>,
    pub(crate) owner: Option<PodOwnerProcess>,
    /// The time after which no run needs them, in seconds since 1970.
    pub(crate) until: Option<i64>,
}

impl RunObjects {
    /// The number of objects of each kind, as text.
    pub(crate) fn describe_counts(&self) -> String {
        let each = self.counts.iter().map(|(kind, count)| format!("{count} {}", kind.plural()));
        each.collect::<Vec<_>>().join(", ")
    }
}

/// All objects with fabricgate's label and that of a run, by run.
pub(crate) async fn list_run_objects(
    objects: &PodObjectClient,
) -> Result<BTreeMap<String, RunObjects>, String> {
    let labels = format!("{},{RUN}", manifest::managed_selector());
    let mut runs: BTreeMap<String, RunObjects> = BTreeMap::new();
    for kind in PodObjectKind::ALL {
        for object in list_kind(objects, kind, &labels).await? {
            let metadata = &object["metadata"];
            let Some(run) = metadata["labels"][RUN].as_str() else { continue };
            let left = runs.entry(run.to_owned()).or_default();
            *left.counts.entry(kind).or_default() += 1;
            let annotation = |key: &str| metadata["annotations"][key].as_str();
            if let Some(owner) =
                annotation(OWNER_ANNOTATION).and_then(|it| serde_json::from_str(it).ok())
            {
                left.owner = Some(owner);
            }
            // Objects that a controller created for fabricgate have no annotations.
            if let Some(until) = annotation(UNTIL_ANNOTATION).and_then(|it| it.parse().ok()) {
                left.until = Some(left.until.map_or(until, |it: i64| it.max(until)));
            }
        }
    }
    Ok(runs)
}

/// Objects of one kind. A kind that the cluster does not have, or that this account may not list,
/// has none: fabricgate could not have created one.
async fn list_kind(
    objects: &PodObjectClient,
    kind: PodObjectKind,
    labels: &str,
) -> Result<Vec<Value>, String> {
    if objects.served_version(kind).is_none() {
        return Ok(Vec::new());
    }
    match objects.list(kind, labels).await {
        Ok(items) => Ok(items),
        Err(refused) if refused.is_missing() => Ok(Vec::new()),
        Err(refused) if refused.is_denied() && kind != PodObjectKind::Pod => Ok(Vec::new()),
        Err(refused) => Err(describe_list_failure(kind, &refused)),
    }
}

fn describe_list_failure(kind: PodObjectKind, refused: &ObjectCallFailure) -> String {
    format!("{}: {}", kind.plural(), refused.message)
}

/// Deletes all objects of a run, in order, and waits until they have disappeared.
pub(crate) async fn delete_run_objects(
    objects: &PodObjectClient,
    run: &str,
    now: i64,
) -> Result<String, String> {
    let mut gone = Vec::new();
    for kind in PodObjectKind::ALL {
        let count = delete_kind(objects, kind, &manifest::run_selector(run), now).await?;
        if 0 < count {
            gone.push(format!("{count} {}", kind.plural()));
        }
    }
    Ok(match gone.as_slice() {
        [] => "no object of it existed".to_owned(),
        gone => format!("{} are gone", gone.join(", ")),
    })
}

/// The number of objects that existed.
async fn delete_kind(
    objects: &PodObjectClient,
    kind: PodObjectKind,
    labels: &str,
    now: i64,
) -> Result<usize, String> {
    let start = Instant::now();
    let mut count = 0;
    loop {
        let there = list_kind(objects, kind, labels).await?;
        if there.is_empty() {
            return Ok(count);
        }
        count = count.max(there.len());
        for object in there.iter().filter(|it| it["metadata"]["deletionTimestamp"].is_null()) {
            objects
                .delete(kind, object)
                .await
                .map_err(|refused| describe_list_failure(kind, &refused))?;
        }
        // Never forces a deletion: if a pod on a merely unreachable node were removed from the list
        // while it runs, the scheduler would assign its GPUs again.
        if DELETE_TIMEOUT <= start.elapsed()
            || there.iter().all(|object| is_deletion_overdue(object, now))
        {
            let names: Vec<String> = there.iter().take(5).map(object_name).collect();
            let more = there.len().saturating_sub(names.len());
            let more = if more == 0 { String::new() } else { format!(" and {more} more") };
            return Err(format!(
                "{} {}{more} are deleted but still exist (is their node or a controller down?)",
                kind.plural(),
                names.join(", ")
            ));
        }
        sleep(POLL_INTERVAL).await;
    }
}

/// Whether it was deleted so long ago that another wait is useless.
fn is_deletion_overdue(object: &Value, now: i64) -> bool {
    let at = object["metadata"]["deletionTimestamp"].as_str();
    let at = at.and_then(|at| at.parse::<jiff::Timestamp>().ok());
    let long = i64::try_from(DELETE_TIMEOUT.as_secs()).unwrap_or(i64::MAX);
    at.is_some_and(|at| at.as_second().saturating_add(long) < now)
}

fn object_name(object: &Value) -> String {
    clean(object["metadata"]["name"].as_str().unwrap_or("without a name"))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn an_object_deleted_long_ago_is_not_waited_for_again() {
        let deleted = |at: &str| json!({"metadata": {"deletionTimestamp": at}});
        assert!(is_deletion_overdue(&deleted("1970-01-01T00:00:10Z"), 71));
        assert!(!is_deletion_overdue(&deleted("1970-01-01T00:00:10Z"), 70));
        assert!(!is_deletion_overdue(&deleted("soon"), 70) && !is_deletion_overdue(&json!({}), 70));
    }

    #[test]
    fn the_owner_annotation_is_read_back() {
        let stamp = ClockStamp { boot: "b".to_owned(), uptime_s: 1.25, ..ClockStamp::default() };
        let origin =
            manifest::ManifestOwner { run: "r", host: "h", pid: 7, stamp: &stamp, until: 1 };
        let owner: PodOwnerProcess =
            serde_json::from_str(&origin.owner_annotation()).expect("ours");
        assert_eq!((owner.host.as_str(), owner.pid, owner.stamp), ("h", 7, stamp));
    }
}
