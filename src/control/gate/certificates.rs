//! Certificates on disk: one file per node in the gate's state folder, replaced
//! atomically.
//!
//! An unreadable certificate counts as none and is reported. A void certificate stays on
//! disk with its reason, because the node's earlier results remain useful.
//! `engine::policy::certificate` decides the content and the validity.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use super::clock;
use crate::gate::gate_event::GateEvent;
use crate::store::document_signature::{SignatureTrust, SigningKey};
use crate::store::run_folder::{RunFolder, replace_file};
use crate::store::{RecordError, run_reader};
use engine::policy::action_policy::Policy;
use engine::policy::certificate;
use engine::policy::certificate::{CertificateEvidence, GateRecord};
use model::action::{ActionKind, ActionRecord, ActionResult, WithheldAction};
use model::certificate::{CERTIFICATE_FORMAT, Certificate, VoidRecord};
use model::id::NodeName;
use model::journal::ClockStamp;
use model::scheduler_snapshot::SchedulerSnapshot;
use model::time_format::DAY_S;

/// Name of the certificate folder in the state folder.
pub const FOLDER: &str = "certificates";

const FILE_SUFFIX: &str = ".json";

/// Result of issuing the certificates of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssueResult {
    /// Nodes with a new certificate, sorted.
    pub nodes: Vec<NodeName>,
    /// Nodes that passed without a new certificate, with the reason, and existing
    /// certificates that could not be read.
    pub withheld: Vec<WithheldAction>,
}

/// The signing key and the trusted keys.
#[derive(Clone, Copy, Debug)]
pub struct CertificateSigning<'a> {
    /// The key; `None` if none is configured, an error if it is unusable.
    pub key: Result<Option<&'a SigningKey>, &'a str>,
    /// Signers whose certificates are accepted.
    pub trust: &'a SignatureTrust,
}

/// Issues certificates to the nodes that passed a run, into the state folder.
///
/// Call it after the run's actions, with their results: a node that the gate did not
/// certify gets no certificate here either.
pub fn issue_certificates(
    folder: &Path,
    evidence: &CertificateEvidence<'_>,
    acted: &GateRecord<'_>,
    policy: &Policy,
    seal: &CertificateSigning<'_>,
    now: &ClockStamp,
) -> Result<IssueResult, RecordError> {
    let (made, withheld) = certificate::issue_certificates(evidence, acted, policy, now.unix);
    write_replacements(folder, made, withheld, seal, now)
}

/// Writes the certificates of a run into a separate folder, unconditionally.
pub fn export_certificates(
    folder: &Path,
    made: Vec<Certificate>,
    withheld: Vec<WithheldAction>,
    seal: &CertificateSigning<'_>,
) -> Result<IssueResult, RecordError> {
    let mut issued = IssueResult { nodes: Vec::new(), withheld };
    let made = sign_certificates(made, seal, &mut issued.withheld);
    let files: Vec<(String, Vec<u8>)> =
        made.iter().map(|new| (file_name(&new.node), to_bytes(new))).collect();
    write_files(folder, &files)?;
    issued.nodes = made.into_iter().map(|new| new.node).collect();
    Ok(issued)
}

/// Signs certificates. If the key is unusable, they are issued unsigned with a note. If
/// signatures are required, they are withheld instead, so that unsigned ones do not
/// replace valid ones.
fn sign_certificates(
    mut made: Vec<Certificate>,
    seal: &CertificateSigning<'_>,
    withheld: &mut Vec<WithheldAction>,
) -> Vec<Certificate> {
    if made.is_empty() {
        return made;
    }
    let key = match (seal.key, seal.trust.required) {
        (Ok(Some(key)), _) => key,
        (Ok(None), false) => return made,
        (Ok(None), true) => {
            let why = "certificates must be signed, and no key is configured: none is issued";
            withheld.push(WithheldAction::new("certificates", why));
            return Vec::new();
        }
        (Err(why), false) => {
            withheld.push(WithheldAction::new("signatures", format!("issued unsigned: {why}")));
            return made;
        }
        (Err(why), true) => {
            let why = format!("certificates must be signed, so none is issued: {why}");
            withheld.push(WithheldAction::new("certificates", why));
            return Vec::new();
        }
    };
    for new in &mut made {
        new.signature = Some(
            key.sign(new)
                .expect("certificates are structs, lists and numbers, all of which JSON has"),
        );
    }
    made
}

/// Writes the certificates that supersede those on disk.
fn write_replacements(
    folder: &Path,
    made: Vec<Certificate>,
    withheld: Vec<WithheldAction>,
    seal: &CertificateSigning<'_>,
    now: &ClockStamp,
) -> Result<IssueResult, RecordError> {
    let mut issued = IssueResult { nodes: Vec::new(), withheld };
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for new in sign_certificates(made, seal, &mut issued.withheld) {
        let mut withhold =
            |why| issued.withheld.push(WithheldAction::new(new.node.to_string(), why));
        match read_trusted(folder, &new.node, seal.trust) {
            Ok(Some(old)) if !certificate::replaces(&new, &old, now) => {
                withhold(format!("passed, but is already certified until {}", old.expires));
                continue;
            }
            // An unreadable certificate has no effect and is replaced.
            Err(RecordError::Malformed { why, .. }) => {
                withhold(format!("its certificate could not be read and is replaced: {why}"));
            }
            // A certificate of a newer version is left alone.
            Err(error @ RecordError::Newer { .. }) => {
                withhold(error.to_string());
                continue;
            }
            Ok(_) => {}
            Err(error) => return Err(error),
        }
        files.push((file_name(&new.node), to_bytes(&new)));
        issued.nodes.push(new.node);
    }
    write_files(folder, &files)?;
    Ok(issued)
}

fn write_files(folder: &Path, files: &[(String, Vec<u8>)]) -> Result<(), RecordError> {
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    if files.is_empty() {
        return Ok(());
    }
    RunFolder::open(&folder.join(FOLDER)).write_many(&files)
}

/// A parsed certificate with its JSON document: the signature also covers fields that
/// this version does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateDocument {
    /// The parsed certificate.
    pub certificate: Certificate,
    /// The JSON document as read.
    pub document: Value,
}

/// Reads a certificate from a file; `None` if there is no such file.
pub fn read_file(path: &Path) -> Result<Option<CertificateDocument>, RecordError> {
    let read = run_reader::read_json_with_document(path, CERTIFICATE_FORMAT)?;
    Ok(read.map(|(certificate, document)| CertificateDocument { certificate, document }))
}

/// The certificate of a node, void or not, with any signer; `None` if there is none.
pub fn read_certificate(
    folder: &Path,
    node: &NodeName,
) -> Result<Option<Certificate>, RecordError> {
    Ok(read_document(folder, node)?.map(|read| read.certificate))
}

/// The certificate of a node, if its signature is accepted.
pub fn read_trusted(
    folder: &Path,
    node: &NodeName,
    trust: &SignatureTrust,
) -> Result<Option<Certificate>, RecordError> {
    let Some(CertificateDocument { certificate, document }) = read_document(folder, node)? else {
        return Ok(None);
    };
    // Voiding removes the signature, and a void certificate has no effect anyway.
    match trust.explain_refusal(&document).filter(|_| certificate.voided.is_none()) {
        None => Ok(Some(certificate)),
        Some(why) => Err(malformed_error(&certificate_path(folder, node)?, why)),
    }
}

/// The certificate of a node as a document, without checking its signature.
pub fn read_document(
    folder: &Path,
    node: &NodeName,
) -> Result<Option<CertificateDocument>, RecordError> {
    let path = certificate_path(folder, node)?;
    let Some(read) = read_file(&path)? else { return Ok(None) };
    if read.certificate.node != *node {
        let whose = read.certificate.node;
        return Err(malformed_error(
            &path,
            format!("it is the certificate of {:?}", whose.as_str()),
        ));
    }
    Ok(Some(read))
}

fn malformed_error(path: &Path, why: String) -> RecordError {
    RecordError::Malformed { path: path.to_owned(), line: 1, why }
}

/// Every certificate with an accepted signature, and the problems of the others.
pub fn read_all(folder: &Path, trust: &SignatureTrust) -> (Vec<Certificate>, Vec<String>) {
    let mut found = Vec::new();
    let (nodes, mut troubles) = list_nodes(folder);
    for node in nodes {
        match read_trusted(folder, &node, trust) {
            Ok(certificate) => found.extend(certificate),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    (found, troubles)
}

/// Nodes with a certificate file, sorted by file name, and the errors of reading the
/// folder.
pub fn list_nodes(folder: &Path) -> (Vec<NodeName>, Vec<String>) {
    let (mut found, mut troubles) = (Vec::new(), Vec::new());
    let folder_of_all = folder.join(FOLDER);
    let entries = match fs::read_dir(&folder_of_all) {
        Ok(entries) => entries,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return (found, troubles),
        Err(error) => {
            troubles.push(format!("{}: {error}", folder_of_all.display()));
            return (found, troubles);
        }
    };
    let mut names: Vec<String> = Vec::new();
    for entry in entries {
        match entry {
            Ok(entry) => names.push(entry.file_name().to_string_lossy().into_owned()),
            Err(error) => troubles.push(format!("{}: {error}", folder_of_all.display())),
        }
    }
    names.sort();
    // Temporary files left by a killed process have another suffix.
    found
        .extend(names.iter().filter_map(|file| file.strip_suffix(FILE_SUFFIX)).map(NodeName::from));
    (found, troubles)
}

/// Nodes with a valid certificate issued within the last day: the control group of a
/// measurement. Also the files that could not be read.
pub fn valid_nodes(
    folder: &Path,
    live: &SchedulerSnapshot,
    trust: &SignatureTrust,
    now: &ClockStamp,
) -> (BTreeSet<NodeName>, Vec<String>) {
    let (certificates, troubles) = read_all(folder, trust);
    let fresh = |certificate: &Certificate| {
        let node = live.nodes.get(&certificate.node);
        certificate::explain_expiry(certificate, now.unix).is_none()
            && node.is_none_or(|node| certificate::explain_outlived(certificate, node).is_none())
            && now.unix.saturating_sub(certificate.issued_unix) <= DAY_S
    };
    let controls = certificates.into_iter().filter(fresh).map(|it| it.node).collect();
    (controls, troubles)
}

/// Voids a node's certificate, for example after a drain. Returns false if there was none
/// to void. An unreadable certificate counts as void.
pub fn void_certificate(
    folder: &Path,
    node: &NodeName,
    why: &str,
    now: &ClockStamp,
) -> Result<bool, RecordError> {
    let old = match read_certificate(folder, node) {
        Err(RecordError::Malformed { .. }) => return Ok(false),
        read => read?,
    };
    let Some(mut certificate) = old.filter(|old| old.voided.is_none()) else { return Ok(false) };
    certificate.voided = Some(VoidRecord { at: now.at.clone(), why: why.to_owned() });
    // The signature no longer matches. If it stayed, deleting the void record would make
    // it match again.
    certificate.signature = None;
    let path = certificate_path(folder, node)?;
    replace_file(&path, &to_bytes(&certificate))
        .map_err(|source| RecordError::Io { path: path.clone(), source })?;
    Ok(true)
}

/// Nodes that were drained or marked as degraded.
pub fn faulty_nodes(records: &[ActionRecord]) -> impl Iterator<Item = &NodeName> {
    let is_fault = |it: &&ActionRecord| {
        let is_meant = matches!(it.kind, ActionKind::Drain | ActionKind::Relabel);
        is_meant && it.result == ActionResult::Done
    };
    records.iter().filter(is_fault).map(|it| &it.node)
}

/// Voids the certificates of these nodes and reports each failure.
pub fn void_all<'n>(
    folder: &Path,
    nodes: impl IntoIterator<Item = &'n NodeName>,
    why: &str,
    log: &mut dyn FnMut(&GateEvent),
) {
    for node in nodes {
        if let Err(error) = void_certificate(folder, node, why, &clock::now()) {
            let why = error.to_string();
            log(&GateEvent::CertificateNotVoided { node: node.clone(), why });
        }
    }
}

fn file_name(node: &NodeName) -> String {
    format!("{node}{FILE_SUFFIX}")
}

/// The path of a node's certificate. Refuses names that could escape the folder.
pub fn certificate_path(folder: &Path, node: &NodeName) -> Result<PathBuf, RecordError> {
    let folder = folder.join(FOLDER);
    if node.is_one_node() {
        return Ok(folder.join(file_name(node)));
    }
    let why = format!("{:?} is not the name of one node", node.as_str());
    Err(RecordError::Malformed { path: folder, line: 1, why })
}

fn to_bytes(certificate: &Certificate) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(certificate)
        .expect("certificates are structs, lists and numbers, all of which JSON has");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
