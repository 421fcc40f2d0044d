//! Certificates are read back as written; unreadable ones are reported and have no
//! effect.

use super::super::fixture::{ISSUED_AT, certificate};
use super::*;

static NO_TRUST: SignatureTrust = SignatureTrust { keys: Vec::new(), required: false };

fn unsigned() -> CertificateSigning<'static> {
    CertificateSigning { key: Ok(None), trust: &NO_TRUST }
}

fn now(after: i64) -> ClockStamp {
    ClockStamp {
        at: "2026-03-04T06:00:00.000Z".to_owned(),
        unix: ISSUED_AT + after,
        ..ClockStamp::default()
    }
}

fn issue_to(folder: &Path, nodes: &[&str]) -> IssueResult {
    let made = nodes.iter().map(|node| certificate(node)).collect();
    write_replacements(folder, made, Vec::new(), &unsigned(), &now(60)).expect("written")
}

#[test]
fn certificates_are_read_back_as_issued() {
    let dir = tempfile::tempdir().expect("a folder");
    assert_eq!(
        valid_nodes(dir.path(), &SchedulerSnapshot::default(), &NO_TRUST, &now(0)),
        (BTreeSet::new(), Vec::new()),
        "nothing is there yet"
    );
    assert_eq!(read_certificate(dir.path(), &"n1".into()).expect("readable"), None);
    let names: Vec<String> = (0..50).map(|at| format!("n{at:02}")).collect();
    let names: Vec<&str> = names.iter().map(String::as_str).collect();
    assert_eq!(issue_to(dir.path(), &names).nodes.len(), 50);
    let (all, troubles) = read_all(dir.path(), &NO_TRUST);
    assert!(troubles.is_empty(), "{troubles:?}");
    assert_eq!(all, names.iter().map(|name| certificate(name)).collect::<Vec<_>>());
    assert_eq!(
        read_certificate(dir.path(), &"n07".into()).expect("readable"),
        Some(certificate("n07"))
    );
}

#[test]
fn the_control_group_is_of_the_last_day_and_holds() {
    let dir = tempfile::tempdir().expect("a folder");
    issue_to(dir.path(), &["n1"]);
    let controls = |after| {
        valid_nodes(dir.path(), &SchedulerSnapshot::default(), &NO_TRUST, &now(after)).0.len()
    };
    assert_eq!([controls(-1), controls(0), controls(DAY_S), controls(DAY_S + 1)], [0, 1, 1, 0]);
    assert!(
        void_certificate(dir.path(), &"n1".into(), "drained by us", &now(60)).expect("written")
    );
    assert_eq!(controls(60), 0);
}

#[test]
fn a_voided_certificate_stays_with_its_reason_until_a_new_one_is_issued() {
    let dir = tempfile::tempdir().expect("a folder");
    let n1 = NodeName::from("n1");
    assert!(!void_certificate(dir.path(), &n1, "drained", &now(60)).expect("nothing to do"));
    issue_to(dir.path(), &["n1"]);
    assert!(void_certificate(dir.path(), &n1, "drained", &now(60)).expect("written"));
    assert!(!void_certificate(dir.path(), &n1, "again", &now(60)).expect("nothing to do"));
    let voided = read_certificate(dir.path(), &n1).expect("readable").expect("there");
    let why = VoidRecord { at: now(60).at, why: "drained".to_owned() };
    assert_eq!(voided, Certificate { voided: Some(why), ..certificate("n1") });
    assert_eq!(issue_to(dir.path(), &["n1"]).nodes, std::slice::from_ref(&n1));
    assert_eq!(read_certificate(dir.path(), &n1).expect("readable"), Some(certificate("n1")));
}

#[test]
fn an_unreadable_certificate_is_reported_with_its_file_and_has_no_effect() {
    let dir = tempfile::tempdir().expect("a folder");
    issue_to(dir.path(), &["n1", "n2", "n3", "n4", "n5", "n6"]);
    let put = |name: &str, text: &str| {
        fs::write(dir.path().join(FOLDER).join(name), text).expect("written");
    };
    let whole = String::from_utf8(to_bytes(&certificate("n2"))).expect("utf-8");
    put("n2.json", &whole[..whole.len() / 2]);
    put("n3.json", "");
    put("n4.json", &whole.replace("certificate/1", "certificate/2"));
    put("n5.json", &whole);
    put("n6.json", "\u{0}\u{0}\u{0}");
    put("ALL.json", &whole.replace("n2", "ALL"));
    put(".n7.json.1.tmp", "half");
    fs::create_dir(dir.path().join(FOLDER).join("n8.json")).expect("a folder");
    let (controls, troubles) =
        valid_nodes(dir.path(), &SchedulerSnapshot::default(), &NO_TRUST, &now(60));
    assert_eq!(controls, BTreeSet::from(["n1".into()]));
    assert_eq!(troubles.len(), 7, "{troubles:#?}");
    let of = |name: &str| -> &str {
        let found: Vec<&String> = troubles.iter().filter(|t| t.contains(name)).collect();
        assert_eq!(found.len(), 1, "{name}: {troubles:#?}");
        found[0]
    };
    for name in ["n2.json", "n3.json", "n6.json", "n8.json", "\"ALL\""] {
        of(name);
    }
    assert!(of("n4.json").contains("written by a newer fabricgate"));
    assert!(of("n5.json").contains("it is the certificate of \"n2\""));
    // A new one replaces an unreadable one; one of a newer version is left alone.
    let now = issue_to(dir.path(), &["n2", "n4"]);
    assert_eq!(now.nodes, ["n2".into()]);
    assert_eq!(now.withheld.len(), 2, "{now:?}");
}

#[test]
fn a_name_never_leads_out_of_the_folder() {
    let dir = tempfile::tempdir().expect("a folder");
    let state = dir.path().join("state");
    fs::create_dir(&state).expect("a folder");
    let whole = to_bytes(&certificate("../../x"));
    fs::write(dir.path().join("x.json"), whole).expect("written");
    for name in ["../../x", "..", "/etc/passwd", "a/b", "n1\u{0}", ""] {
        let node = NodeName::from(name);
        let message = read_certificate(&state, &node).expect_err("refused").to_string();
        assert!(message.contains("not the name of one node"), "{name}: {message}");
        assert!(
            !void_certificate(&state, &node, "why", &now(0)).expect("nothing to void"),
            "{name}"
        );
    }
    assert!(!state.join(FOLDER).exists());
}

#[test]
fn a_longer_certificate_of_the_same_machine_is_kept() {
    let dir = tempfile::tempdir().expect("a folder");
    issue_to(dir.path(), &["n1"]);
    let admitted = Certificate { expires_unix: ISSUED_AT + DAY_S, ..certificate("n1") };
    let kept = write_replacements(dir.path(), vec![admitted], Vec::new(), &unsigned(), &now(60))
        .expect("nothing to write");
    assert!(kept.nodes.is_empty());
    assert_eq!(kept.withheld[0].why, "passed, but is already certified until 2026-03-11T05:06:07Z");
    assert_eq!(
        read_certificate(dir.path(), &"n1".into()).expect("readable"),
        Some(certificate("n1"))
    );
}

#[test]
fn a_folder_that_cannot_be_written_is_an_error_that_names_it() {
    let dir = tempfile::tempdir().expect("a folder");
    fs::write(dir.path().join(FOLDER), "a file in its place").expect("written");
    let error =
        write_replacements(dir.path(), vec![certificate("n1")], Vec::new(), &unsigned(), &now(0))
            .expect_err("full");
    assert!(error.to_string().contains(FOLDER), "{error}");
    let (controls, troubles) =
        valid_nodes(dir.path(), &SchedulerSnapshot::default(), &NO_TRUST, &now(0));
    assert!(controls.is_empty());
    assert_eq!(troubles.len(), 1, "{troubles:?}");
}

fn signed_by<'a>(key: &'a SigningKey, trust: &'a SignatureTrust) -> CertificateSigning<'a> {
    CertificateSigning { key: Ok(Some(key)), trust }
}

/// A key, and trust in this key only.
fn required_key() -> (SigningKey, SignatureTrust) {
    let (key, _) = SigningKey::generate().expect("chance");
    let trust = SignatureTrust { keys: vec![key.public().clone()], required: true };
    (key, trust)
}

#[test]
fn if_signatures_are_required_only_unchanged_certificates_count() {
    let dir = tempfile::tempdir().expect("a folder");
    let (key, trust) = required_key();
    let made = ["n1", "n2", "n3", "n4"].map(certificate).to_vec();
    let issued =
        write_replacements(dir.path(), made, Vec::new(), &signed_by(&key, &trust), &now(60));
    assert_eq!(issued.expect("written").nodes.len(), 4);
    let file = |node: &str| dir.path().join(FOLDER).join(format!("{node}.json"));
    let text = |node: &str| fs::read_to_string(file(node)).expect("text");
    // One is edited, another gets an additional field; a third is signed by an untrusted
    // key.
    fs::write(file("n2"), text("n2").replace("2026-03-11", "2036-03-11")).expect("written");
    fs::write(file("n3"), text("n3").replacen('{', "{\"more\": 1,", 1)).expect("written");
    let (other, _) = required_key();
    let seal = signed_by(&other, &trust);
    export_certificates(dir.path(), vec![certificate("n4")], Vec::new(), &seal).expect("written");
    let (controls, troubles) =
        valid_nodes(dir.path(), &SchedulerSnapshot::default(), &trust, &now(60));
    assert_eq!(controls, ["n1".into()].into());
    let of = |node: &str| troubles.iter().find(|it| it.contains(node)).expect("reported");
    assert!(of("n2.json").contains("does not match"), "{troubles:?}");
    assert!(of("n3.json").contains("does not match"), "{troubles:?}");
    assert!(of("n4.json").contains("not trusted"), "{troubles:?}");
    // An unaccepted certificate does not block an accepted one.
    let shorter = Certificate { expires_unix: ISSUED_AT + DAY_S, ..certificate("n2") };
    let kept = write_replacements(
        dir.path(),
        vec![shorter],
        Vec::new(),
        &signed_by(&key, &trust),
        &now(60),
    );
    assert_eq!(kept.expect("written").nodes, ["n2".into()]);
    assert!(read_trusted(dir.path(), &"n2".into(), &trust).expect("counts").is_some());
}

#[test]
fn removing_the_void_record_does_not_restore_the_signature() {
    let dir = tempfile::tempdir().expect("a folder");
    let (key, trust) = required_key();
    let made = vec![certificate("n1")];
    write_replacements(dir.path(), made, Vec::new(), &signed_by(&key, &trust), &now(60))
        .expect("written");
    assert!(void_certificate(dir.path(), &"n1".into(), "drained", &now(70)).expect("written"));
    let n1 = read_trusted(dir.path(), &"n1".into(), &trust).expect("readable").expect("there");
    assert!(n1.voided.is_some() && n1.signature.is_none());
    let path = certificate_path(dir.path(), &"n1".into()).expect("a name");
    fs::write(&path, to_bytes(&Certificate { voided: None, ..n1 })).expect("written");
    let error = read_trusted(dir.path(), &"n1".into(), &trust).expect_err("edited").to_string();
    assert!(error.contains("unsigned"), "{error}");
}

#[test]
fn without_a_key_certificates_are_unsigned_or_withheld_if_signatures_are_required() {
    let dir = tempfile::tempdir().expect("a folder");
    let why = "key.pem: mode 644";
    let issue = |trust: &SignatureTrust, key| {
        let seal = CertificateSigning { key, trust };
        write_replacements(dir.path(), vec![certificate("n1")], Vec::new(), &seal, &now(60))
            .expect("written")
    };
    let required = SignatureTrust { keys: Vec::new(), required: true };
    for key in [Err(why), Ok(None)] {
        let issued = issue(&required, key);
        assert!(issued.nodes.is_empty());
        assert!(issued.withheld[0].why.contains("must be signed"), "{issued:?}");
    }
    assert_eq!(read_certificate(dir.path(), &"n1".into()).expect("readable"), None);
    let issued = issue(&NO_TRUST, Err(why));
    assert_eq!(issued.nodes, ["n1".into()]);
    assert!(issued.withheld[0].why.contains(why), "{issued:?}");
    let n1 = read_certificate(dir.path(), &"n1".into()).expect("readable").expect("there");
    assert_eq!(n1, certificate("n1"));
}
