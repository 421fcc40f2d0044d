//! Tests of a certificate's contents, its recipients and its status on a node; `void` tests how
//! long it counts.

#[path = "certificate_tests/void.rs"]
mod void;

use super::*;
use crate::policy::journal_state::OwnDrain;
use model::action::{Action, ActionKind};
use model::certificate::{VoidPolicy, VoidRecord};
use model::journal::ClockStamp;
use model::raw_result::{ProcessEnding, RESULT_FORMAT};
use model::tool_facts::ToolDevice;
use model::tool_recording::RecordingScope;
use model::verdict::MeasuredScope;
use model::worker_protocol::{MACHINE_FORMAT, MachineEnvironment};

/// When the run was made: 2026-03-04T05:06:07Z.
const MADE: i64 = 1_772_600_767;

fn run() -> EvidenceRun {
    EvidenceRun {
        id: "r1".to_owned(),
        profile: "recertify".to_owned(),
        created: "2026-03-04T05:06:07.890Z".to_owned(),
        created_unix: MADE,
        complete: true,
        real: true,
        simulated: false,
        unsigned: None,
        unsure: BTreeMap::new(),
    }
}

fn verdicts(nodes: &[(&str, Outcome)]) -> Verdicts {
    let node = |(node, outcome): &(&str, Outcome)| NodeVerdict {
        node: NodeName::from(*node),
        domain: Some("block01".into()),
        outcome: *outcome,
        reason: String::new(),
        kept_by: None,
        detectable: Some(0.012),
        detectable_together: None,
        fabric_detectable: None,
        scope: Some(MeasuredScope { inside: true, ..MeasuredScope::default() }),
    };
    Verdicts {
        platform: Some("gb200-nvl72".to_owned()),
        thresholds_digest: "sha".to_owned(),
        nodes: nodes.iter().map(node).collect(),
        ..Verdicts::empty(Outcome::Pass)
    }
}

/// A snapshot in which all nodes are idle.
fn live(nodes: &[(&str, Outcome)]) -> SchedulerSnapshot {
    let idle = |name: &str| (NodeName::from(name), SchedulerNode::new(name, &["IDLE"]));
    SchedulerSnapshot {
        nodes: nodes.iter().map(|(name, _)| idle(name)).collect(),
        ..SchedulerSnapshot::default()
    }
}

fn machine(node: &str, boot: &str, gpus: &[&str]) -> MachineRecord {
    let gpus = gpus.iter().enumerate();
    MachineRecord {
        format: MACHINE_FORMAT.to_owned(),
        node: node.into(),
        environment: MachineEnvironment {
            boot_id: Some(boot.to_owned()),
            driver: Some("570.86.15".to_owned()),
            gpus: gpus
                .map(|(at, uuid)| format!("{at}, {uuid}, 1980 MHz, 2619 MHz, 31, 118.2 W, 96.1"))
                .collect(),
            ..MachineEnvironment::default()
        },
    }
}

fn cell(
    test: &str,
    src: &str,
    dst: &str,
    reading: u32,
    value: Option<f64>,
    unit: Unit,
) -> MeasuredCell {
    MeasuredCell {
        domain: None,
        stage: Some(1),
        testcase: test.into(),
        src_node: Some(src.into()),
        src_gpu: Some(0),
        dst_node: Some(dst.into()),
        dst_gpu: Some(1),
        rail: None,
        reading,
        value,
        unit,
        expected: Some(774.7),
        ratio: None,
        outcome: Outcome::Pass,
    }
}

/// A result that lists these GPUs of its first node.
fn result(node: &str, gpus: &[&str]) -> RawResult {
    RawResult {
        format: RESULT_FORMAT.to_owned(),
        step: 0,
        stage: 1,
        domain: None,
        nodes: vec![node.into()],
        rail: None,
        probe: "p".to_owned(),
        reading: 0,
        argv: Vec::new(),
        ending: ProcessEnding::Exited { code: 0 },
        started: String::new(),
        duration_s: 0.0,
        stdout: None,
        stderr: None,
        sent: Vec::new(),
        stdout_dropped: 0,
        stderr_dropped: 0,
        not_kept: None,
        complaint: None,
        load: None,
        gpus: gpus.iter().enumerate().map(|(at, uuid)| format!("{at}, {uuid}")).collect(),
    }
}

/// An output of `nvidia-smi -q` on this node.
fn recording(node: &str, driver: &str, gpus: &[Option<&str>]) -> ToolRecording {
    let mut recording = ToolRecording::new(
        RecordingScope::Node(node.into()),
        "f",
        readers::outputs::parse_output(b"nothing"),
    );
    recording.parsed.facts.driver = Some(driver.to_owned());
    let devices = (0..).zip(gpus).map(|(index, uuid)| ToolDevice {
        index,
        uuid: uuid.map(str::to_owned),
        ..ToolDevice::default()
    });
    recording.parsed.facts.devices = devices.collect();
    recording
}

struct CertificateFixture {
    run: EvidenceRun,
    verdicts: Verdicts,
    cells: Vec<MeasuredCell>,
    machines: Vec<MachineRecord>,
    results: Vec<RawResult>,
    recordings: Vec<ToolRecording>,
    ledger: JournalState,
    live: SchedulerSnapshot,
    records: Vec<ActionRecord>,
    now: i64,
}

impl CertificateFixture {
    fn new(nodes: &[(&str, Outcome)]) -> Self {
        Self {
            run: run(),
            verdicts: verdicts(nodes),
            cells: Vec::new(),
            machines: Vec::new(),
            results: Vec::new(),
            recordings: Vec::new(),
            ledger: JournalState::default(),
            live: live(nodes),
            records: Vec::new(),
            now: MADE + 60,
        }
    }

    fn issue(&self) -> (Vec<Certificate>, Vec<WithheldAction>) {
        let evidence = CertificateEvidence {
            run: &self.run,
            verdicts: &self.verdicts,
            cells: &self.cells,
            claims: &Claims::default(),
            machines: &self.machines,
            results: &self.results,
            recordings: &self.recordings,
        };
        let acted = GateRecord { live: &self.live, records: &self.records, ledger: &self.ledger };
        issue_certificates(&evidence, &acted, &Policy::default(), self.now)
    }

    fn single(&self) -> Certificate {
        let (made, withheld) = self.issue();
        assert_eq!((made.len(), withheld.len()), (1, 0), "{withheld:?}");
        made.into_iter().next().expect("one")
    }

    fn refused(&self) -> String {
        let (made, withheld) = self.issue();
        assert_eq!((made.len(), withheld.len()), (0, 1), "{made:?}");
        withheld[0].why.clone()
    }
}

#[test]
fn a_certificate_has_the_machine_its_minima_and_its_expiry() {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass), ("n2", Outcome::Unknown)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a", "GPU-b"])];
    let gb = Unit::GigabytesPerSecond;
    world.cells = vec![
        // Five readings with one dip: the median is the level.
        cell("copy", "n1", "n1", 0, Some(770.0), gb),
        cell("copy", "n1", "n1", 1, Some(100.0), gb),
        cell("copy", "n1", "n1", 2, Some(769.0), gb),
        cell("copy", "n1", "n1", 3, Some(771.0), gb),
        cell("copy", "n1", "n1", 4, Some(768.0), gb),
        // The other end counts as well; a cell without a number does not.
        cell("copy", "n2", "n1", 0, Some(760.0), gb),
        cell("copy", "n1", "n2", 0, None, gb),
        cell("copy", "n2", "n2", 0, Some(1.0), gb),
        cell("latency", "n1", "n2", 0, Some(700.0), Unit::Nanoseconds),
        cell("write", "n1", "n2", 0, Some(47.0), gb),
    ];
    let made = world.single();
    assert_eq!(made.identity.gpus, ["GPU-a", "GPU-b"]);
    assert_eq!(made.identity.boot_id.as_deref(), Some("b-1"));
    assert_eq!(made.identity.driver.as_deref(), Some("570.86.15"));
    assert_eq!(made.identity.firmware["GPU 1 VBIOS"], "96.1");
    let minima: Vec<(&str, f64)> =
        made.minima.iter().map(|m| (m.testcase.as_str(), m.value)).collect();
    assert_eq!(minima, [("copy", 760.0), ("write", 47.0)]);
    assert_eq!(made.detectable, Some(0.012));
    assert_eq!((made.issued_unix, made.issued.as_str()), (MADE, "2026-03-04T05:06:07.890Z"));
    assert_eq!(made.expires, "2026-03-11T05:06:07Z");
    assert_eq!(made.expires_unix, MADE + 7 * DAY_S);
    assert_eq!(made.platform.as_deref(), Some("gb200-nvl72"));
    assert_eq!(made.voided, None);
}

#[test]
fn identities_missing_from_workers_come_from_tool_outputs() {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
    assert_eq!(world.single().identity, MachineIdentity::default(), "an unknown machine");
    world.results = vec![result("n1", &["GPU-a", "GPU-b"])];
    assert_eq!(world.single().identity.gpus, ["GPU-a", "GPU-b"]);
    world.results.clear();
    world.recordings = vec![recording("n1", "580.1", &[Some("GPU-a"), Some("GPU-b")])];
    let identity = world.single().identity;
    assert_eq!(identity.gpus, ["GPU-a", "GPU-b"]);
    assert_eq!(identity.driver.as_deref(), Some("580.1"));
    world.recordings = vec![recording("n1", "580.1", &[Some("GPU-a"), None])];
    assert!(world.single().identity.gpus.is_empty(), "half a list is none");
}

#[test]
fn a_node_that_was_two_machines_in_one_run_is_not_certified() {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
    let first = machine("n1", "b-1", &["GPU-a"]);
    world.machines = vec![first.clone(), first.clone()];
    assert_eq!(world.single().identity.gpus, ["GPU-a"], "a restarted worker is the same machine");
    world.machines = vec![first.clone(), machine("n1", "b-2", &["GPU-a"])];
    assert_eq!(world.refused(), "it rebooted during the run");
    world.machines = vec![first.clone(), machine("n1", "b-1", &["GPU-c"])];
    assert_eq!(world.refused(), "it had other GPUs during the run than before");
    world.machines = vec![first.clone()];
    world.results = vec![result("n1", &["GPU-c"])];
    assert_eq!(world.refused(), "it had other GPUs during the run than before");
    world.results.clear();
    world.recordings = vec![recording("n1", "999.9", &[])];
    assert_eq!(world.refused(), "drivers 570.86.15 and 999.9 in one run");
}

#[test]
fn runs_that_certify_nothing_have_a_reason() {
    for (why, change) in [
        (
            "an audit measures too little",
            (|r| r.profile = "audit".to_owned()) as fn(&mut EvidenceRun),
        ),
        ("\"judge\" is not a profile that certifies", |r| r.profile = "judge".to_owned()),
        ("the run measured no nodes", |r| r.real = false),
        ("the run did not run to completion", |r| r.complete = false),
        ("the run has no time of creation", |r| r.created_unix = 0),
    ] {
        let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
        change(&mut world.run);
        assert!(world.refused().starts_with(why), "{}", world.refused());
    }
}

#[test]
fn a_node_that_we_drained_waits_for_its_release() {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
    let action = Action::new(ActionKind::Drain, "n1");
    let drain = OwnDrain {
        id: "i".to_owned(),
        epoch: 1,
        stamp: ClockStamp::default(),
        run: "r0".to_owned(),
        action,
        before: SchedulerNode::new("n1", &["IDLE"]),
        clean: Vec::new(),
    };
    world.ledger.drains.insert("n1".into(), drain);
    assert!(world.refused().contains("when fabricgate releases it"));
}

#[test]
fn names_that_could_lead_elsewhere_get_no_certificate() {
    for name in ["../n1", "a/b", "all", ""] {
        let world = CertificateFixture::new(&[(name, Outcome::Pass)]);
        assert!(world.refused().contains("name of one node"), "{name}");
    }
}

#[test]
fn a_certificate_outlives_no_boot_that_has_another_name() {
    let machines = [machine("n1", "b-1", &["GPU-1"])];
    let (run, verdicts) = (run(), verdicts(&[("n1", Outcome::Pass)]));
    let evidence = CertificateEvidence {
        run: &run,
        verdicts: &verdicts,
        cells: &[],
        claims: &Claims::default(),
        machines: &machines,
        results: &[],
        recordings: &[],
    };
    let live = live(&[("n1", Outcome::Pass)]);
    let acted = GateRecord { live: &live, records: &[], ledger: &JournalState::default() };
    let (made, _) = issue_certificates(&evidence, &acted, &Policy::default(), MADE + 60);
    let now = |boot: Option<&str>, booted: Option<i64>| {
        let boot_id = boot.map(str::to_owned);
        explain_outlived(
            &made[0],
            &SchedulerNode { boot_id, booted, ..SchedulerNode::new("n1", &["IDLE"]) },
        )
    };
    assert_eq!(now(Some("b-1"), None), None);
    assert_eq!(now(Some("b-1"), Some(MADE + 1)), None, "the name counts and not the clock");
    assert!(
        now(Some("b-2"), None).is_some_and(|why| why.contains("boot b-2, certified in boot b-1"))
    );
    assert!(now(Some("b-2"), Some(MADE - 1)).is_some());
    assert!(now(None, Some(MADE + 1)).is_some());
    assert_eq!(now(None, None), None);
}

#[test]
fn a_node_without_a_mark_has_no_certificate_on_disk() {
    let n1 = NodeName::from("n1");
    let world = |state: &str, boot: &str| {
        let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
        world.machines = vec![machine("n1", "b-1", &["GPU-1"])];
        let node =
            SchedulerNode { boot_id: Some(boot.to_owned()), ..SchedulerNode::new("n1", &[state]) };
        world.live.nodes.insert(n1.clone(), node);
        world
    };
    assert_eq!(world("IDLE", "b-1").issue().0.len(), 1);
    let record = |kind, result| ActionRecord {
        kind,
        node: n1.clone(),
        result,
        detail: "another client was faster".to_owned(),
        at: String::new(),
    };

    let mut booted = world("IDLE", "b-2");
    assert!(booted.refused().contains("not certified: it has booted since"));
    booted.machines.clear();
    assert!(booted.refused().contains("does not name the boot"));
    booted.live.nodes.clear();
    assert!(booted.refused().contains("does not know it"));

    for state in ["DRAIN", "CORDONED", "TAINTED", "NOT_READY", "DELETING"] {
        let mut out = world(state, "b-1");
        assert!(out.refused().contains("out of service"), "{state}");
        // After the release, the drained state no longer applies.
        out.records = vec![record(ActionKind::Release, ActionResult::Done)];
        assert_eq!(out.issue().0.len(), 1, "{state}");
        out.records = vec![record(ActionKind::Release, ActionResult::Unknown)];
        assert!(out.refused().contains("out of service"), "{state}");
    }

    let mut no_boot = world("IDLE", "b-1");
    for result in [ActionResult::Superseded, ActionResult::Failed, ActionResult::Unknown] {
        no_boot.records = vec![record(ActionKind::Certify, result)];
        assert!(no_boot.refused().contains("another client was faster"), "{result:?}");
    }
    no_boot.records = vec![record(ActionKind::Certify, ActionResult::Done)];
    assert_eq!(no_boot.issue().0.len(), 1);

    no_boot.now = MADE + 8 * DAY_S;
    assert!(no_boot.issue().1[0].why.contains("too old to certify"));
    no_boot.now = MADE - DAY_S;
    assert!(no_boot.issue().1[0].why.contains("in the future"));
}

#[test]
fn a_run_that_no_gate_acted_on_shows_what_its_nodes_passed() {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass), ("n2", Outcome::Degraded)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a"])];
    let evidence = CertificateEvidence {
        run: &world.run,
        verdicts: &world.verdicts,
        cells: &world.cells,
        claims: &Claims::default(),
        machines: &world.machines,
        results: &world.results,
        recordings: &world.recordings,
    };
    let (made, withheld) = issue_without_gate(&evidence, &Policy::default(), MADE + 60);
    assert_eq!((made.len(), withheld.len()), (1, 0), "{withheld:?}");
    assert_eq!(made[0].node, "n1".into());
}
