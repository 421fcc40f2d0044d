//! What a certificate holds, and what makes it void.

use super::*;
use crate::act::ledger::OwnDrain;
use crate::model::action::Action;
use crate::model::action::ActionKind;
use crate::model::certificate::VoidOn;
use crate::model::certificate::Voided;
use crate::model::facts::Device;
use crate::model::journal::Stamp;
use crate::model::raw::Ending;
use crate::model::raw::RESULT_FORMAT;
use crate::model::recording::Scope;
use crate::model::verdict::VERDICTS_FORMAT;
use crate::model::worker::Environment;
use crate::model::worker::MACHINE_FORMAT;

/// When the run was made: 2026-03-04T05:06:07Z.
const MADE: i64 = 1_772_600_767;

fn run() -> RunSeen {
    RunSeen {
        id: "r1".to_owned(),
        profile: "recertify".to_owned(),
        created: "2026-03-04T05:06:07.890Z".to_owned(),
        created_unix: MADE,
        complete: true,
        real: true,
        unsealed: None,
    }
}

fn verdicts(nodes: &[(&str, Outcome)]) -> Verdicts {
    let node = |(node, outcome): &(&str, Outcome)| NodeVerdict {
        node: NodeName::from(*node),
        domain: Some("block01".into()),
        outcome: *outcome,
        reason: String::new(),
        detectable: Some(0.012),
    };
    Verdicts {
        format: VERDICTS_FORMAT.to_owned(),
        platform: Some("gb200-nvl72".to_owned()),
        thresholds_digest: "sha".to_owned(),
        outcome: Outcome::Pass,
        findings: Vec::new(),
        nodes: nodes.iter().map(node).collect(),
        unknown: Vec::new(),
        notes: Vec::new(),
    }
}

/// All of them idle.
fn live(nodes: &[(&str, Outcome)]) -> Live {
    let idle = |name: &str| (NodeName::from(name), LiveNode::new(name, &["IDLE"]));
    Live { nodes: nodes.iter().map(|(name, _)| idle(name)).collect(), ..Live::default() }
}

fn machine(node: &str, boot: &str, gpus: &[&str]) -> Machine {
    let gpus = gpus.iter().enumerate();
    Machine {
        format: MACHINE_FORMAT.to_owned(),
        node: node.into(),
        environment: Environment {
            boot_id: Some(boot.to_owned()),
            driver: Some("570.86.15".to_owned()),
            gpus: gpus
                .map(|(at, uuid)| format!("{at}, {uuid}, 1980 MHz, 2619 MHz, 31, 118.2 W, 96.1"))
                .collect(),
            ..Environment::default()
        },
    }
}

fn cell(test: &str, src: &str, dst: &str, reading: u32, value: Option<f64>, unit: Unit) -> Cell {
    Cell {
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
        ending: Ending::Exited { code: 0 },
        started: String::new(),
        duration_s: 0.0,
        stdout: None,
        stderr: None,
        stdout_dropped: 0,
        stderr_dropped: 0,
        complaint: None,
        load: None,
        gpus: gpus.iter().enumerate().map(|(at, uuid)| format!("{at}, {uuid}")).collect(),
    }
}

/// What `nvidia-smi -q` says there.
fn recording(node: &str, driver: &str, gpus: &[Option<&str>]) -> Recording {
    let mut recording =
        Recording::new(Scope::Node(node.into()), "f", crate::measure::read(b"nothing"));
    recording.parsed.facts.driver = Some(driver.to_owned());
    let devices = (0..).zip(gpus).map(|(index, uuid)| Device {
        index,
        uuid: uuid.map(str::to_owned),
        ..Device::default()
    });
    recording.parsed.facts.devices = devices.collect();
    recording
}

struct World {
    run: RunSeen,
    verdicts: Verdicts,
    cells: Vec<Cell>,
    machines: Vec<Machine>,
    results: Vec<RawResult>,
    recordings: Vec<Recording>,
    ledger: Ledger,
    live: Live,
    records: Vec<ActionRecord>,
    now: i64,
}

impl World {
    fn new(nodes: &[(&str, Outcome)]) -> Self {
        Self {
            run: run(),
            verdicts: verdicts(nodes),
            cells: Vec::new(),
            machines: Vec::new(),
            results: Vec::new(),
            recordings: Vec::new(),
            ledger: Ledger::default(),
            live: live(nodes),
            records: Vec::new(),
            now: MADE + 60,
        }
    }

    fn made(&self) -> (Vec<Certificate>, Vec<Withheld>) {
        let evidence = Evidence {
            run: &self.run,
            verdicts: &self.verdicts,
            cells: &self.cells,
            claims: &Claims::default(),
            machines: &self.machines,
            results: &self.results,
            recordings: &self.recordings,
        };
        let acted = Acted { live: &self.live, records: &self.records, ledger: &self.ledger };
        certificates(&evidence, &acted, &Policy::default(), self.now)
    }

    fn one(&self) -> Certificate {
        let (made, withheld) = self.made();
        assert_eq!((made.len(), withheld.len()), (1, 0), "{withheld:?}");
        made.into_iter().next().expect("one")
    }

    fn refused(&self) -> String {
        let (made, withheld) = self.made();
        assert_eq!((made.len(), withheld.len()), (0, 1), "{made:?}");
        withheld[0].why.clone()
    }
}

#[test]
fn a_certificate_says_which_machine_delivered_what_and_until_when_that_counts() {
    let mut world = World::new(&[("n1", Outcome::Pass), ("n2", Outcome::Unknown)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a", "GPU-b"])];
    let gb = Unit::GigabytesPerSecond;
    world.cells = vec![
        // Five readings, one dip: the median is the level.
        cell("copy", "n1", "n1", 0, Some(770.0), gb),
        cell("copy", "n1", "n1", 1, Some(100.0), gb),
        cell("copy", "n1", "n1", 2, Some(769.0), gb),
        cell("copy", "n1", "n1", 3, Some(771.0), gb),
        cell("copy", "n1", "n1", 4, Some(768.0), gb),
        // The other end counts, too; a cell without a number does not.
        cell("copy", "n2", "n1", 0, Some(760.0), gb),
        cell("copy", "n1", "n2", 0, None, gb),
        cell("copy", "n2", "n2", 0, Some(1.0), gb),
        cell("latency", "n1", "n2", 0, Some(700.0), Unit::Nanoseconds),
        cell("write", "n1", "n2", 0, Some(47.0), gb),
    ];
    let made = world.one();
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
fn what_workers_do_not_say_is_taken_from_what_tools_printed() {
    let mut world = World::new(&[("n1", Outcome::Pass)]);
    assert_eq!(world.one().identity, Identity::default(), "a machine of which nothing is known");
    world.results = vec![result("n1", &["GPU-a", "GPU-b"])];
    assert_eq!(world.one().identity.gpus, ["GPU-a", "GPU-b"]);
    world.results.clear();
    world.recordings = vec![recording("n1", "580.1", &[Some("GPU-a"), Some("GPU-b")])];
    let identity = world.one().identity;
    assert_eq!(identity.gpus, ["GPU-a", "GPU-b"]);
    assert_eq!(identity.driver.as_deref(), Some("580.1"));
    world.recordings = vec![recording("n1", "580.1", &[Some("GPU-a"), None])];
    assert!(world.one().identity.gpus.is_empty(), "half a list is none");
}

#[test]
fn a_node_that_was_two_machines_in_one_run_is_not_certified() {
    let mut world = World::new(&[("n1", Outcome::Pass)]);
    let first = machine("n1", "b-1", &["GPU-a"]);
    world.machines = vec![first.clone(), first.clone()];
    assert_eq!(world.one().identity.gpus, ["GPU-a"], "a worker that was started again is no other");
    world.machines = vec![first.clone(), machine("n1", "b-2", &["GPU-a"])];
    assert_eq!(world.refused(), "it booted during the run");
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
fn runs_that_certify_nothing_say_why() {
    for (why, change) in [
        ("an audit measures too little", (|r| r.profile = "audit".to_owned()) as fn(&mut RunSeen)),
        ("\"judge\" is no profile that certifies", |r| r.profile = "judge".to_owned()),
        ("the run measured no nodes", |r| r.real = false),
        ("the run did not come to its end", |r| r.complete = false),
        ("the run does not say when", |r| r.created_unix = 0),
    ] {
        let mut world = World::new(&[("n1", Outcome::Pass)]);
        change(&mut world.run);
        assert!(world.refused().starts_with(why), "{}", world.refused());
    }
}

#[test]
fn a_node_that_we_drained_waits_for_its_release() {
    let mut world = World::new(&[("n1", Outcome::Pass)]);
    let action = Action {
        kind: ActionKind::Drain,
        node: "n1".into(),
        domain: None,
        leaf: None,
        command: Vec::new(),
        reason: String::new(),
        mark: None,
        device: None,
        findings: Vec::new(),
        ratio: None,
        price: None,
        why: String::new(),
    };
    let drain = OwnDrain {
        id: "i".to_owned(),
        epoch: 1,
        stamp: Stamp::default(),
        run: "r0".to_owned(),
        action,
        before: LiveNode::new("n1", &["IDLE"]),
        clean: Vec::new(),
    };
    world.ledger.drains.insert("n1".into(), drain);
    assert!(world.refused().contains("once our drain of it is taken back"));
}

#[test]
fn names_that_could_lead_elsewhere_get_no_certificate() {
    for name in ["../n1", "a/b", "all", ""] {
        let world = World::new(&[(name, Outcome::Pass)]);
        assert!(world.refused().contains("name of one node"), "{name}");
    }
}

fn certified() -> Certificate {
    let mut world = World::new(&[("n1", Outcome::Pass)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a", "GPU-b"])];
    world.one()
}

#[test]
fn a_certificate_is_void_when_the_machine_is_another_or_booted() {
    let certificate = certified();
    let same = certificate.identity.clone();
    let now = MADE + DAY_S;
    assert_eq!(void(&certificate, &same, now), None);
    let why = |change: fn(&mut Identity)| {
        let mut identity = same.clone();
        change(&mut identity);
        void(&certificate, &identity, now).unwrap_or_default()
    };
    assert_eq!(why(|i| i.gpus[1] = "GPU-c".to_owned()), "1 of its 2 GPUs are not those certified");
    assert_eq!(
        why(|i| {
            i.gpus.pop();
        }),
        "1 of the 2 GPUs that were certified are gone"
    );
    assert!(why(|i| i.gpus.swap(0, 1)).contains("another order"));
    assert_eq!(
        why(|i| i.driver = Some("580.1".to_owned())),
        "another driver: 580.1, certified with 570.86.15"
    );
    assert_eq!(
        why(|i| i.boot_id = Some("b-2".to_owned())),
        "it booted since: boot b-2, certified in boot b-1"
    );
    assert_eq!(
        why(|i| {
            i.firmware.insert("GPU 0 VBIOS".to_owned(), "97".to_owned());
        }),
        "other firmware of GPU 0 VBIOS: 97, certified with 96.1"
    );
}

#[test]
fn what_is_not_known_is_not_compared_and_where_nothing_is_known_it_is_void() {
    let certificate = certified();
    let now = MADE + DAY_S;
    let only = |identity: Identity| void(&certificate, &identity, now);
    assert_eq!(
        only(Identity { driver: Some("570.86.15".to_owned()), ..Identity::default() }),
        None
    );
    assert_eq!(only(Identity { boot_id: Some("b-1".to_owned()), ..Identity::default() }), None);
    let nothing = only(Identity::default()).expect("void");
    assert!(nothing.starts_with("nothing tells"), "{nothing}");
    // Firmware of a part that was not there then says nothing.
    let other = [("NIC".to_owned(), "1".to_owned())].into();
    assert!(only(Identity { firmware: other, ..Identity::default() }).is_some());
}

#[test]
fn a_certificate_counts_from_its_run_to_its_end_unless_it_was_voided() {
    let mut certificate = certified();
    assert_eq!(spent(&certificate, MADE), None);
    assert_eq!(spent(&certificate, certificate.expires_unix - 1), None);
    let expired = "expired 2026-03-11T05:06:07Z";
    assert_eq!(spent(&certificate, certificate.expires_unix).as_deref(), Some(expired));
    assert!(spent(&certificate, MADE - 1).expect("void").contains("yet to come"));
    let voided = Voided { at: "then".to_owned(), why: "drained".to_owned() };
    certificate.voided = Some(voided);
    assert_eq!(spent(&certificate, MADE).as_deref(), Some("voided then: drained"));
    let identity = certificate.identity.clone();
    assert_eq!(void(&certificate, &identity, MADE).as_deref(), Some("voided then: drained"));
}

#[test]
fn a_boot_after_the_run_is_told_from_the_scheduler_alone() {
    let certificate = certified();
    let mut node = LiveNode::new("n1", &["IDLE"]);
    assert_eq!(outlived(&certificate, &node), None, "nobody says when it booted");
    node.booted = Some(MADE - 1);
    assert_eq!(outlived(&certificate, &node), None);
    node.booted = Some(MADE + 1);
    assert_eq!(
        outlived(&certificate, &node).as_deref(),
        Some("it booted 2026-03-04T05:06:08Z, after it was certified")
    );
}

#[test]
fn a_shorter_certificate_gives_way_to_none_that_still_holds() {
    let now = Stamp { unix: MADE + 60, ..Stamp::default() };
    let whole = certified();
    let admitted = Certificate { expires_unix: MADE + DAY_S, ..whole.clone() };
    assert!(!replaces(&admitted, &whole, &now));
    assert!(replaces(&whole, &admitted, &now));
    assert!(replaces(&whole, &whole, &now), "the same run, told again");
    let mut other = admitted.clone();
    other.identity.boot_id = Some("b-2".to_owned());
    assert!(replaces(&other, &whole, &now), "the old one is of another boot");
    let voided = Voided { at: String::new(), why: String::new() };
    let void = Certificate { voided: Some(voided), ..whole };
    assert!(replaces(&admitted, &void, &now));
}

#[test]
fn the_boot_of_each_node_is_what_its_workers_agree_on() {
    let machines = [
        machine("n1", "b-1", &["GPU-1"]),
        machine("n1", "b-1", &["GPU-2"]),
        machine("n2", "b-1", &["GPU-3"]),
        machine("n2", "b-2", &["GPU-3"]),
        machine("n3", "[N/A]", &["GPU-4"]),
    ];
    assert_eq!(boots(&machines), [("n1".into(), "b-1".to_owned())].into());
}

#[test]
fn a_certificate_outlives_no_boot_that_has_another_name() {
    let machines = [machine("n1", "b-1", &["GPU-1"])];
    let (run, verdicts) = (run(), verdicts(&[("n1", Outcome::Pass)]));
    let evidence = Evidence {
        run: &run,
        verdicts: &verdicts,
        cells: &[],
        claims: &Claims::default(),
        machines: &machines,
        results: &[],
        recordings: &[],
    };
    let live = live(&[("n1", Outcome::Pass)]);
    let acted = Acted { live: &live, records: &[], ledger: &Ledger::default() };
    let (made, _) = certificates(&evidence, &acted, &Policy::default(), MADE + 60);
    let now = |boot: Option<&str>, booted: Option<i64>| {
        let boot_id = boot.map(str::to_owned);
        outlived(&made[0], &LiveNode { boot_id, booted, ..LiveNode::new("n1", &["IDLE"]) })
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
fn what_is_not_certified_on_a_node_has_no_certificate_on_disk() {
    let n1 = NodeName::from("n1");
    let world = |state: &str, boot: &str| {
        let mut world = World::new(&[("n1", Outcome::Pass)]);
        world.machines = vec![machine("n1", "b-1", &["GPU-1"])];
        let node = LiveNode { boot_id: Some(boot.to_owned()), ..LiveNode::new("n1", &[state]) };
        world.live.nodes.insert(n1.clone(), node);
        world
    };
    assert_eq!(world("IDLE", "b-1").made().0.len(), 1);
    let record = |kind, result| ActionRecord {
        kind,
        node: n1.clone(),
        result,
        detail: "somebody was faster".to_owned(),
        at: String::new(),
    };

    let mut booted = world("IDLE", "b-2");
    assert!(booted.refused().contains("not certified: it has booted since"));
    booted.machines.clear();
    assert!(booted.refused().contains("does not tell in which boot"));
    booted.live.nodes.clear();
    assert!(booted.refused().contains("does not tell of it"));

    for state in ["DRAIN", "CORDONED", "TAINTED", "NOT_READY", "DELETING"] {
        let mut out = world(state, "b-1");
        assert!(out.refused().contains("out of service"), "{state}");
        // It is so no more where we gave it back.
        out.records = vec![record(ActionKind::Release, ActionResult::Done)];
        assert_eq!(out.made().0.len(), 1, "{state}");
        out.records = vec![record(ActionKind::Release, ActionResult::Unknown)];
        assert!(out.refused().contains("out of service"), "{state}");
    }

    let mut unsaid = world("IDLE", "b-1");
    for result in [ActionResult::Superseded, ActionResult::Failed, ActionResult::Unknown] {
        unsaid.records = vec![record(ActionKind::Certify, result)];
        assert!(unsaid.refused().contains("somebody was faster"), "{result:?}");
    }
    unsaid.records = vec![record(ActionKind::Certify, ActionResult::Done)];
    assert_eq!(unsaid.made().0.len(), 1);

    unsaid.now = MADE + 8 * DAY_S;
    assert!(unsaid.made().1[0].why.contains("counts no longer"));
    unsaid.now = MADE - DAY_S;
    assert!(unsaid.made().1[0].why.contains("not yet"));
}

#[test]
fn each_profile_counts_for_its_own_days_and_an_admission_for_one_unless_a_site_says_so() {
    let of = |policy: &Policy| Profile::ALL.iter().map(|it| days(*it, policy)).collect::<Vec<_>>();
    // In the order admit, burn-in, recertify, audit.
    assert_eq!(of(&Policy::default()), [1, 7, 7, 0]);
    assert_eq!(of(&Policy { certificate_days: 0, ..Policy::default() }), [0, 0, 0, 0]);
    let own = Policy {
        certificate_days: 5,
        certificate_days_admit: Some(2),
        certificate_days_burn_in: Some(90),
        ..Policy::default()
    };
    assert_eq!(of(&own), [2, 90, 5, 0]);
    let run = RunSeen { profile: "burn-in".to_owned(), ..run() };
    assert_eq!(validity(&run, &own), Ok(90 * DAY_S));
}

#[test]
fn what_voids_is_what_was_configured_when_it_was_issued() {
    let then = Identity {
        gpus: vec!["GPU-a".to_owned()],
        boot_id: Some("b-1".to_owned()),
        driver: Some("580.65.06".to_owned()),
        firmware: [("GPU 0 VBIOS".to_owned(), "96.1".to_owned())].into(),
    };
    let certificate = |void_on| Certificate { identity: then.clone(), void_on, ..certified() };
    let now = MADE + 60;
    let booted = Identity { boot_id: Some("b-2".to_owned()), ..then.clone() };
    let minor = Identity { driver: Some("580.95.05".to_owned()), ..then.clone() };
    let major = Identity { driver: Some("590.44.01".to_owned()), ..then.clone() };
    let flashed = Identity {
        firmware: [("GPU 0 VBIOS".to_owned(), "97.0".to_owned())].into(),
        ..then.clone()
    };
    let swapped = Identity { gpus: vec!["GPU-z".to_owned()], ..then.clone() };
    let machines = [&booted, &minor, &major, &flashed, &swapped];
    let voids = |void_on: VoidOn| {
        machines.map(|machine| void(&certificate(void_on), machine, now).is_some())
    };
    let all = VoidOn::default();
    assert_eq!(voids(all), [true; 5]);
    assert_eq!(voids(VoidOn { boot: false, ..all }), [false, true, true, true, true]);
    let branch = VoidOn { driver: DriverVoids::Major, ..all };
    assert_eq!(voids(branch), [true, false, true, true, true]);
    let none = VoidOn { boot: false, driver: DriverVoids::Never, firmware: false };
    assert_eq!(voids(none), [false, false, false, false, true], "other GPUs always do");
    let found = compared(&certificate(branch), &minor);
    assert_eq!(found.same, ["gpus", "boot", "firmware of GPU 0 VBIOS"]);
    assert_eq!((found.differs.len(), found.differs[0].voids), (1, false));
    let node = LiveNode { booted: Some(MADE + 30), ..LiveNode::new("n1", &["IDLE"]) };
    let silent = Identity { boot_id: None, ..then.clone() };
    let by_time = |void_on| {
        let it = Certificate { identity: silent.clone(), void_on, ..certified() };
        outlived(&it, &node).is_some()
    };
    assert_eq!([by_time(all), by_time(VoidOn { boot: false, ..all })], [true, false]);
}

#[test]
fn a_run_certifies_nothing_where_nothing_it_issues_would_count() {
    let why = "certificates must be signed: key.pem: mode 644".to_owned();
    let run = RunSeen { unsealed: Some(why.clone()), ..run() };
    assert_eq!(validity(&run, &Policy::default()), Err(why));
}

#[test]
fn where_nothing_is_known_of_a_machine_nothing_is_the_same() {
    let nothing = compared(&certified(), &Identity::default());
    assert!(nothing.is_nothing && nothing.same.is_empty());
}

#[test]
fn how_one_stands_is_told_with_the_reason_that_counts_most() {
    let certificate = certified();
    let (now, end) = (MADE + 60, certificate.expires_unix);
    let of = |certificate: &Certificate, refusal: Option<&str>, now| {
        standing(certificate, refusal.map(str::to_owned), now).0
    };
    assert_eq!(of(&certificate, None, now), Standing::Valid);
    assert_eq!(of(&certificate, None, end), Standing::Expired);
    assert_eq!(of(&certificate, Some("edited"), end), Standing::Untrusted);
    let voided = Some(Voided { at: "then".to_owned(), why: "drained".to_owned() });
    let void = Certificate { voided, ..certificate };
    assert_eq!(of(&void, Some("unsigned"), now), Standing::Void);
}

#[test]
fn a_run_that_no_gate_acted_on_shows_what_its_nodes_passed() {
    let mut world = World::new(&[("n1", Outcome::Pass), ("n2", Outcome::Degraded)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a"])];
    let evidence = Evidence {
        run: &world.run,
        verdicts: &world.verdicts,
        cells: &world.cells,
        claims: &Claims::default(),
        machines: &world.machines,
        results: &world.results,
        recordings: &world.recordings,
    };
    let (made, withheld) = unacted_on(&evidence, &Policy::default(), MADE + 60);
    assert_eq!((made.len(), withheld.len()), (1, 0), "{withheld:?}");
    assert_eq!(made[0].node, "n1".into());
}
