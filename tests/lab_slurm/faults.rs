//! Changes under faults, by both ways to a real Slurm: a controller that is gone, hangs, forgets,
//! or refuses access.

use control::gate::scheduler::Scheduler;
use control::gate::scontrol::ScontrolScheduler;
use control::gate::slurmrestd::SlurmrestdScheduler;
use model::scheduler_snapshot::SchedulerNode;

use super::changes::{Ways, comment, done, drain, named, one, resume, try_update};
use super::*;

/// Restarts a killed controller, and waits until it knows its nodes.
fn restarted(lab: &Lab, way: &dyn Scheduler, name: &str) -> SchedulerNode {
    lab.run(&["slurmctld"]);
    lab.wait_for("the controller", || {
        let live = now(way.read_nodes(&named(&[name])));
        live.is_ok_and(|it| it.nodes.values().any(|node| !node.has_state("UNKNOWN")))
    });
    one(way, name)
}

#[test]
fn an_acknowledged_drain_may_be_lost_with_its_controller() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    for way in ways.both() {
        // It is written to disk a moment later; a moment may have come early.
        let lost = (0..5).any(|_| {
            done(way, &["node0020"], &drain("fabricgate:x:r1 e1"));
            lab.signal("KILL");
            let node = restarted(&lab, way, "node0020");
            assert_eq!(node.has_state("DRAIN"), node.reason.is_some(), "{node:?}");
            let lost = !node.has_state("DRAIN");
            lab.settle();
            lost
        });
        assert!(lost, "{}: reading again shows that it was lost", way.name());
    }
}

#[test]
fn a_start_of_the_controller_is_reported_by_both_ways() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    // slurmrestd reports it from 26.05 on.
    let newer = !lab.run(&["scontrol", "--version"]).contains("24.11");
    assert_eq!(now(ways.rest.read_start_time()).expect("an answer").is_some(), newer);
    for way in ways.both().into_iter().filter(|way| newer || way.name().contains("scontrol")) {
        let started = || now(way.read_start_time()).expect("an answer").expect("when it started");
        // `scontrol reconfigure` is a start too: slurmctld replaces itself.
        for starts in [false, true] {
            let before = started();
            // Its unit is seconds.
            std::thread::sleep(Duration::from_millis(1_100));
            if starts {
                lab.signal("KILL");
                restarted(&lab, way, "node0020");
            }
            assert_eq!(started() != before, starts, "{}", way.name());
        }
        lab.settle();
    }
}

#[test]
fn a_change_that_timed_out_may_be_made_later() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    // A controller that answers the ping and hangs before the change.
    let stops = r#"case "$*" in update*) kill -STOP "$(cat /run/slurmctld/slurmctld.pid)" ;; esac
                   exec scontrol "$@""#;
    for limit in [15, 2] {
        let limit = Duration::from_secs(limit);
        let way = ScontrolScheduler {
            argv: lab.argv(&["sh", "-c", stops, "sh"]),
            limit,
            remote_shell: Some(false),
        };
        let error = try_update(&way, &["node0021"], &drain("late")).expect_err("it hangs");
        lab.signal("CONT");
        assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
        assert!(error.message.contains("read again"), "{error}");
        lab.wait_for("the drain", || {
            one(&ways.scontrol, "node0021").reason.as_deref() == Some("late")
        });
        done(&ways.scontrol, &["node0021"], &resume());
        lab.settle();
    }
}

#[test]
fn a_hanging_controller_gets_no_update() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let (names, change) = (named(&["node0022"]), drain("hanging"));
    lab.signal("STOP");
    let found = now(async {
        tokio::join!(
            ways.rest.update_nodes(&names, &change),
            // A client of scontrol has always read right before it writes.
            ways.scontrol.read_nodes(&names),
            ways.rest.read_nodes(&names)
        )
    });
    lab.signal("CONT");
    let errors = [
        found.0.expect_err("it hangs"),
        found.1.expect_err("it hangs"),
        found.2.expect_err("it hangs"),
    ];
    for error in errors {
        assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
        assert!(error.message.contains("scontrol ping"), "it names the remedy: {error}");
    }
    // The ping failed, so no update is in flight.
    assert_eq!(one(&ways.scontrol, "node0022").state, ["IDLE"]);
}

#[test]
fn a_controller_that_is_gone_is_unreachable() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    lab.signal("KILL");
    let found = ways.both().map(|way| {
        let names = named(&["node0023"]);
        (
            now(way.update_nodes(&names, &drain("gone"))),
            now(way.read_nodes(&names)),
            now(way.read_nodes(&[])),
        )
    });
    let node = restarted(&lab, &ways.scontrol, "node0023");
    lab.settle();
    for (changed, read, all) in found {
        for error in [changed.expect_err("gone"), read.expect_err("gone"), all.expect_err("gone")] {
            assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
            assert!(error.message.contains("slurmctld"), "{error}");
        }
    }
    assert!(!node.has_state("DRAIN"));
}

#[test]
fn a_missing_program_or_server_is_reported() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let limit = ways.scontrol.limit;
    let none = ScontrolScheduler {
        argv: vec!["/nowhere/scontrol".to_owned()],
        limit,
        remote_shell: Some(false),
    };
    let inside = ScontrolScheduler {
        argv: lab.argv(&["/nowhere/scontrol"]),
        limit,
        remote_shell: Some(false),
    };
    for way in [&none, &inside] {
        let error = try_update(way, &["node0001"], &comment("x")).expect_err("no program");
        assert_eq!(error.kind, SourceProblemKind::Missing, "{error}");
        assert!(error.message.contains("must be installed"), "{error}");
    }
    let address = "unix:/nowhere/slurmrestd".into();
    let no_server = SlurmrestdScheduler { address, ..ways.rest.clone() };
    let error = try_update(&no_server, &["node0001"], &comment("x")).expect_err("no server");
    assert_eq!(error.kind, SourceProblemKind::Unreachable, "{error}");
}

#[test]
fn a_user_without_the_right_changes_no_node() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let alice = ["setpriv", "--reuid=alice", "--regid=alice", "--init-groups", "scontrol"];
    let by_alice = ScontrolScheduler {
        argv: lab.argv(&alice),
        limit: ways.scontrol.limit,
        remote_shell: Some(false),
    };
    ways.token(&lab.run(&["scontrol", "token", "username=alice", "lifespan=600"]));
    for way in [&by_alice as &dyn Scheduler, &ways.rest] {
        for change in [drain("mine"), resume(), comment("mine")] {
            let error = try_update(way, &["node0024"], &change).expect_err("she may not");
            assert_eq!(error.kind, SourceProblemKind::Denied, "{error}");
            assert!(error.message.contains("AdminLevel"), "it names the required level: {error}");
        }
        let node = one(way, "node0024");
        assert_eq!((node.state.as_slice(), node.comment.as_str()), (&["IDLE".to_owned()][..], ""));
    }
}

#[test]
fn a_token_is_read_anew_each_time_and_never_shown() {
    let Some(lab) = lab() else { return };
    let ways = Ways::to(&lab);
    let good = lab.token();
    let short = lab.run(&["scontrol", "token", "username=root", "lifespan=1"]);
    let secret = |text: &str| text.trim().trim_start_matches("SLURM_JWT=").to_owned();
    std::thread::sleep(Duration::from_secs(2));
    for bad in [short.as_str(), "no.good.token", ""] {
        ways.token(bad);
        let errors = [
            try_update(&ways.rest, &["node0001"], &comment("x")).expect_err("not let in"),
            now(ways.rest.read_nodes(&[])).expect_err("not let in"),
        ];
        for error in errors {
            assert_eq!(error.kind, SourceProblemKind::Denied, "{bad:?}: {error}");
            assert!(bad.is_empty() || !error.message.contains(&secret(bad)), "{error}");
        }
    }
    ways.token(&good);
    done(&ways.rest, &["node0001"], &comment("let in"));
    done(&ways.rest, &["node0001"], &comment(""));
    let shown = format!("{:?} {}", ways.rest, ways.rest.name());
    assert!(!shown.contains(&secret(&good)));
    let words = ways.rest.command_lines(&named(&["node0001"]), &comment("x"));
    assert_eq!(words, [["scontrol", "update", "NodeName=node0001", "Comment=x"]]);

    let nowhere =
        SlurmrestdScheduler { token_file: Some("/nowhere/token".into()), ..ways.rest.clone() };
    let error = try_update(&nowhere, &["node0001"], &comment("x")).expect_err("no token");
    assert_eq!(error.kind, SourceProblemKind::Missing, "{error}");
}
