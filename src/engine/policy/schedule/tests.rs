//! Tests of due measurements, and of nodes that are never measured.

use super::super::fixture::{NOW, PolicyFixture, stamp};
use super::super::journal_state::{CleanRun, Suspicion};
use super::*;
use model::action::VerdictMark;
use model::certificate::{MachineIdentity, VoidRecord};
use model::finding_class::FindingClass;
use model::kubernetes_node::KubernetesNode;
use model::scheduler_snapshot::SchedulerNode;
use model::time_format::format_rfc3339;
use model::verdict::Outcome;
use proptest::prelude::*;

const HOUR: i64 = 3_600;

/// At most one job at a time.
fn settings() -> ScheduleSettings {
    ScheduleSettings {
        concurrent_domains: 1,
        nodes: 72,
        min_nodes: 1,
        unverified: Some(Profile::Admit),
        repaired: Some(Profile::Recertify),
        expired: Some(Profile::Recertify),
        missing: Some(Profile::Admit),
        ahead_s: 6 * HOUR,
        audit_every_s: 0,
        confirmation_ages_s: [4 * HOUR, 7 * 24 * HOUR],
        cool_down_s: 24 * HOUR,
        rest_s: 300,
        rest_most_s: 6 * HOUR,
        clean_sweeps: 2,
        clean_apart_s: 3_600,
    }
}

/// A fleet, its certificates and earlier attempts.
struct ScheduleFixture {
    scene: PolicyFixture,
    certificates: BTreeMap<NodeName, Certificate>,
    unreadable: BTreeMap<NodeName, String>,
    attempts: MeasurementAttempts,
    running: Vec<RunningMeasurement>,
    settings: ScheduleSettings,
}

impl ScheduleFixture {
    /// Idle nodes, certified an hour ago for a week.
    fn new(domains: usize, nodes: usize) -> Self {
        let mut scene = PolicyFixture::with_blocks(domains, nodes);
        for node in scene.live.as_mut().expect("a scheduler").nodes.values_mut() {
            node.booted = Some(NOW - 1_000 * HOUR);
        }
        let all = scene.fleet.domains.iter().flat_map(|domain| &domain.nodes);
        let certificates = all.map(|node| (node.clone(), certificate(node, 1, 168))).collect();
        Self {
            scene,
            certificates,
            unreadable: BTreeMap::new(),
            attempts: MeasurementAttempts::default(),
            running: Vec::new(),
            settings: settings(),
        }
    }

    fn due(&self) -> MeasurementSchedule {
        self.due_at(&self.scene.now)
    }

    fn due_at(&self, now: &ClockStamp) -> MeasurementSchedule {
        let watched = ScheduleInput {
            live: self.scene.live.as_ref().expect("a scheduler"),
            fleet: &self.scene.fleet,
            certificates: &self.certificates,
            unreadable: &self.unreadable,
            ledger: &self.scene.ledger,
            attempts: &self.attempts,
            running: &self.running,
        };
        schedule_measurements(&watched, &self.settings, now)
    }

    /// `profile cause nodes` of each job.
    fn jobs(&self) -> Vec<String> {
        let line = |job: &MeasurementJob| {
            let nodes: Vec<&str> = job.nodes.keys().map(NodeName::as_str).collect();
            format!("{} {} {}", job.profile, job.cause, nodes.join(" "))
        };
        self.due().jobs.iter().map(line).collect()
    }

    fn why_not(&self, node: &str) -> String {
        let due = self.due();
        assert!(
            due.jobs.iter().all(|job| !job.all_nodes().contains(&NodeName::from(node))),
            "{due:?}"
        );
        due.not_due.get(&NodeName::from(node)).unwrap_or_else(|| panic!("{due:?}")).clone()
    }

    fn unverified(&mut self, node: &str) {
        self.scene.state(node, &["UNVERIFIED"]);
        self.certificates.remove(&NodeName::from(node));
    }

    fn certificate(&mut self, node: &str) -> &mut Certificate {
        self.certificates.get_mut(&NodeName::from(node)).expect("a certificate")
    }

    /// Ends the due job with this exit code, at the present time.
    fn tried(&mut self, code: Option<u8>) {
        let job = self.due().jobs.first().expect("a job").clone();
        let now = self.scene.now.clone();
        self.attempts.record_end(&job.domain, job.cause, &job.nodes, code, &now);
    }

    /// A run five hours ago was the first that found this node slow.
    fn suspect(&mut self, node: &str) {
        let suspicion = Suspicion {
            run: "run1".to_owned(),
            measured: self.scene.now.unix - 5 * HOUR,
            boot_id: None,
            classes: vec![FindingClass::NvlinkLow],
        };
        self.scene.ledger.suspicions.insert(node.into(), suspicion);
    }

    #[expect(clippy::cast_precision_loss, reason = "tests count in days")]
    fn later(&mut self, seconds: i64) {
        self.scene.now.unix += seconds;
        self.scene.now.uptime_s += seconds as f64;
    }
}

/// A certificate that was issued `ago_h` hours ago and ends in `left_h` hours.
fn certificate(node: &NodeName, ago_h: i64, left_h: i64) -> Certificate {
    let (issued, expires) = (NOW - ago_h * HOUR, NOW + left_h * HOUR);
    Certificate {
        identity: MachineIdentity { boot_id: Some("b1".to_owned()), ..MachineIdentity::default() },
        ..Certificate::unsigned(node.clone(), issued, expires)
    }
}

#[test]
fn a_certified_fleet_is_not_measured_and_every_node_has_a_reason() {
    let fleet = ScheduleFixture::new(2, 3);
    assert_eq!(fleet.jobs(), Vec::<String>::new());
    let due = fleet.due();
    assert_eq!(due.not_due.len(), 6);
    assert!(due.not_due.values().all(|why| why == "its certificate holds"), "{due:?}");
}

#[test]
fn an_unverified_fleet_is_admitted_domain_by_domain() {
    let mut fleet = ScheduleFixture::new(3, 2);
    for node in ["d0n0", "d0n1", "d1n0", "d1n1", "d2n0", "d2n1"] {
        fleet.unverified(node);
    }
    assert_eq!(fleet.jobs(), ["admit unverified d0n0 d0n1"]);
    assert!(fleet.why_not("d1n0").contains("1 domain at a time"));
    let domain = DomainName::from("d0");
    fleet.running.push(RunningMeasurement { domain, nodes: ["d0n0".into(), "d0n1".into()].into() });
    assert_eq!(fleet.jobs(), Vec::<String>::new());
    assert_eq!(fleet.why_not("d0n0"), "it is being measured");
    fleet.settings.concurrent_domains = 3;
    assert_eq!(fleet.jobs(), ["admit unverified d1n0 d1n1", "admit unverified d2n0 d2n1"]);
}

#[test]
fn the_most_urgent_domain_is_first() {
    let mut fleet = ScheduleFixture::new(5, 1);
    fleet.settings.concurrent_domains = 9;
    fleet.settings.audit_every_s = HOUR;
    *fleet.certificate("d0n0") = certificate(&"d0n0".into(), 2, 100);
    *fleet.certificate("d1n0") = certificate(&"d1n0".into(), 200, 5);
    fleet.certificates.remove(&NodeName::from("d2n0"));
    *fleet.certificate("d3n0") = certificate(&"d3n0".into(), 200, -1);
    fleet.unverified("d4n0");
    let expected = [
        "admit unverified d4n0",
        "recertify expired d3n0",
        "admit missing d2n0",
        "recertify expiring d1n0",
        "audit audit d0n0",
    ];
    assert_eq!(fleet.jobs(), expected);
}

#[test]
fn busy_reserved_and_excluded_nodes_are_never_measured() {
    let states: &[&[&str]] = &[
        &["ALLOCATED"],
        &["MIXED"],
        &["IDLE", "COMPLETING"],
        &["IDLE", "RESERVED"],
        &["IDLE", "PLANNED"],
        &["IDLE", "MAINTENANCE"],
        &["IDLE", "NOT_RESPONDING"],
        &["DOWN"],
        &["IDLE", "DRAIN"],
        &["UNVERIFIED", "ALLOCATED"],
        &["UNVERIFIED", "CORDONED"],
        &["UNVERIFIED", "TAINTED"],
        &["UNVERIFIED", "DELETING"],
        &["UNVERIFIED", "NOT_READY"],
        &["UNVERIFIED", "TESTING"],
        &["IDLE", "SOMETHING_NEW"],
        &[],
    ];
    for words in states {
        let mut fleet = ScheduleFixture::new(1, 2);
        fleet.settings.min_nodes = 2;
        fleet.certificates.clear();
        fleet.scene.state("d0n0", words);
        assert!(fleet.why_not("d0n0").starts_with("due, and "), "{words:?}");
        assert_eq!(fleet.jobs(), ["admit missing d0n1"], "{words:?}");
    }
    let left_alone = KubernetesNode {
        left_alone: vec!["label nvidia.com/gpu.deploy=false".to_owned()],
        ..KubernetesNode::default()
    };
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.unverified("d0n0");
    fleet.scene.node("d0n0").kubernetes = Some(Box::new(left_alone));
    assert!(fleet.why_not("d0n0").contains("nvidia.com/gpu.deploy=false"));
    let cordoned = KubernetesNode { cordoned: true, ..KubernetesNode::default() };
    fleet.scene.node("d0n0").kubernetes = Some(Box::new(cordoned));
    assert!(fleet.why_not("d0n0").contains("cordoned"));
}

#[test]
fn partners_are_idle_nodes_of_the_domain_and_no_more_than_are_missing() {
    let mut fleet = ScheduleFixture::new(2, 5);
    fleet.settings.min_nodes = 3;
    fleet.unverified("d0n2");
    fleet.scene.state("d0n0", &["ALLOCATED"]);
    let job = fleet.due().jobs.remove(0);
    assert_eq!(job.nodes.len(), 1);
    assert_eq!(job.partners, [NodeName::from("d0n1"), NodeName::from("d0n3")]);
    assert!(!fleet.due().not_due.contains_key(&NodeName::from("d0n1")));
    // The limit on nodes also limits partners.
    fleet.settings.nodes = 2;
    assert_eq!(fleet.due().jobs[0].partners.len(), 1);
}

#[test]
fn a_job_has_no_more_nodes_than_are_allowed_and_the_others_wait() {
    let mut fleet = ScheduleFixture::new(1, 4);
    fleet.certificates.clear();
    fleet.settings.nodes = 3;
    assert_eq!(fleet.jobs(), ["admit missing d0n0 d0n1 d0n2"]);
    assert!(fleet.why_not("d0n3").contains("3 nodes of a domain at a time"));
}

#[test]
fn a_full_run_covers_lesser_wants_and_an_admission_only_its_own() {
    let mut fleet = ScheduleFixture::new(1, 3);
    *fleet.certificate("d0n0") = certificate(&"d0n0".into(), 200, -1);
    fleet.certificates.remove(&NodeName::from("d0n1"));
    assert_eq!(fleet.jobs(), ["recertify expired d0n0 d0n1"]);
    let mut fleet = ScheduleFixture::new(1, 3);
    *fleet.certificate("d0n0") = certificate(&"d0n0".into(), 200, -1);
    fleet.unverified("d0n1");
    assert_eq!(fleet.jobs(), ["admit unverified d0n1"]);
    assert!(fleet.why_not("d0n0").contains("waits for the admit of others"));
}

#[test]
fn a_certificate_counts_no_more_for_each_of_these_reasons() {
    type ScheduleFixtureEdit = fn(&mut ScheduleFixture);
    let changes: &[(ScheduleFixtureEdit, &str)] = &[
        (|it| *it.certificate("d0n0") = certificate(&"d0n0".into(), 200, -1), "expired"),
        (
            |it| {
                let voided = VoidRecord { at: "t".to_owned(), why: "drained".to_owned() };
                it.certificate("d0n0").voided = Some(voided);
            },
            "voided t: drained",
        ),
        (|it| it.scene.node("d0n0").boot_id = Some("b2".to_owned()), "booted since"),
        (|it| it.scene.node("d0n0").booted = Some(NOW - 60), "after it was certified"),
        (|it| it.certificate("d0n0").issued_unix = NOW + HOUR, "in the future"),
        (
            |it| {
                let mark = VerdictMark {
                    outcome: Outcome::Pass,
                    class: None,
                    run: it.certificate("d0n0").run.clone(),
                    at: String::new(),
                    expires: Some(format_rfc3339(NOW + HOUR)),
                    domain: None,
                    boot_id: None,
                };
                it.scene.ledger.marks.insert("d0n0".into(), mark);
            },
            "differs from the issued one",
        ),
        (
            |it| {
                it.certificates.remove(&NodeName::from("d0n0"));
                it.unreadable.insert("d0n0".into(), "line 1: not JSON".to_owned());
            },
            "cannot be read: line 1",
        ),
    ];
    for (change, why) in changes {
        let mut fleet = ScheduleFixture::new(1, 1);
        change(&mut fleet);
        let due = fleet.due();
        let job = due.jobs.first().unwrap_or_else(|| panic!("{why}: {due:?}"));
        assert_eq!((job.cause, job.profile), (DueReason::Expired, Profile::Recertify), "{why}");
        assert!(job.why.contains(why), "{}", job.why);
    }
}

#[test]
fn a_node_that_only_lost_its_mark_is_not_measured_for_that() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.scene.node("d0n0").kubernetes = Some(Box::default());
    assert_eq!(fleet.jobs(), Vec::<String>::new());
}

#[test]
fn a_disabled_profile_is_reported_and_not_run() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.certificates.clear();
    fleet.settings.missing = None;
    assert_eq!(fleet.why_not("d0n0"), "it has no certificate; no profile is configured for that");
}

#[test]
fn a_drained_node_is_measured_again_after_a_change_or_a_rest() {
    let mut fleet = ScheduleFixture::new(1, 2);
    fleet.scene.drained("d0n0", "nvlink-low", 0.5, 2 * HOUR);
    assert!(fleet.why_not("d0n0").contains("shows no change since"));
    type LiveNodeEdit = fn(&mut SchedulerNode);
    let changes: &[(LiveNodeEdit, &str)] = &[
        (|node| node.booted = Some(NOW - HOUR), "booted since"),
        (|node| node.instance = Some("i-2".to_owned()), "another machine"),
        (|node| node.boot_id = Some("b2".to_owned()), "booted since"),
    ];
    for (change, why) in changes {
        let mut fleet = ScheduleFixture::new(1, 2);
        fleet.scene.drained("d0n0", "nvlink-low", 0.5, 2 * HOUR);
        let own = fleet.scene.ledger.drains.get_mut(&NodeName::from("d0n0")).expect("a drain");
        own.before.instance = Some("i-1".to_owned());
        own.before.boot_id = Some("b1".to_owned());
        change(fleet.scene.node("d0n0"));
        assert_eq!(fleet.jobs(), ["recertify repaired d0n0"], "{why}");
        assert!(fleet.due().jobs[0].why.contains(why));
    }
    fleet.later(23 * HOUR);
    assert!(fleet.due().jobs[0].why.contains("has rested since"));
}

#[test]
fn a_drained_node_that_passed_once_is_measured_until_it_passed_often_enough() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.scene.drained("d0n0", "nvlink-low", 0.5, 25 * HOUR);
    fleet.tried(Some(0));
    assert!(fleet.why_not("d0n0").contains("next from"));
    let clean = CleanRun { run: "r9".to_owned(), measured: NOW, boot_id: None };
    let name = NodeName::from("d0n0");
    fleet.scene.ledger.drains.get_mut(&name).expect("a drain").clean.push(clean);
    // A measurement now would not count (defect 7 of the operator's review).
    fleet.later(300);
    let why = fleet.why_not("d0n0");
    assert!(why.contains("passed 1 of 2 runs since; the next run counts from"), "{why}");
    fleet.later(HOUR);
    assert!(fleet.due().jobs[0].why.contains("passed 1 of 2 runs"), "{:?}", fleet.due());
}

#[test]
fn a_repair_that_was_none_rests_for_the_whole_cool_down() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.scene.drained("d0n0", "nvlink-low", 0.5, 2 * HOUR);
    fleet.scene.node("d0n0").booted = Some(NOW - HOUR);
    fleet.tried(Some(3));
    fleet.later(23 * HOUR);
    assert!(fleet.why_not("d0n0").contains("exit code 3"));
    fleet.later(HOUR);
    assert_eq!(fleet.jobs(), ["recertify repaired d0n0"]);
}

#[test]
fn drains_of_others_and_drains_with_appended_text_are_left_alone() {
    let mut fleet = ScheduleFixture::new(1, 3);
    fleet.certificates.clear();
    fleet.scene.state("d0n0", &["IDLE", "DRAIN"]).reason = Some("broken fan".to_owned());
    let own = fleet.scene.drained("d0n1", "nvlink-low", 0.5, 100 * HOUR);
    let reason = format!("{}: look at this", own.action.reason);
    fleet.scene.node("d0n1").reason = Some(reason);
    assert!(fleet.why_not("d0n0").contains("broken fan"));
    assert!(fleet.why_not("d0n1").contains("look at this"));
    assert_eq!(fleet.jobs(), ["admit missing d0n2"]);
}

#[test]
fn attempts_that_change_nothing_are_made_more_and_more_rarely() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.certificates.clear();
    for rest in [300, 600, 1_200, 2_400] {
        fleet.tried(Some(5));
        fleet.later(rest - 1);
        assert!(fleet.why_not("d0n0").contains("exit code 5"), "{rest}");
        fleet.later(1);
        assert_eq!(fleet.jobs().len(), 1, "{rest}");
    }
    for _ in 0..100 {
        fleet.tried(None);
        fleet.later(6 * HOUR);
    }
    assert_eq!(fleet.jobs().len(), 1, "the rest is bounded");
    // The node has another want now, so the count starts again.
    fleet.tried(Some(5));
    fleet.unverified("d0n0");
    fleet.later(300);
    assert_eq!(fleet.jobs(), ["admit unverified d0n0"]);
}

#[test]
fn an_audit_is_of_idle_nodes_and_its_time_begins_anew_only_when_it_concluded() {
    let mut fleet = ScheduleFixture::new(1, 3);
    fleet.settings.audit_every_s = 24 * HOUR;
    for node in ["d0n0", "d0n1"] {
        *fleet.certificate(node) = certificate(&node.into(), 30, 100);
    }
    fleet.scene.state("d0n1", &["ALLOCATED"]);
    assert_eq!(fleet.jobs(), ["audit audit d0n0"]);
    fleet.tried(Some(5));
    fleet.later(301);
    assert_eq!(fleet.jobs(), ["audit audit d0n0"]);
    fleet.tried(Some(3));
    fleet.later(20 * HOUR);
    assert_eq!(fleet.jobs(), Vec::<String>::new());
}

#[test]
fn a_repeated_measurement_of_a_suspect_is_not_an_audit_of_its_domain() {
    let mut fleet = ScheduleFixture::new(1, 3);
    fleet.settings.audit_every_s = 24 * HOUR;
    for node in ["d0n0", "d0n1", "d0n2"] {
        *fleet.certificate(node) = certificate(&node.into(), 10, 200);
    }
    fleet.suspect("d0n0");
    assert_eq!(fleet.jobs(), ["audit audit d0n0"]);
    fleet.tried(Some(0));
    fleet.scene.ledger.suspicions.clear();
    fleet.later(15 * HOUR);
    assert!(!fleet.jobs().is_empty(), "the others wait since 25 hours");
}

#[test]
fn no_suspect_is_repeated_if_one_run_suffices() {
    let mut fleet = ScheduleFixture::new(1, 3);
    fleet.suspect("d0n0");
    assert_eq!(fleet.jobs(), ["audit audit d0n0"]);
    // A suspicion from before the change of the policy is still on record.
    fleet.settings.confirmation_ages_s[0] = 0;
    assert_eq!(fleet.jobs(), Vec::<String>::new());
}

#[test]
fn an_unclaimed_node_is_reported_only_with_a_mark_of_fabricgate() {
    let mut fleet = ScheduleFixture::new(1, 1);
    let live = fleet.scene.live.as_mut().expect("a scheduler");
    for (name, state) in [("head", "IDLE"), ("new", "UNVERIFIED")] {
        live.nodes.insert(name.into(), SchedulerNode::new(name, &[state]));
    }
    let due = fleet.due();
    assert!(!due.not_due.contains_key(&NodeName::from("head")));
    assert!(due.not_due[&NodeName::from("new")].contains("no domain claims it"));
}

#[test]
fn a_clock_that_was_far_ahead_blocks_no_node_forever() {
    let mut fleet = ScheduleFixture::new(1, 1);
    fleet.certificates.clear();
    fleet.scene.now.unix += 10_000 * HOUR;
    fleet.scene.now.boot = "boot-b".to_owned();
    fleet.tried(Some(5));
    // Another boot, and the clock is right again.
    fleet.scene.now = stamp(0);
    assert!(fleet.why_not("d0n0").contains("next from"));
    let now = fleet.scene.now.clone();
    fleet.attempts.clamp_future(&now);
    fleet.later(300);
    assert_eq!(fleet.jobs().len(), 1);
}

proptest! {
    #[test]
    fn no_clock_makes_a_tight_loop(
        jumps in prop::collection::vec((-1_000_000_i64..1_000_000, 0.0..5.0_f64), 1..50),
        code in prop::option::of(0_u8..7),
    ) {
        // The wall clock jumps while the machine's uptime advances by 250 s.
        let mut fleet = ScheduleFixture::new(1, 1);
        fleet.certificates.clear();
        let mut started = 0;
        for (wall, passed) in jumps {
            fleet.scene.now.unix += wall;
            fleet.scene.now.uptime_s += passed;
            if !fleet.due().jobs.is_empty() {
                started += 1;
                fleet.tried(code);
            }
        }
        prop_assert!(started <= 1, "{started} within the first rest");
    }

    #[test]
    fn every_claimed_node_is_in_one_job_or_has_a_reason(
        states in prop::collection::vec(0..7_usize, 12),
        at_once in 0..4_usize,
        nodes in 1..5_usize,
        together in 1..5_usize,
    ) {
        let words: [&[&str]; 7] = [&["IDLE"], &["ALLOCATED"], &["UNVERIFIED"], &["IDLE", "DRAIN"],
            &["UNVERIFIED", "CORDONED"], &["DOWN"], &["IDLE"]];
        let mut fleet = ScheduleFixture::new(3, 4);
        fleet.settings = ScheduleSettings { concurrent_domains: at_once, nodes, min_nodes: together, audit_every_s: 1, ..settings() };
        for (at, state) in states.iter().enumerate() {
            let node = format!("d{}n{}", at / 4, at % 4);
            fleet.scene.state(&node, words[*state]);
            if *state == 6 {
                fleet.certificates.remove(&NodeName::from(node));
            }
        }
        let due = fleet.due();
        prop_assert!(due.jobs.len() <= at_once);
        let mut named: Vec<NodeName> = due.not_due.keys().cloned().collect();
        for job in &due.jobs {
            prop_assert!(job.all_nodes().len() <= nodes.max(1) && !job.nodes.is_empty());
            for node in job.all_nodes() {
                let live = &fleet.scene.live.as_ref().expect("a scheduler").nodes[&node];
                let free = live.has_state("IDLE") || live.has_state("UNVERIFIED");
                prop_assert!(free && !live.has_state("CORDONED") && !live.has_state("DRAIN"), "{live:?}");
                named.push(node);
            }
        }
        named.sort();
        let all: BTreeSet<NodeName> = named.iter().cloned().collect();
        prop_assert_eq!(all.len(), named.len(), "each once");
        prop_assert_eq!(all.len(), 12);
    }
}
