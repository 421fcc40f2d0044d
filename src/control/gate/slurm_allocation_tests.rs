//! Temporarily lifted drains, and operators who intervene meanwhile. Shell scripts stand in for
//! Slurm's programs; node changes go to an in-memory scheduler.

use super::super::fixture;
use super::super::fixture::FakeScheduler;
use super::*;
use crate::gate::allocation::{AllocationBackend, OrphanCleanup, clean_up_orphans};
use crate::gate::clock;
use crate::gate::gate_event::GateEvent;
use crate::gate::journal::Journal;
use crate::gate::scheduler::SchedulerTimeouts;
use model::action::{Action, ActionKind, ActionResult};
use std::path::Path;

const DRAIN: &str = "fabricgate:nvlink-low:r1 e1";

/// A Slurm with one reservation, in a file, that grants every job.
fn fake_slurm(folder: &Path) -> SlurmPrograms {
    let file = folder.join("reservation").display().to_string();
    let script = format!(
        "case \"$*\" in *'create reservation'*) for w; do case $w in ReservationName=*) \
         echo \"$w x\" >{file};; esac; done;; *'delete '*) rm -f {file};; \
         *'show reservation'*) cat {file} 2>/dev/null; echo;; esac"
    );
    let sh = |script: &str, name: &str| ["sh", "-c", script, name].map(str::to_owned).to_vec();
    SlurmPrograms {
        srun: sh("exit 1", "srun"),
        scancel: sh(":", "scancel"),
        squeue: sh(":", "squeue"),
        salloc: sh("echo 'salloc: Granted job allocation 7' >&2", "salloc"),
        scontrol: sh(&script, "scontrol"),
        remote_shell: None,
    }
}

/// Holds n1, which fabricgate drained, while other writers apply these changes at each reading;
/// returns the changes sent to the scheduler.
fn hold_drained_node(
    others: Vec<Vec<SchedulerNode>>,
) -> (FakeScheduler, Vec<(Vec<NodeName>, NodeUpdate)>) {
    let fake = FakeScheduler::with_nodes(0);
    fake.put(FakeScheduler::drained_node("n1", DRAIN));
    let (folder, mut journal) = fixture::journal();
    let id = "r1/n1/drain/e1".to_owned();
    let action = Action { reason: DRAIN.to_owned(), ..fixture::action(ActionKind::Drain, "n1") };
    let state = Some(NodeStateChange::Drain { reason: DRAIN.to_owned() });
    let intent = JournalEvent::Intent {
        id: id.clone(),
        run: "r1".to_owned(),
        action: Box::new(action),
        change: Box::new(NodeUpdate { state, ..NodeUpdate::default() }),
        before: Box::new(SchedulerNode::new("n1", &["IDLE"])),
    };
    let done = JournalEvent::Outcome { id, result: ActionResult::Done, detail: String::new() };
    journal.append_all(vec![intent, done]).expect("written");
    drop(journal);
    fake.foreign_changes.borrow_mut().extend(others);
    let slurm = SlurmLauncher { programs: fake_slurm(folder.path()), ..SlurmLauncher::default() };
    let timeouts = SchedulerTimeouts {
        limit: Duration::from_secs(10),
        settle: Duration::ZERO,
        persist: Duration::ZERO,
        in_flight: Duration::ZERO,
    };
    let mut log = |_: &GateEvent| {};
    let backend = AllocationBackend::Slurm(Box::new(slurm));
    let mut context = AllocationContext {
        backend: &backend,
        scheduler: &fake,
        folder: folder.path(),
        timeouts,
        log: &mut log,
    };
    let (name, nodes) = ("d1".into(), vec!["n1".into()]);
    let domains = vec![AllocationDomain { name, nodes, gpus_per_node: None }];
    let request = AllocationRequest { run: "r2", domains, drained: true, minutes: 5 };
    let mut allocation = Allocation::default();
    fixture::block_on(async {
        allocation.acquire(&mut context, &request).await.expect("held");
        assert_eq!(allocation.release(&mut context).await, Vec::<String>::new());
    });
    let calls = fake.calls.borrow().clone();
    (fake, calls)
}

#[test]
fn a_fabricgate_drain_is_lifted_and_restored() {
    let (fake, calls) = hold_drained_node(Vec::new());
    assert_eq!(calls.len(), 2, "{calls:?}");
    assert_eq!(fake.node("n1").reason.as_deref(), Some(DRAIN));
}

#[test]
fn a_drain_that_an_operator_removes_before_it_is_lifted_is_not_restored() {
    // Read once for sorting; then an operator resumes the node.
    let (fake, calls) =
        hold_drained_node(vec![Vec::new(), vec![SchedulerNode::new("n1", &["IDLE"])]]);
    assert_eq!(fake.node("n1").state, ["IDLE"]);
    assert!(calls.is_empty(), "neither lifted nor drained again: {calls:?}");
}

/// Defect 14 of the operator's review.
#[test]
fn a_node_outside_the_launchers_partition_is_reported_and_blocks_no_other() {
    let nodes: Vec<NodeName> = ["n1", "n2", "n3"].map(NodeName::from).to_vec();
    let shown = |partitions: [&[&str]; 2]| SchedulerSnapshot {
        nodes: ["n1", "n2"]
            .into_iter()
            .zip(partitions)
            .map(|(name, partitions)| {
                let partitions = partitions.iter().map(|it| (*it).to_owned()).collect();
                (name.into(), SchedulerNode { partitions, ..SchedulerNode::new(name, &["IDLE"]) })
            })
            .collect(),
        troubles: Vec::new(),
    };
    let of = |partition: Option<&str>, live: &SchedulerSnapshot| -> Vec<String> {
        nodes_outside_partition(partition, &nodes, live).into_keys().map(String::from).collect()
    };
    let live = shown([&["main", "probe"], &["main"]]);
    assert_eq!(of(Some("probe"), &live), ["n2"]);
    assert_eq!(
        nodes_outside_partition(Some("probe"), &nodes, &live)[&NodeName::from("n2")],
        "it is not in partition probe, which [launcher] names"
    );
    assert_eq!(of(Some("main"), &live), [""; 0]);
    assert_eq!(of(Some("probe,main"), &live), [""; 0]);
    assert_eq!(of(None, &live), [""; 0]);
    // No node lists a hidden partition.
    assert_eq!(of(Some("hidden"), &live), [""; 0]);
}

/// The objects of a process of this host: a reservation in which the drain of n1 was lifted, and a
/// job.
struct OrphanFixture {
    fake: FakeScheduler,
    folder: tempfile::TempDir,
    journal: Journal,
}

const HELD: &str = "fabricgate-r2-maint";

impl OrphanFixture {
    fn left_by(host: &str) -> Self {
        let fake = FakeScheduler::with_nodes(1);
        let (folder, mut journal) = fixture::journal();
        let holding = |name: &str, kind: HoldKind, drained| JournalEvent::Holding {
            name: name.to_owned(),
            kind,
            nodes: vec!["n1".into()],
            drained,
            host: host.to_owned(),
            pid: u32::MAX,
        };
        let drained = vec![("n1".into(), DRAIN.to_owned())];
        let both = vec![
            holding(HELD, HoldKind::Reservation, drained),
            holding("fabricgate-r2", HoldKind::Job, Vec::new()),
        ];
        journal.append_all(both).expect("written");
        let reservation = format!("ReservationName={HELD} x");
        std::fs::write(folder.path().join("reservation"), reservation).expect("written");
        Self { fake, folder, journal }
    }

    /// An operator removes the reservation.
    fn remove_reservation(self) -> Self {
        std::fs::remove_file(self.folder.path().join("reservation")).expect("removed");
        self
    }

    fn clean_up(&mut self, gone: Option<&str>, in_flight_s: u64) -> (bool, String) {
        let programs = fake_slurm(self.folder.path());
        let timeouts = SchedulerTimeouts {
            limit: Duration::from_secs(10),
            settle: Duration::ZERO,
            persist: Duration::ZERO,
            in_flight: Duration::from_secs(in_flight_s),
        };
        let mut log = String::new();
        let mut append = |event: &GateEvent| log.push_str(&event.to_string());
        let cleaning = OrphanCleanup {
            journal: &mut self.journal,
            scheduler: &self.fake,
            programs: Some(&programs),
            pods: None,
            timeouts,
            gone_host: gone,
            log: &mut append,
        };
        let are_gone = fixture::block_on(clean_up_orphans(cleaning)).expect("written");
        (are_gone, log)
    }

    fn is_reserved(&self) -> bool {
        self.folder.path().join("reservation").exists()
    }
}

#[test]
fn defect_1_an_allocation_that_slurm_no_longer_lists_is_over_on_any_host() {
    let mut left = OrphanFixture::left_by("elsewhere").remove_reservation();
    let (are_gone, log) = left.clean_up(None, 0);
    assert!(are_gone && left.journal.state().allocations.is_empty(), "{log}");
    assert_eq!(left.fake.node("n1").reason.as_deref(), Some(DRAIN), "{log}");
    // Slurm may still create what the journal announced a moment ago.
    let mut left = OrphanFixture::left_by("elsewhere").remove_reservation();
    let (are_gone, log) = left.clean_up(None, 3_600);
    assert!(!are_gone && left.journal.state().allocations.len() == 2, "{log}");
    assert!(left.fake.changed_nodes().is_empty());
}

#[test]
fn defect_1_an_allocation_that_may_exist_is_reported_with_the_remedy() {
    let mut left = OrphanFixture::left_by("elsewhere");
    let (are_gone, log) = left.clean_up(None, 0);
    assert!(!are_gone && left.is_reserved(), "{log}");
    assert!(log.contains("gate recover --gone elsewhere --why"), "{log}");
    assert!(log.contains(&format!("scontrol show reservation {HELD}")), "{log}");
    assert!(left.fake.changed_nodes().is_empty(), "its process may be alive");
    let (are_gone, log) = left.clean_up(Some("another"), 0);
    assert!(!are_gone, "{log}");
    let (are_gone, log) = left.clean_up(Some("elsewhere"), 0);
    assert!(are_gone && !left.is_reserved(), "{log}");
    assert_eq!(left.fake.node("n1").reason.as_deref(), Some(DRAIN), "{log}");
}

#[test]
fn defect_1_a_reservation_stays_while_a_request_of_its_dead_process_may_land() {
    let mut left = OrphanFixture::left_by(&clock::host_name());
    let (are_gone, log) = left.clean_up(None, 3_600);
    assert!(!are_gone && left.is_reserved(), "{log}");
    assert_eq!(left.fake.node("n1").reason.as_deref(), Some(DRAIN), "{log}");
    let (are_gone, log) = left.clean_up(None, 0);
    assert!(are_gone && !left.is_reserved(), "{log}");
}
