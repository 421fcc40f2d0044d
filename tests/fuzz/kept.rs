//! Fuzz targets for the gate's stored files: its journal, certificates, and acceptance documents.
//! A file from another party may have any content.

use std::fs;
use std::sync::OnceLock;

use control::gate::journal::Journal;
use control::gate::{certificates, journal};
use control::store::document_signature::{PublicKey, SignatureTrust};
use control::store::{RecordError, acceptance, document_signature};
use engine::policy::action_policy::Policy;
use engine::policy::{budget, certificate, drain_overview, node_state};
use engine::report;
use model::acceptance::Acceptance;
use model::action::{Action, ActionKind, ActionResult, VerdictMark};
use model::certificate::{CERTIFICATES_FORMAT, CertificateEntry, CertificatesDocument};
use model::finding_class::FindingClass;
use model::id::NodeName;
use model::journal::{ClockStamp, HoldKind, JOURNAL_FORMAT, JournalEntry, JournalEvent};
use model::node_update::NodeUpdate;
use model::scheduler_snapshot::{SchedulerNode, SchedulerSnapshot};
use model::verdict::Outcome;

use super::stored;
use super::stored::{STYLE, is_quiet};

/// The time of all checks.
const NOW: i64 = 1_795_233_600;

fn stamp(unix: i64) -> ClockStamp {
    let at = "2026-11-21T04:00:00Z".to_owned();
    ClockStamp { at, unix, boot: "b".to_owned(), uptime_s: 5.5 }
}

/// A gate's journal, read by a reader, and by the gate that continues it.
pub(crate) fn journals(bytes: &[u8]) {
    let place = stored::folder();
    fs::write(place.path().join(journal::JOURNAL_FILE), bytes).expect("written");
    let ledger = match journal::read_state(place.path()) {
        Ok(ledger) => ledger,
        Err(error) => {
            assert!(error.to_string().contains(journal::JOURNAL_FILE), "{error}");
            let gate = Journal::open_without_waiting(place.path()).map(drop);
            return assert!(gate.is_err(), "it was refused, and is gone on with");
        }
    };
    let (now, policy) = (stamp(NOW), Policy::default());
    let rows = drain_overview::build_rows(&ledger, None, &policy, &now);
    let shown = report::gate::GateLiveView { nodes: &rows, unasked: None, live: None };
    is_quiet(&report::gate::render(&ledger, &now, shown));
    let entries = journal::read_entries(place.path()).expect("it was summed");
    is_quiet(&report::gate_log::render(&report::gate_log::collect_events(
        &entries,
        i64::MIN,
        None,
    )));
    for node in ledger.drains.values().map(|drain| &drain.before) {
        let _ =
            (node_state::drain_owner(node, &ledger), node_state::explain_no_release(node, &ledger));
        let _ = node_state::explain_no_drain(node, &ledger);
    }
    let _ = budget::budget_shares(&ledger, 18, &policy, &now);
    // An epoch beyond the largest possible one is refused; nothing else is.
    let Ok(mut gate) = Journal::open_without_waiting(place.path()) else {
        return assert_eq!(ledger.epoch, u64::MAX, "it was read, and is not gone on with");
    };
    gate.append(JournalEvent::Reset { by: "a".to_owned(), why: "b".to_owned() }).expect("written");
    let (after, lines) = (gate.state().clone(), ledger.lines + 2);
    drop(gate);
    assert_eq!(
        (after.lines, &after.drains, &after.open_intents),
        (lines, &ledger.drains, &ledger.open_intents)
    );
    let again = journal::read_state(place.path()).expect("a gate's journal is readable");
    assert_eq!(again, after);
}

/// The trusted signers.
fn trust() -> &'static SignatureTrust {
    static TRUST: OnceLock<SignatureTrust> = OnceLock::new();
    TRUST.get_or_init(|| {
        let pem = "-----BEGIN PUBLIC KEY-----\n\
            MCowBQYDK2VwAyEAGb9ECWmEzf6FQbrBZ9w7lshQhqowtrbLDFw4rXAxZuE=\n\
            -----END PUBLIC KEY-----\n";
        let place = stored::folder();
        let path = place.path().join("k.pem");
        fs::write(&path, pem).expect("written");
        let key = PublicKey::read(&path).expect("the public key of RFC 8410, section 10.1");
        SignatureTrust { keys: vec![key], required: false }
    })
}

/// A certificate, as it is accepted, revoked and shown, or an acceptance document, read and
/// shown.
pub(crate) fn certificates(bytes: &[u8]) {
    let place = stored::folder();
    let node = NodeName::from("n1");
    let path = certificates::certificate_path(place.path(), &node).expect("a name of one node");
    fs::create_dir(path.parent().expect("a folder")).expect("made");
    fs::write(&path, bytes).expect("written");
    if let Ok(Some(read)) = certificates::read_file(&path) {
        let _ = (
            document_signature::check_signature(&read.document, &[]),
            read.certificate.worst_ratio(),
        );
    }
    let (counting, troubles) = certificates::read_all(place.path(), trust());
    assert_eq!(counting.len() + troubles.len(), 1, "one file is counted once: {troubles:?}");
    let now = stamp(NOW);
    let live = SchedulerNode::new("n1", &["IDLE"]);
    let live = SchedulerSnapshot { nodes: [(node.clone(), live)].into(), troubles: Vec::new() };
    let (controls, _) = certificates::valid_nodes(place.path(), &live, trust(), &now);
    assert!(controls.len() <= counting.len());
    for own in &counting {
        let _ = certificate::replaces(own, own, &now);
        let shown = CertificateEntry {
            node: node.clone(),
            file: "n1.json".to_owned(),
            standing: certificate::certificate_standing(own, None, NOW).0,
            why: certificate::explain_outlived(own, &live.nodes[&node]),
            age_s: None,
            worst_ratio: own.worst_ratio(),
            certificate: Some(own.clone()),
        };
        let document = CertificatesDocument {
            format: CERTIFICATES_FORMAT.to_owned(),
            at: now.at.clone(),
            certificates: vec![shown],
            none: Vec::new(),
        };
        is_quiet(&report::certificate::render(&document, &STYLE));
    }
    match certificates::void_certificate(place.path(), &node, "drained", &now) {
        Ok(true) => {
            let again = certificates::read_certificate(place.path(), &node).expect("read");
            let again = again.expect("it is there");
            assert!(again.voided.is_some() && again.signature.is_none());
        }
        // A file of a newer version is unchanged, and reported.
        Ok(false) | Err(RecordError::Newer { .. }) => {}
        Err(error) => panic!("{error}"),
    }
    fs::write(place.path().join("acceptance.json"), bytes).expect("written");
    if let Ok(document) = acceptance::read_acceptance(place.path()) {
        shown(&document);
    }
}

fn shown(document: &Acceptance) {
    is_quiet(&report::acceptance::render_terminal(document, &STYLE));
    is_quiet(&report::acceptance::render_markdown(document));
    is_quiet(&report::acceptance::render_junit(document));
    let page = report::acceptance::render_page(document).expect("a page");
    assert!(!page.contains("<script>"), "a script of the document's");
}

pub(crate) fn certificate_seeds() -> Vec<Vec<u8>> {
    stored::left().certificates.clone()
}

/// A journal with every kind of event.
pub(crate) fn journal_seeds() -> Vec<Vec<u8>> {
    let (node, run) = (NodeName::from("n1"), "r1".to_owned());
    let word = |text: &str| text.to_owned();
    let intent = |id: &str, kind: ActionKind, outcome: Outcome| {
        let mark = VerdictMark {
            outcome,
            class: Some(FindingClass::from_name("lost-links")),
            run: word("r1"),
            at: word("2026-11-21T04:00:00Z"),
            expires: None,
            domain: Some("rack".into()),
            boot_id: None,
        };
        let action = Action { mark: Some(mark), ratio: Some(0.5), ..Action::new(kind, "n1") };
        JournalEvent::Intent {
            id: word(id),
            run: word("r1"),
            action: Box::new(action),
            change: Box::new(NodeUpdate::drain("fabricgate degraded 0.5 r1")),
            before: Box::new(SchedulerNode::new("n1", &["IDLE", "DRAIN"])),
        }
    };
    let ended =
        |id: &str, result| JournalEvent::Outcome { id: word(id), result, detail: word("it shows") };
    let opened = JournalEvent::Opened { host: word("head"), pid: 7, version: word("0.1.0") };
    let measured = NOW;
    let clean = JournalEvent::Clean { node: node.clone(), run, measured, boot_id: Some(word("b")) };
    let suspected = JournalEvent::Suspected {
        node: node.clone(),
        run: word("r0"),
        measured,
        boot_id: None,
        classes: vec![FindingClass::from_name("lost-links")],
    };
    let held = JournalEvent::Holding {
        name: word("fabricgate-1"),
        kind: HoldKind::Reservation,
        nodes: vec![node.clone()],
        drained: vec![(node.clone(), word("fabricgate degraded"))],
        host: word("head"),
        pid: 7,
    };
    let story = vec![
        opened,
        suspected,
        JournalEvent::Cleared { node: node.clone(), run: word("r0"), measured },
        intent("i1", ActionKind::Drain, Outcome::Degraded),
        ended("i1", ActionResult::Done),
        JournalEvent::Evicting { node: node.clone(), pods: vec![word("a/b")] },
        clean,
        JournalEvent::Relapsed { node: node.clone(), run: word("r2"), measured },
        held,
        JournalEvent::Freed { name: word("fabricgate-1"), detail: word("ended") },
        intent("i2", ActionKind::Release, Outcome::Pass),
        ended("i2", ActionResult::Refused),
        JournalEvent::Undone { node: node.clone(), id: word("i1"), detail: word("resumed") },
        intent("i3", ActionKind::Relabel, Outcome::Degraded),
        ended("i3", ActionResult::Unknown),
        JournalEvent::Tripped { why: word("four of eighteen"), run: word("r1") },
        JournalEvent::Reset { by: word("ann"), why: word("looked") },
        JournalEvent::Controller { started: word("2026-11-21T04:00:00") },
        JournalEvent::Adopted {
            run: word("r7"),
            action: Box::new(Action {
                reason: word("fabricgate:r7:nvlink-low e3"),
                ..Action::new(ActionKind::Drain, "n1")
            }),
            before: Box::new(SchedulerNode::new("n1", &["IDLE", "DRAIN"])),
            set: Some(NOW),
            by: word("ann"),
            why: word("of the old gate"),
        },
        JournalEvent::Lost { node: node.clone(), id: word("i1"), detail: word("it started") },
        JournalEvent::Condition { id: word("i1"), node: node.clone(), shown: false },
        JournalEvent::Absent { node: node.clone() },
        JournalEvent::Present { node: node.clone() },
        JournalEvent::Forgotten { node: node.clone(), by: word("ann"), why: word("sold") },
        JournalEvent::Gone { host: word("head"), by: word("ann"), why: word("burnt") },
    ];
    let line = |(seq, event): (u64, &JournalEvent)| {
        let entry = JournalEntry {
            format: JOURNAL_FORMAT.to_owned(),
            seq,
            stamp: stamp(NOW),
            epoch: 1,
            event: event.clone(),
        };
        let mut line = serde_json::to_vec(&entry).expect("plain data");
        line.push(b'\n');
        line
    };
    let whole: Vec<u8> = (1..).zip(&story).flat_map(line).collect();
    // Half of it leaves a drain and a hold behind.
    let half: Vec<u8> = (1..).zip(&story[..9]).flat_map(line).collect();
    vec![whole, half]
}

#[test]
fn journals_are_read_whole_or_refused() {
    let seeds = journal_seeds();
    let place = stored::folder();
    for good in &seeds {
        fs::write(place.path().join(journal::JOURNAL_FILE), good).expect("written");
        journal::read_state(place.path()).expect("the seed is a good one");
    }
    stored::target("journals", 500, seeds, journals);
}

#[test]
fn foreign_certificates_never_break_a_reader() {
    stored::target("certificates", 500, certificate_seeds(), certificates);
}
