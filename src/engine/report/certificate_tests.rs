//! Tests of certificates as text.

use std::collections::BTreeMap;

use super::*;
use model::certificate::{
    CERTIFICATE_FORMAT, CERTIFICATES_FORMAT, MachineIdentity, TestMinimum, VERIFICATION_FORMAT,
    VoidPolicy,
};
use model::signature::Signature;
use model::unit::Unit;
use model::verdict::MeasuredScope;

const STYLE: TerminalStyle = TerminalStyle { width: 100, colour: false };

fn certificate(node: &str) -> Certificate {
    let minimum = |testcase: &str, value, expected| TestMinimum {
        testcase: testcase.to_owned(),
        value,
        unit: Unit::GigabytesPerSecond,
        expected,
    };
    Certificate {
        simulated: false,
        format: CERTIFICATE_FORMAT.to_owned(),
        node: node.into(),
        identity: MachineIdentity {
            gpus: vec!["GPU-1b5a1c35-f4fa-97e5-7ae5-5d3bb97fd8a6".to_owned()],
            boot_id: Some("0a6c1e52-2c34-4f3c-9b5c-0d9a6a3a4a11".to_owned()),
            driver: Some("580.65.06".to_owned()),
            firmware: BTreeMap::from([("GPU 0 VBIOS".to_owned(), "97.10.4d".to_owned())]),
        },
        domain: Some("block1".into()),
        platform: Some("gb200-nvl72".to_owned()),
        profile: "burn-in".to_owned(),
        scope: Some(MeasuredScope { inside: true, ..MeasuredScope::default() }),
        minima: vec![minimum("lane", 792.0, Some(800.0)), minimum("tcp", 24.0, None)],
        detectable: Some(0.014),
        thresholds_digest: "sha256:ab".to_owned(),
        run: "20260304T050607-ab12".to_owned(),
        issued: "2026-03-04T05:06:07.890Z".to_owned(),
        issued_unix: 1_772_600_767,
        expires: "2026-03-11T05:06:07Z".to_owned(),
        expires_unix: 1_773_205_567,
        void_on: VoidPolicy { boot: false, ..VoidPolicy::default() },
        voided: None,
        signature: Some(Signature {
            algorithm: "ed25519".to_owned(),
            key: "0123456789abcdef".to_owned(),
            value: "AAAA".to_owned(),
        }),
    }
}

fn list_entry(node: &str, standing: CertificateStatus, why: Option<&str>) -> CertificateEntry {
    let certificate = certificate(node);
    CertificateEntry {
        node: node.into(),
        file: format!("gate/certificates/{node}.json"),
        standing,
        why: why.map(str::to_owned),
        age_s: Some(180_000),
        worst_ratio: certificate.worst_ratio(),
        certificate: (standing != CertificateStatus::Unreadable).then_some(certificate),
    }
}

fn document(certificates: Vec<CertificateEntry>, none: &[&str]) -> CertificatesDocument {
    CertificatesDocument {
        format: CERTIFICATES_FORMAT.to_owned(),
        at: "2026-03-06T07:06:07.000Z".to_owned(),
        certificates,
        none: none.iter().map(|node| (*node).into()).collect(),
    }
}

#[test]
fn one_is_shown_in_full() {
    let one = document(vec![list_entry("n1", CertificateStatus::Valid, None)], &[]);
    insta::assert_snapshot!("certificate", render(&one, &STYLE));
}

#[test]
fn several_certificates_are_a_table_with_reasons_for_invalid_ones() {
    let mut unsigned =
        list_entry("n2", CertificateStatus::Untrusted, Some("it is not signed, and must be"));
    unsigned.certificate.as_mut().expect("one").signature = None;
    let all = vec![
        list_entry("n1", CertificateStatus::Valid, None),
        unsigned,
        list_entry("n3", CertificateStatus::Unreadable, Some("n3.json:1: \x1b[2Jno document")),
    ];
    let text = render(&document(all, &["n4"]), &STYLE);
    insta::assert_snapshot!("certificates", text);
    assert!(!text.contains('\x1b'));
}

#[test]
fn a_verification_names_the_differing_part() {
    let differs = |part: &str, voids| IdentityDifference {
        part: part.to_owned(),
        why: "another driver: 590.1, certified with 580.65.06".to_owned(),
        voids,
    };
    let it = Verification {
        kind: VerificationKind::Certificate,
        file: "n1.json".to_owned(),
        node: Some("n1".into()),
        outcome: VerificationOutcome::Invalid,
        why: vec!["1 of its 1 GPUs are not the certified ones".to_owned()],
        signature: Some("good, of key 0123456789abcdef".to_owned()),
        same: vec!["boot".to_owned()],
        differs: vec![differs("gpus", true), differs("driver", false)],
        untold: vec!["firmware of GPU 0 VBIOS".to_owned()],
        expires: Some("2026-03-11T05:06:07Z".to_owned()),
        run: Some("r1".to_owned()),
        simulated: false,
        nodes: Vec::new(),
    };
    let acceptance = Verification {
        kind: VerificationKind::Acceptance,
        file: "acceptance.json".to_owned(),
        node: None,
        outcome: VerificationOutcome::Unknown,
        why: (1..=30).map(|n| format!("not known: n{n}: passed 1 rounds of 3")).collect(),
        signature: Some("it is not signed".to_owned()),
        same: Vec::new(),
        differs: Vec::new(),
        untold: Vec::new(),
        expires: None,
        run: Some("b1".to_owned()),
        simulated: false,
        nodes: (1..=30).map(|n| format!("n{n}").as_str().into()).collect(),
    };
    let all = VerificationDocument {
        format: VERIFICATION_FORMAT.to_owned(),
        at: String::new(),
        outcome: VerificationOutcome::Invalid,
        certificates: vec![it, acceptance],
    };
    insta::assert_snapshot!("verification", render_verification(&all, &STYLE));
}

#[test]
fn an_age_has_the_largest_unit_of_which_it_has_two() {
    let shown = [59, 119, 120, 7_199, 7_200, 172_799, 172_800].map(format_age);
    assert_eq!(shown, ["59 s", "119 s", "2 min", "119 min", "2 h", "47 h", "2 d"]);
}
