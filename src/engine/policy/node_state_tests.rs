//! Tests of every state token, of the owner of a drain, and of the result.

use super::*;
use crate::policy::fixture::{PolicyFixture, drain, stamp};
use crate::policy::journal_state::CleanRun;
use model::claims::Claims;
use model::kubernetes_node::KubernetesNode;

const OURS: &str = "fabricgate:nvlink-low:run1 e3";

fn node(state: &[&str], reason: &str) -> SchedulerNode {
    let reason = Some(reason.to_owned()).filter(|reason| !reason.is_empty());
    SchedulerNode { reason, ..SchedulerNode::new("n1", state) }
}

/// A ledger with one drain by fabricgate, on `n1`, made a day ago.
fn ours() -> JournalState {
    let mut ledger = JournalState::default();
    let own = drain(&Claims::default(), "n1", "nvlink-low", 0.9, stamp(86_400));
    ledger.drains.insert("n1".into(), own);
    ledger
}

fn drainable(state: &[&str], reason: &str, ledger: &JournalState) -> Result<(), String> {
    explain_no_drain(&node(state, reason), ledger).map_or(Ok(()), Err)
}

fn clean_run(run: &str, measured: i64) -> CleanRun {
    CleanRun { run: run.to_owned(), measured, boot_id: None }
}

#[test]
fn a_node_in_service_may_be_drained_also_while_it_is_busy_or_kept() {
    for state in [
        &["IDLE"][..],
        &["MIXED"],
        &["ALLOCATED"],
        &["IDLE", "COMPLETING"],
        &["ALLOCATED", "COMPLETING"],
        &["IDLE", "PLANNED"],
        &["IDLE", "RESERVED"],
        &["IDLE", "RESERVED", "MAINTENANCE"],
        &["IDLE", "BLOCKED"],
        &["IDLE", "CLOUD"],
        &["IDLE", "DYNAMIC_NORM"],
        &["IDLE", "EXTERNAL", "DYNAMIC_NORM"],
        &["IDLE", "PERFCTRS"],
    ] {
        assert_eq!(drainable(state, "", &JournalState::default()), Ok(()), "{state:?}");
    }
    let remark = |state: &[&str]| drain_remark(&node(state, ""));
    assert_eq!(remark(&["IDLE"]), None);
    assert!(remark(&["MIXED"]).is_some_and(|s| s.contains("its jobs end first")));
    for word in ["PLANNED", "RESERVED", "MAINTENANCE", "BLOCKED"] {
        assert!(remark(&["IDLE", word]).is_some_and(|s| s.contains(word)), "{word}");
    }
    assert!(remark(&["IDLE", "COMPLETING"]).is_some_and(|s| s.contains("COMPLETING")));
}

#[test]
fn a_node_that_is_down_absent_rebooting_or_unheard_of_is_left_alone() {
    for (state, why) in [
        (&["DOWN"][..], "keeps jobs away already"),
        (&["DOWN", "NOT_RESPONDING"], "keeps jobs away already"),
        (&["IDLE", "NOT_RESPONDING"], "keeps jobs away already"),
        (&["FAIL"], "keeps jobs away already"),
        (&["ERROR"], "keeps jobs away already"),
        (&["IDLE", "INVALID_REG"], "keeps jobs away already"),
        (&["UNKNOWN"], "try again"),
        (&["FUTURE"], "no node exists to drain"),
        (&["IDLE", "CLOUD", "POWERED_DOWN"], "no node exists to drain"),
        (&["IDLE", "CLOUD", "POWERING_UP"], "no node exists to drain"),
        (&["IDLE", "CLOUD", "POWERING_DOWN"], "no node exists to drain"),
        (&["IDLE", "CLOUD", "POWER_DOWN"], "no node exists to drain"),
        (&["IDLE", "REBOOT_REQUESTED"], "check again after that"),
        (&["DOWN", "REBOOT_ISSUED"], "check again after that"),
        (&["IDLE", "UNDRAIN"], "check again after that"),
        (&["IDLE", "BRAND_NEW"], "BRAND_NEW"),
        (&[], "reports no state"),
    ] {
        let refused = drainable(state, "", &JournalState::default());
        assert!(
            refused.clone().is_err_and(|message| message.contains(why)),
            "{state:?}: {refused:?}"
        );
    }
}

#[test]
fn another_user_s_reason_is_not_fabricgate_s() {
    for (state, reason) in [
        (&["IDLE", "DRAIN"][..], "bob: bad DIMM"),
        (&["MIXED", "DRAIN"], "Prolog error"),
        (&["IDLE", "DRAIN"], "bob: undo of fabricgate:nvlink-low:run1 e3"),
        (&["DOWN"], "Not responding"),
        (&["DOWN", "NOT_RESPONDING"], "Not responding"),
        (&["FAIL"], "bob"),
        (&["DOWN", "DRAIN"], "never comes back : Not responding : reboot timed out"),
        // Slurm 24.11 keeps the reason of a node in service.
        (&["IDLE"], "bob: leave it"),
    ] {
        let node = node(state, reason);
        assert!(matches!(drain_owner(&node, &ours()), DrainOwner::Other(_)), "{state:?} {reason}");
        let reason_text = explain_no_drain(&node, &ours()).expect("not ours");
        assert!(
            reason_text.contains(reason) && reason_text.contains("not by fabricgate"),
            "{reason_text}"
        );
        assert!(explain_no_release(&node, &ours()).is_some(), "{state:?} {reason}");
    }
    // slurmrestd drains without a reason.
    assert!(matches!(drain_owner(&node(&["IDLE", "DRAIN"], ""), &ours()), DrainOwner::Other(_)));
    let rude = node(&["IDLE", "DRAIN"], "\u{1b}[31mred\nNodeName=x");
    assert!(
        explain_no_drain(&rude, &ours())
            .is_some_and(|reason_text| !reason_text.contains(['\u{1b}', '\n']))
    );
}

#[test]
fn a_drain_is_fabricgate_s_by_run_class_turn_and_journal() {
    let of = |reason: &str, ledger: &JournalState| match drain_owner(
        &node(&["IDLE", "DRAIN"], reason),
        ledger,
    ) {
        DrainOwner::NotDrained => "none",
        DrainOwner::ThisGate(_) => "own",
        DrainOwner::Unrecorded => "unrecorded",
        DrainOwner::Other(_) => "other",
    };
    assert_eq!(of(OURS, &ours()), "own");
    assert_eq!(of(&format!("{OURS} : Not responding"), &ours()), "own");
    assert_eq!(of(OURS, &JournalState::default()), "unrecorded");
    assert_eq!(of("fabricgate:nvlink-low:run9 e3", &ours()), "unrecorded");
    assert_eq!(of("fabricgate:gpu-missing:run1 e3", &ours()), "unrecorded");
    assert_eq!(of("fabricgate:nvlink-low:run1 e4", &ours()), "unrecorded");
    for reason in [OURS, "fabricgate:x:run9 e1"] {
        assert!(drainable(&["IDLE", "DRAIN"], reason, &ours()).is_err());
    }
    let own = drainable(&["IDLE", "DRAIN"], OURS, &ours());
    assert!(own.is_err_and(|message| message.contains("drained already, by fabricgate")));
    // Without the flag the node is not drained, even if a reason remains.
    assert_eq!(drain_owner(&node(&["IDLE"], OURS), &ours()), DrainOwner::NotDrained);
}

#[test]
fn only_fabricgate_s_drain_of_a_responding_node_is_released() {
    let may =
        |state: &[&str], reason: &str| explain_no_release(&node(state, reason), &ours()).is_none();
    for state in [&["IDLE", "DRAIN"][..], &["MIXED", "DRAIN"], &["IDLE", "DRAIN", "RESERVED"]] {
        assert!(may(state, OURS), "{state:?}");
    }
    for state in [
        &["IDLE"][..],
        &["DOWN"],
        &["IDLE", "DRAIN", "NOT_RESPONDING"],
        &["DOWN", "DRAIN", "NOT_RESPONDING"],
        &["IDLE", "DRAIN", "REBOOT_REQUESTED"],
        &["DOWN", "DRAIN", "REBOOT_ISSUED"],
        &["UNKNOWN", "DRAIN"],
        &["IDLE", "DRAIN", "CLOUD", "POWERED_DOWN"],
        &["IDLE", "DRAIN", "INVALID_REG"],
        &["FAIL", "DRAIN"],
        &["ERROR", "DRAIN"],
        &["IDLE", "DRAIN", "BRAND_NEW"],
        &[],
    ] {
        assert!(!may(state, OURS), "{state:?}");
    }
    for behind in [" : reboot issued", " keep, bob", " : Not responding : reboot timed out"] {
        assert!(!may(&["IDLE", "DRAIN"], &format!("{OURS}{behind}")), "{behind}");
    }
    assert!(!may(&["IDLE", "DRAIN"], "fabricgate:nvlink-low:run1 e9"));
    assert!(!may(&["IDLE", "DRAIN"], ""));
}

#[test]
fn a_node_that_was_lost_is_given_back_after_a_clean_run_of_later_only() {
    let lost_at = 1_000;
    let with = |clean: &[i64], state: &[&str], reason: &str, at: Option<i64>| {
        let mut ledger = ours();
        let own = ledger.drains.values_mut().next().expect("one");
        own.clean = clean.iter().map(|t| clean_run(&format!("r{t}"), *t)).collect();
        let node = SchedulerNode { reason_at: at, ..node(state, reason) };
        explain_no_release(&node, &ledger)
    };
    let lost = format!("{OURS} : Not responding");
    for (state, reason) in [
        (&["IDLE", "DRAIN"][..], lost.as_str()),
        (&["DOWN", "DRAIN"], lost.as_str()),
        (&["DOWN", "DRAIN"], OURS),
    ] {
        assert_eq!(with(&[lost_at + 1], state, reason, Some(lost_at)), None, "{state:?}");
        for (clean, at) in
            [(&[][..], Some(lost_at)), (&[lost_at], Some(lost_at)), (&[lost_at + 1], None)]
        {
            let refused = with(clean, state, reason, at);
            assert!(refused.is_some_and(|w| w.contains("no clean run")), "{state:?} {clean:?}");
        }
    }
    let still = with(&[lost_at + 1], &["DOWN", "DRAIN", "NOT_RESPONDING"], &lost, Some(lost_at));
    assert!(still.is_some_and(|why| why.contains("does not respond")));
}

#[test]
fn a_drain_has_come_to_its_end_when_nothing_runs_there() {
    let at_end = |state: &[&str], cpus: Option<u32>| {
        is_drained(&SchedulerNode { allocated_cpus: cpus, ..SchedulerNode::new("n1", state) })
    };
    assert!(at_end(&["IDLE", "DRAIN"], Some(0)));
    assert!(at_end(&["IDLE", "DRAIN"], None));
    assert!(at_end(&["DOWN", "DRAIN"], Some(0)));
    assert!(at_end(&["DRAINED"], None));
    for state in [
        &["MIXED", "DRAIN"][..],
        &["ALLOCATED", "DRAIN"],
        &["IDLE", "DRAIN", "COMPLETING"],
        &["DOWN", "DRAIN", "COMPLETING"],
        &["UNKNOWN", "DRAIN"],
        &["DRAINING"],
        &["IDLE"],
        &["DOWN"],
        &["DRAIN"],
    ] {
        assert!(!at_end(state, Some(0)), "{state:?}");
    }
    assert!(!at_end(&["IDLE", "DRAIN"], Some(4)));
}

#[test]
fn only_what_is_idle_and_in_service_is_measured() {
    let mut idle = PolicyFixture::with_blocks(1, 1);
    assert_eq!(explain_no_measurement(idle.node("d0n0")), None);
    assert_eq!(explain_no_measurement(&node(&["IDLE", "CLOUD"], "")), None);
    for state in [
        &["MIXED"][..],
        &["ALLOCATED"],
        &["IDLE", "COMPLETING"],
        &["IDLE", "DRAIN"],
        &["DOWN"],
        &["IDLE", "NOT_RESPONDING"],
        &["IDLE", "PLANNED"],
        &["IDLE", "RESERVED"],
        &["IDLE", "MAINTENANCE"],
        &["IDLE", "BLOCKED"],
        &["UNKNOWN"],
        &["FUTURE"],
        &["IDLE", "POWERED_DOWN"],
        &["IDLE", "REBOOT_REQUESTED"],
        &["IDLE", "INVALID_REG"],
        &["IDLE", "EXTERNAL"],
        &["IDLE", "BRAND_NEW"],
        &["CLOUD"],
        &[],
    ] {
        assert!(explain_no_measurement(&node(state, "")).is_some(), "{state:?}");
    }
    idle.node("d0n0").allocated_cpus = Some(2);
    assert!(
        explain_no_measurement(idle.node("d0n0")).is_some_and(|why| why.contains("2 of its CPUs"))
    );
}

#[test]
fn appended_text_of_users_is_reported_and_slurm_s_is_not() {
    let added = |reason: &str| appended_text(&node(&["IDLE", "DRAIN"], reason));
    assert_eq!(added(OURS), None);
    assert_eq!(added(&format!("{OURS} : Not responding")), None);
    assert_eq!(added("psu: swap"), None);
    for behind in [" -- bob: waiting for a tray", " : Not responding, bob", " : reboot issued"] {
        let why = added(&format!("{OURS}{behind}"));
        assert!(why.is_some_and(|why| why.contains(behind.trim())), "{behind}");
    }
}

#[test]
fn nodes_without_new_jobs_are_out_and_reserved_nodes_are_not() {
    let out = |state: &[&str]| is_out(&node(state, ""));
    for state in [&["IDLE"][..], &["MIXED"], &["IDLE", "PLANNED"], &["IDLE", "BLOCKED"]] {
        assert!(!out(state), "{state:?}");
    }
    for state in [
        &["IDLE", "DRAIN"][..],
        &["MIXED", "DRAIN"],
        &["DOWN"],
        &["IDLE", "NOT_RESPONDING"],
        &["UNKNOWN"],
        &["IDLE", "POWERED_DOWN"],
        &["IDLE", "REBOOT_REQUESTED"],
        &["IDLE", "INVALID_REG"],
        &[],
    ] {
        assert!(out(state), "{state:?}");
    }
}

/// A node as Kubernetes reports it.
fn on_kubernetes(state: &[&str], reason: &str) -> SchedulerNode {
    let object = Some(Box::new(KubernetesNode::default()));
    SchedulerNode { kubernetes: object, ..node(state, reason) }
}

#[test]
fn a_kubernetes_node_in_service_may_be_drained_with_a_remark() {
    for state in [&["IDLE"][..], &["ALLOCATED"], &["IDLE", "TESTING"], &["IDLE", "UNVERIFIED"]] {
        let node = on_kubernetes(state, "");
        assert_eq!(explain_no_drain(&node, &JournalState::default()), None, "{state:?}");
    }
    let remark = |state: &[&str]| drain_remark(&on_kubernetes(state, "")).unwrap_or_default();
    assert_eq!(remark(&["IDLE"]), "");
    assert_eq!(
        remark(&["ALLOCATED"]),
        "it has pods that hold GPUs (ALLOCATED); its pods end first"
    );
    assert!(remark(&["IDLE", "UNVERIFIED"]).contains("it takes no pods yet"));
    assert!(remark(&["PODS_UNREAD"]).contains("could not be read"));
    assert!(remark(&["IDLE", "TESTING"]).contains("another prober"));
}

#[test]
fn states_set_by_others_on_kubernetes_are_described_and_left_alone() {
    for (state, reason, why) in [
        (&["NOT_READY"][..], "", "it is not ready (NOT_READY): Kubernetes keeps pods away already"),
        (&["IDLE", "CORDONED"], "", "it is cordoned (CORDONED), not by fabricgate"),
        (&["ALLOCATED", "TAINTED"], "", "others that keeps pods away (TAINTED), not by fabricgate"),
        (&["IDLE", "DELETING"], "", "no node exists to drain now"),
        (&["IDLE", "DRAIN"], "", "not by fabricgate: no annotation fabricgate.io/reason"),
        (&["IDLE", "DRAIN"], "see ticket 7", "not by fabricgate: \"see ticket 7\""),
        (&["IDLE", "DRAIN"], "fabricgate:x:run9 e1", "not in this journal"),
        (&["IDLE", "DRAIN", "CORDONED"], "", "not by fabricgate"),
    ] {
        let node = on_kubernetes(state, reason);
        let message = explain_no_drain(&node, &ours()).unwrap_or_default();
        assert!(message.contains(why), "{state:?}: {message}");
        assert!(!message.contains("Slurm"), "{message}");
        assert!(explain_no_release(&node, &ours()).is_some(), "{state:?}");
        let theirs =
            matches!(drain_owner(&node, &ours()), DrainOwner::Other(_) | DrainOwner::Unrecorded);
        assert_eq!(
            theirs,
            !node.has_state("NOT_READY") && !node.has_state("DELETING"),
            "{state:?}"
        );
    }
}

#[test]
fn a_drain_is_released_despite_a_cordon_or_taint_of_others() {
    for state in [
        &["IDLE", "DRAIN"][..],
        &["IDLE", "DRAIN", "CORDONED"],
        &["ALLOCATED", "DRAIN", "TAINTED"],
        &["IDLE", "DRAIN", "UNVERIFIED"],
        &["DRAIN", "PODS_UNREAD"],
    ] {
        let mut node = on_kubernetes(state, OURS);
        assert_eq!(explain_no_release(&node, &ours()), None, "{state:?}");
        // Removing fabricgate's own entries is allowed.
        node.kubernetes.as_mut().expect("one").left_alone.push("label managed=false".to_owned());
        assert_eq!(explain_no_release(&node, &ours()), None, "{state:?}");
        let own = explain_no_drain(&on_kubernetes(state, OURS), &ours()).unwrap_or_default();
        assert!(own.contains("drained already, by fabricgate"), "{state:?}: {own}");
    }
    for state in
        [&["NOT_READY", "DRAIN"][..], &["IDLE", "DRAIN", "DELETING"], &["IDLE", "CORDONED"]]
    {
        assert!(explain_no_release(&on_kubernetes(state, OURS), &ours()).is_some(), "{state:?}");
    }
    let gone = explain_no_release(&on_kubernetes(&["NOT_READY", "DRAIN"], OURS), &ours());
    assert!(gone.is_some_and(|why| why.contains("pods would be placed")));
}

#[test]
fn a_node_with_an_opt_out_mark_is_left_alone() {
    let mut node = on_kubernetes(&["IDLE"], "");
    let object = node.kubernetes.as_mut().expect("one");
    object.left_alone = vec!["label a=b".to_owned(), "taint \u{1b}[31mx".to_owned()];
    let none = JournalState::default();
    for message in [
        explain_no_drain(&node, &none),
        explain_no_certificate(&node),
        explain_no_measurement(&node),
    ] {
        let message = message.expect("a reason");
        assert!(
            message.contains("leave it alone: label a=b") && !message.contains('\u{1b}'),
            "{message}"
        );
    }
}

#[test]
fn the_start_up_taint_keeps_pods_away_and_neither_a_measurement_nor_a_certificate() {
    let unverified = on_kubernetes(&["IDLE", "UNVERIFIED"], "");
    assert!(is_out(&unverified) && !has_drain(&unverified) && !is_transient(&unverified));
    assert_eq!(explain_no_measurement(&unverified), None);
    assert_eq!(explain_no_certificate(&unverified), None);
    assert_eq!(explain_no_certificate(&on_kubernetes(&["ALLOCATED"], "")), None);
    // Another controller may wait for fabricgate's condition.
    let awaited = on_kubernetes(&["IDLE", "AWAITED"], "");
    assert!(is_out(&awaited));
    assert_eq!((explain_no_measurement(&awaited), explain_no_certificate(&awaited)), (None, None));
    for state in [
        &["ALLOCATED", "UNVERIFIED"][..],
        &["NOT_READY", "UNVERIFIED"],
        &["IDLE", "CORDONED"],
        &["IDLE", "TAINTED"],
        &["IDLE", "TESTING"],
        &["PODS_UNREAD"],
        &["IDLE", "PODS_UNREAD"],
        &["IDLE", "DELETING"],
        &["IDLE", "DRAIN"],
        &["UNVERIFIED"],
    ] {
        assert!(explain_no_measurement(&on_kubernetes(state, "")).is_some(), "{state:?}");
    }
    let bare = explain_no_measurement(&on_kubernetes(&["IDLE", "DRAIN"], "")).expect("a reason");
    assert!(bare.contains("kubectl taint node") && bare.contains("degraded:NoSchedule-"), "{bare}");
    for state in [
        &["IDLE", "CORDONED"][..],
        &["IDLE", "TAINTED"],
        &["NOT_READY", "UNVERIFIED"],
        &["IDLE", "UNVERIFIED", "CORDONED"],
        &["IDLE", "DRAIN"],
        &["IDLE", "DELETING"],
        &["IDLE", "BRAND_NEW"],
        &[],
    ] {
        assert!(explain_no_certificate(&on_kubernetes(state, "")).is_some(), "{state:?}");
    }
    assert!(is_out(&on_kubernetes(&["IDLE", "CORDONED"], "")));
    assert!(is_out(&on_kubernetes(&["IDLE", "TAINTED"], "")));
    assert!(!is_out(&on_kubernetes(&["IDLE", "TESTING"], "")));
}

#[test]
fn a_drain_on_kubernetes_has_come_to_its_end_when_no_pod_holds_a_gpu() {
    assert!(is_drained(&on_kubernetes(&["IDLE", "DRAIN"], OURS)));
    for state in [&["ALLOCATED", "DRAIN"][..], &["PODS_UNREAD", "DRAIN"], &["IDLE"]] {
        assert!(!is_drained(&on_kubernetes(state, OURS)), "{state:?}");
    }
}

#[test]
fn every_word_of_kubernetes_is_documented_with_what_follows() {
    let document = include_str!("../../../docs/gate.md");
    let table = document.split("| state | meaning |").nth(1).expect("the table");
    let rows = table.split("\n\n").next().expect("rows").lines();
    let mut listed: Vec<&str> = rows.filter_map(|row| row.split('`').nth(1)).collect();
    let own =
        STATE_FLAGS.iter().skip_while(|(word, ..)| *word != "NOT_READY").map(|(word, ..)| *word);
    let shared = ["IDLE", "ALLOCATED", "DRAIN"];
    let mut known: Vec<&str> = own.chain(shared).collect();
    known.sort_unstable();
    listed.sort_unstable();
    assert_eq!(listed, known);
}
