//! Certificates on disk: one file a node in the gate's state folder, written
//! whole or not at all.
//!
//! A certificate that cannot be read is none, and is told. One that was voided
//! stays with its reason: what a node once delivered is worth knowing. What a
//! certificate says and when it is void, `act::certificate` decides.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::{fs, io};

use serde_json::Value;

use super::clock;
use crate::store::run_folder::{RunFolder, replace_file};
use crate::store::signing::{SignatureTrust, SigningKey};
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

/// The folder of certificates in a gate's state folder.
pub const FOLDER: &str = "certificates";

const FILE_SUFFIX: &str = ".json";

/// What became of the certificates of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct IssueResult {
    /// Nodes with a new certificate, in order.
    pub nodes: Vec<NodeName>,
    /// Nodes that passed and have none, and why; certificates that were there
    /// and could not be read.
    pub withheld: Vec<WithheldAction>,
}

/// With what certificates are signed, and whose signatures count.
#[derive(Clone, Copy, Debug)]
pub struct CertificateSigning<'a> {
    /// The key; absent where none is configured, an error where it cannot be
    /// used.
    pub key: Result<Option<&'a SigningKey>, &'a str>,
    /// Whose certificates count.
    pub trust: &'a SignatureTrust,
}

/// Issues certificates to the nodes that passed a run, into the state folder.
///
/// To be called when the run's actions were carried out, with what became of
/// them: what is not certified on a node has no certificate here either.
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

/// Writes the certificates of a run into a folder of its own, whatever is there.
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

/// Signs certificates. Where the key cannot be used they are issued without a
/// signature, and that is told; where none without one counts they are withheld,
/// so that those which are there and count are not replaced by such.
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
            withheld.push(WithheldAction::new("signatures", format!("none is signed: {why}")));
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

/// Writes those certificates that take the place of what is there.
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
                withhold(format!("passed, and is certified until {} already", old.expires));
                continue;
            }
            // One that cannot be read counts for nothing, and gives way.
            Err(RecordError::Malformed { why, .. }) => {
                withhold(format!("its certificate could not be read and is replaced: {why}"));
            }
            // A newer program's is left to it.
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

/// A certificate as it was read: what it says, and the document itself, whose
/// signature covers also what this program does not know.
#[derive(Clone, Debug, PartialEq)]
pub struct CertificateDocument {
    /// What it says.
    pub certificate: Certificate,
    /// The document.
    pub document: Value,
}

/// Reads a certificate from a file; `None` where there is none.
pub fn read_file(path: &Path) -> Result<Option<CertificateDocument>, RecordError> {
    let read = run_reader::read_json_with_document(path, CERTIFICATE_FORMAT)?;
    Ok(read.map(|(certificate, document)| CertificateDocument { certificate, document }))
}

/// The certificate of a node, void or not, whoever signed it; `None` where it has
/// none.
pub fn read_certificate(
    folder: &Path,
    node: &NodeName,
) -> Result<Option<Certificate>, RecordError> {
    Ok(read_document(folder, node)?.map(|read| read.certificate))
}

/// The certificate of a node as far as its signature counts.
pub fn read_trusted(
    folder: &Path,
    node: &NodeName,
    trust: &SignatureTrust,
) -> Result<Option<Certificate>, RecordError> {
    let Some(CertificateDocument { certificate, document }) = read_document(folder, node)? else {
        return Ok(None);
    };
    // One that was declared void was signed as it was before, and counts for
    // nothing anyhow.
    match trust.explain_refusal(&document).filter(|_| certificate.voided.is_none()) {
        None => Ok(Some(certificate)),
        Some(why) => Err(malformed_error(&certificate_path(folder, node)?, why)),
    }
}

/// The certificate of a node as it was read.
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

/// Every certificate that counts as far as its signature does, and what is wrong
/// with the others.
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

/// Nodes of which there is a file, in order of its name, and what could not be
/// read of the folder.
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
    // What a kill left while it was written is named otherwise.
    found
        .extend(names.iter().filter_map(|file| file.strip_suffix(FILE_SUFFIX)).map(NodeName::from));
    (found, troubles)
}

/// Nodes with a certificate of the last day that still counts: the instrument's
/// control group. And what could not be read, each with its file.
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

/// Declares a node's certificate void, as when it was drained; whether there
/// was one to void. One that cannot be read is void already.
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
    // It does not fit any more. Left there, taking the word away would make it fit.
    certificate.signature = None;
    let path = certificate_path(folder, node)?;
    replace_file(&path, &to_bytes(&certificate))
        .map_err(|source| RecordError::Io { path: path.clone(), source })?;
    Ok(true)
}

/// The nodes that were drained, or marked as degraded.
pub fn faulty_nodes(records: &[ActionRecord]) -> impl Iterator<Item = &NodeName> {
    let is_fault = |it: &&ActionRecord| {
        let is_meant = matches!(it.kind, ActionKind::Drain | ActionKind::Relabel);
        is_meant && it.result == ActionResult::Done
    };
    records.iter().filter(is_fault).map(|it| &it.node)
}

/// Voids the certificates of these nodes, and tells of each that could not be.
pub fn void_all<'n>(
    folder: &Path,
    nodes: impl IntoIterator<Item = &'n NodeName>,
    why: &str,
    say: &mut dyn FnMut(&str),
) {
    for node in nodes {
        if let Err(error) = void_certificate(folder, node, why, &clock::now()) {
            say(&format!("the certificate of {node} is not voided: {error}"));
        }
    }
}

fn file_name(node: &NodeName) -> String {
    format!("{node}{FILE_SUFFIX}")
}

/// Where a node's certificate is. A name that could lead elsewhere is refused.
pub fn certificate_path(folder: &Path, node: &NodeName) -> Result<PathBuf, RecordError> {
    let folder = folder.join(FOLDER);
    if node.is_one_node() {
        return Ok(folder.join(file_name(node)));
    }
    let why = format!("{:?} is no name of one node", node.as_str());
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
