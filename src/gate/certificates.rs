//! Certificates on disk: one file a node in the gate's state folder, written
//! whole or not at all.
//!
//! A certificate that cannot be read is none, and is told. One that was voided
//! stays with its reason: what a node once delivered is worth knowing. What a
//! certificate says and when it is void, `act::certificate` decides.

use std::collections::BTreeSet;
use std::fs;
use std::io;
use std::path::Path;
use std::path::PathBuf;

use crate::act::certificate;
use crate::act::certificate::Acted;
use crate::act::certificate::Evidence;
use crate::act::policy::Policy;
use crate::model::action::Withheld;
use crate::model::certificate::CERTIFICATE_FORMAT;
use crate::model::certificate::Certificate;
use crate::model::certificate::Voided;
use crate::model::id::NodeName;
use crate::model::journal::Stamp;
use crate::model::live::Live;
use crate::model::moment::DAY_S;
use crate::record::RecordError;
use crate::record::folder::Folder;
use crate::record::folder::replace;
use crate::record::stored;

/// The folder of certificates in a gate's state folder.
pub const FOLDER: &str = "certificates";

const ENDING: &str = ".json";

/// What became of the certificates of a run.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Issued {
    /// Nodes with a new certificate, in order.
    pub nodes: Vec<NodeName>,
    /// Nodes that passed and have none, and why; certificates that were there
    /// and could not be read.
    pub withheld: Vec<Withheld>,
}

/// Issues certificates to the nodes that passed a run, into the state folder.
///
/// To be called when the run's actions were carried out, with what became of
/// them: what is not certified on a node has no certificate here either.
pub fn issue(
    folder: &Path,
    evidence: &Evidence<'_>,
    acted: &Acted<'_>,
    policy: &Policy,
    now: &Stamp,
) -> Result<Issued, RecordError> {
    let (made, withheld) = certificate::certificates(evidence, acted, policy, now.unix);
    write(folder, made, withheld, now)
}

/// Writes those certificates that take the place of what is there.
fn write(
    folder: &Path,
    made: Vec<Certificate>,
    withheld: Vec<Withheld>,
    now: &Stamp,
) -> Result<Issued, RecordError> {
    let mut issued = Issued { nodes: Vec::new(), withheld };
    let mut files: Vec<(String, Vec<u8>)> = Vec::new();
    for new in made {
        let mut withhold = |why| issued.withheld.push(Withheld::new(new.node.to_string(), why));
        match read(folder, &new.node) {
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
        files.push((name(&new.node), bytes(&new)));
        issued.nodes.push(new.node);
    }
    let files: Vec<(&str, &[u8])> =
        files.iter().map(|(name, bytes)| (name.as_str(), bytes.as_slice())).collect();
    if !files.is_empty() {
        Folder::at(&folder.join(FOLDER)).write_many(&files)?;
    }
    Ok(issued)
}

/// The certificate of a node, void or not; `None` where it has none.
pub fn read(folder: &Path, node: &NodeName) -> Result<Option<Certificate>, RecordError> {
    let path = path(folder, node)?;
    let Some(certificate) = stored::json::<Certificate>(&path, CERTIFICATE_FORMAT)? else {
        return Ok(None);
    };
    if certificate.node != *node {
        let whose = certificate.node;
        let why = format!("it is the certificate of {:?}", whose.as_str());
        return Err(RecordError::Malformed { path, line: 1, why });
    }
    Ok(Some(certificate))
}

/// Every certificate that can be read, and what is wrong with the others.
pub fn all(folder: &Path) -> (Vec<Certificate>, Vec<String>) {
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
    for file in names {
        // What a kill left while it was written is named otherwise.
        let Some(node) = file.strip_suffix(ENDING) else { continue };
        match read(folder, &NodeName::from(node)) {
            Ok(certificate) => found.extend(certificate),
            Err(error) => troubles.push(error.to_string()),
        }
    }
    (found, troubles)
}

/// Nodes with a certificate of the last day that still counts: the instrument's
/// control group. And what could not be read, each with its file.
pub fn valid(folder: &Path, live: &Live, now: &Stamp) -> (BTreeSet<NodeName>, Vec<String>) {
    let (certificates, troubles) = all(folder);
    let fresh = |certificate: &Certificate| {
        let node = live.nodes.get(&certificate.node);
        certificate::spent(certificate, now.unix).is_none()
            && node.is_none_or(|node| certificate::outlived(certificate, node).is_none())
            && now.unix.saturating_sub(certificate.issued_unix) <= DAY_S
    };
    let controls = certificates.into_iter().filter(fresh).map(|it| it.node).collect();
    (controls, troubles)
}

/// Declares a node's certificate void, as when it was drained; whether there
/// was one to void. One that cannot be read is void already.
pub fn void(folder: &Path, node: &NodeName, why: &str, now: &Stamp) -> Result<bool, RecordError> {
    let old = match read(folder, node) {
        Err(RecordError::Malformed { .. }) => return Ok(false),
        read => read?,
    };
    let Some(mut certificate) = old.filter(|old| old.voided.is_none()) else { return Ok(false) };
    certificate.voided = Some(Voided { at: now.at.clone(), why: why.to_owned() });
    let path = path(folder, node)?;
    replace(&path, &bytes(&certificate))
        .map_err(|source| RecordError::Io { path: path.clone(), source })?;
    Ok(true)
}

fn name(node: &NodeName) -> String {
    format!("{node}{ENDING}")
}

/// Where a node's certificate is. A name that could lead elsewhere is refused.
fn path(folder: &Path, node: &NodeName) -> Result<PathBuf, RecordError> {
    let folder = folder.join(FOLDER);
    if node.is_one_node() {
        return Ok(folder.join(name(node)));
    }
    let why = format!("{:?} is no name of one node", node.as_str());
    Err(RecordError::Malformed { path: folder, line: 1, why })
}

fn bytes(certificate: &Certificate) -> Vec<u8> {
    let mut bytes = serde_json::to_vec_pretty(certificate)
        .expect("certificates are structs, lists and numbers, all of which JSON has");
    bytes.push(b'\n');
    bytes
}

#[cfg(test)]
#[path = "certificates_tests.rs"]
mod tests;
