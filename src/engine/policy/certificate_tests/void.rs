//! How long a certificate counts: events that void it, events that it survives, and which of two
//! certificates wins.

use super::*;

fn certified() -> Certificate {
    let mut world = CertificateFixture::new(&[("n1", Outcome::Pass)]);
    world.machines = vec![machine("n1", "b-1", &["GPU-a", "GPU-b"])];
    world.single()
}

#[test]
fn a_certificate_is_void_when_the_machine_is_another_or_booted() {
    let certificate = certified();
    let same = certificate.identity.clone();
    let now = MADE + DAY_S;
    assert_eq!(explain_void(&certificate, &same, now), None);
    let why = |change: fn(&mut MachineIdentity)| {
        let mut identity = same.clone();
        change(&mut identity);
        explain_void(&certificate, &identity, now).unwrap_or_default()
    };
    assert_eq!(
        why(|i| i.gpus[1] = "GPU-c".to_owned()),
        "1 of its 2 GPUs are not the certified ones"
    );
    assert_eq!(
        why(|i| {
            i.gpus.pop();
        }),
        "1 of the 2 certified GPUs are missing"
    );
    assert!(why(|i| i.gpus.swap(0, 1)).contains("another order"));
    assert_eq!(
        why(|i| i.driver = Some("580.1".to_owned())),
        "another driver: 580.1, certified with 570.86.15"
    );
    assert_eq!(
        why(|i| i.boot_id = Some("b-2".to_owned())),
        "it has rebooted: boot b-2, certified in boot b-1"
    );
    assert_eq!(
        why(|i| {
            i.firmware.insert("GPU 0 VBIOS".to_owned(), "97".to_owned());
        }),
        "other firmware of GPU 0 VBIOS: 97, certified with 96.1"
    );
}

#[test]
fn unknown_parts_are_not_compared_and_an_unknown_identity_is_void() {
    let certificate = certified();
    let now = MADE + DAY_S;
    let only = |identity: MachineIdentity| explain_void(&certificate, &identity, now);
    assert_eq!(
        only(MachineIdentity {
            driver: Some("570.86.15".to_owned()),
            ..MachineIdentity::default()
        }),
        None
    );
    assert_eq!(
        only(MachineIdentity { boot_id: Some("b-1".to_owned()), ..MachineIdentity::default() }),
        None
    );
    let nothing = only(MachineIdentity::default()).expect("void");
    assert!(nothing.starts_with("nothing identifies"), "{nothing}");
    // The firmware of a part that was absent then proves nothing.
    let other = [("NIC".to_owned(), "1".to_owned())].into();
    assert!(only(MachineIdentity { firmware: other, ..MachineIdentity::default() }).is_some());
}

#[test]
fn a_certificate_counts_from_its_run_to_its_end_unless_it_was_voided() {
    let mut certificate = certified();
    assert_eq!(explain_expiry(&certificate, MADE), None);
    assert_eq!(explain_expiry(&certificate, certificate.expires_unix - 1), None);
    let expired = "expired 2026-03-11T05:06:07Z";
    assert_eq!(explain_expiry(&certificate, certificate.expires_unix).as_deref(), Some(expired));
    assert!(explain_expiry(&certificate, MADE - 1).expect("void").contains("in the future"));
    let voided = VoidRecord { at: "then".to_owned(), why: "drained".to_owned() };
    certificate.voided = Some(voided);
    assert_eq!(explain_expiry(&certificate, MADE).as_deref(), Some("voided then: drained"));
    let identity = certificate.identity.clone();
    assert_eq!(
        explain_void(&certificate, &identity, MADE).as_deref(),
        Some("voided then: drained")
    );
}

#[test]
fn a_boot_after_the_run_follows_from_the_scheduler_alone() {
    let certificate = certified();
    let mut node = SchedulerNode::new("n1", &["IDLE"]);
    assert_eq!(explain_outlived(&certificate, &node), None, "the boot time is unknown");
    node.booted = Some(MADE - 1);
    assert_eq!(explain_outlived(&certificate, &node), None);
    node.booted = Some(MADE + 1);
    assert_eq!(
        explain_outlived(&certificate, &node).as_deref(),
        Some("it booted 2026-03-04T05:06:08Z, after it was certified")
    );
}

#[test]
fn a_shorter_certificate_gives_way_to_none_that_still_holds() {
    let now = ClockStamp { unix: MADE + 60, ..ClockStamp::default() };
    let whole = certified();
    let admitted = Certificate { expires_unix: MADE + DAY_S, ..whole.clone() };
    assert!(!replaces(&admitted, &whole, &now));
    assert!(replaces(&whole, &admitted, &now));
    assert!(replaces(&whole, &whole, &now), "the same run again");
    let mut other = admitted.clone();
    other.identity.boot_id = Some("b-2".to_owned());
    assert!(replaces(&other, &whole, &now), "the old one is of another boot");
    let voided = VoidRecord { at: String::new(), why: String::new() };
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
    assert_eq!(boot_ids(&machines), [("n1".into(), "b-1".to_owned())].into());
}

#[test]
fn each_profile_has_its_own_validity_and_an_admission_one_day_by_default() {
    let of = |policy: &Policy| {
        Profile::ALL.iter().map(|it| certificate_days(*it, policy)).collect::<Vec<_>>()
    };
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
    let run = EvidenceRun { profile: "burn-in".to_owned(), ..run() };
    assert_eq!(run_validity_s(&run, &own), Ok(90 * DAY_S));
}

#[test]
fn the_void_policy_is_that_at_the_time_of_issue() {
    let then = MachineIdentity {
        gpus: vec!["GPU-a".to_owned()],
        boot_id: Some("b-1".to_owned()),
        driver: Some("580.65.06".to_owned()),
        firmware: [("GPU 0 VBIOS".to_owned(), "96.1".to_owned())].into(),
    };
    let certificate = |void_on| Certificate { identity: then.clone(), void_on, ..certified() };
    let now = MADE + 60;
    let booted = MachineIdentity { boot_id: Some("b-2".to_owned()), ..then.clone() };
    let minor = MachineIdentity { driver: Some("580.95.05".to_owned()), ..then.clone() };
    let major = MachineIdentity { driver: Some("590.44.01".to_owned()), ..then.clone() };
    let flashed = MachineIdentity {
        firmware: [("GPU 0 VBIOS".to_owned(), "97.0".to_owned())].into(),
        ..then.clone()
    };
    let swapped = MachineIdentity { gpus: vec!["GPU-z".to_owned()], ..then.clone() };
    let machines = [&booted, &minor, &major, &flashed, &swapped];
    let voids = |void_on: VoidPolicy| {
        machines.map(|machine| explain_void(&certificate(void_on), machine, now).is_some())
    };
    let all = VoidPolicy::default();
    assert_eq!(voids(all), [true; 5]);
    assert_eq!(voids(VoidPolicy { boot: false, ..all }), [false, true, true, true, true]);
    let branch = VoidPolicy { driver: DriverVoidRule::Major, ..all };
    assert_eq!(voids(branch), [true, false, true, true, true]);
    let none = VoidPolicy { boot: false, driver: DriverVoidRule::Never, firmware: false };
    assert_eq!(voids(none), [false, false, false, false, true], "other GPUs always do");
    let found = compare_machine(&certificate(branch), &minor);
    assert_eq!(found.same, ["gpus", "boot", "firmware of GPU 0 VBIOS"]);
    assert_eq!((found.differs.len(), found.differs[0].voids), (1, false));
    let node = SchedulerNode { booted: Some(MADE + 30), ..SchedulerNode::new("n1", &["IDLE"]) };
    let silent = MachineIdentity { boot_id: None, ..then.clone() };
    let by_time = |void_on| {
        let it = Certificate { identity: silent.clone(), void_on, ..certified() };
        explain_outlived(&it, &node).is_some()
    };
    assert_eq!([by_time(all), by_time(VoidPolicy { boot: false, ..all })], [true, false]);
}

#[test]
fn a_run_certifies_nothing_where_nothing_it_issues_would_count() {
    let why = "certificates must be signed: key.pem: mode 644".to_owned();
    let run = EvidenceRun { unsigned: Some(why.clone()), ..run() };
    assert_eq!(run_validity_s(&run, &Policy::default()), Err(why));
}

#[test]
fn where_nothing_is_known_of_a_machine_nothing_is_the_same() {
    let nothing = compare_machine(&certified(), &MachineIdentity::default());
    assert!(nothing.is_incomparable && nothing.same.is_empty());
}

#[test]
fn the_status_has_the_most_important_reason() {
    let certificate = certified();
    let (now, end) = (MADE + 60, certificate.expires_unix);
    let of = |certificate: &Certificate, refusal: Option<&str>, now| {
        certificate_standing(certificate, refusal.map(str::to_owned), now).0
    };
    assert_eq!(of(&certificate, None, now), CertificateStatus::Valid);
    assert_eq!(of(&certificate, None, end), CertificateStatus::Expired);
    assert_eq!(of(&certificate, Some("edited"), end), CertificateStatus::Untrusted);
    let voided = Some(VoidRecord { at: "then".to_owned(), why: "drained".to_owned() });
    let void = Certificate { voided, ..certificate };
    assert_eq!(of(&void, Some("unsigned"), now), CertificateStatus::Void);
}
