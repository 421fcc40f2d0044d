//! Whom repaired nodes are measured against: cleared nodes of their domain, and as
//! few as a second look takes.
//!
//! A partner loses time to somebody else's repair, and one that is not cleared
//! could be the bad end.

use std::collections::BTreeSet;

use super::before::Past;
use crate::act::certificate;
use crate::cli::config::Config;
use crate::coordinator;
use crate::gate::certificates;
use crate::model::claims::ClaimedDomain;
use crate::model::claims::Claims;
use crate::model::id::NodeName;
use crate::record::signing::Trust;

/// Who takes part, and where nobody does.
#[derive(Debug, Default)]
pub(super) struct Partners {
    pub(super) taken: Vec<NodeName>,
    pub(super) missing: Vec<String>,
}

/// The cleared partners of these nodes, at most so many for each domain.
pub(super) fn partners(
    config: &Config,
    fleet: &Claims,
    named: &BTreeSet<NodeName>,
    past: &Past,
    most: usize,
) -> Partners {
    let mut partners = Partners::default();
    if most == 0 {
        return partners;
    }
    // What cannot be read of the keys is told where certificates are issued.
    let trust = config.certificates.keys().trust;
    let has = |domain: &&ClaimedDomain| domain.nodes.iter().any(|node| named.contains(node));
    for domain in fleet.domains.iter().filter(has) {
        // A node alone in its domain has nobody there to be measured with.
        let others: Vec<&NodeName> = domain.nodes.iter().collect();
        if others.len() < 2 {
            continue;
        }
        let cleared = |node: &&&NodeName| is_cleared(config, &trust, node, past);
        // Cleared ones among those named serve as well as any.
        let own = others.iter().filter(|node| named.contains(**node)).filter(cleared).count();
        let more: Vec<NodeName> = others
            .iter()
            .filter(|node| !named.contains(**node))
            .filter(cleared)
            .take(most.saturating_sub(own))
            .map(|node| (*node).clone())
            .collect();
        if own + more.len() == 0 {
            partners.missing.push(format!(
                "{}: no node of it holds a valid certificate or passed its last run, so its nodes \
                 are measured among themselves; --with-domain takes the others along",
                domain.name
            ));
        }
        partners.taken.extend(more);
    }
    partners
}

/// Whether a node is known to be good: by its last run, or a certificate that
/// counts and that no later run speaks against.
fn is_cleared(config: &Config, trust: &Trust, node: &NodeName, past: &Past) -> bool {
    match past.passed_last(node) {
        Some(passed) => passed,
        None => has_certificate(config, trust, node),
    }
}

fn has_certificate(config: &Config, trust: &Trust, node: &NodeName) -> bool {
    let Some(gate) = &config.gate else { return false };
    let now = coordinator::now().as_second();
    match certificates::trusted(&gate.folder, node, trust) {
        Ok(Some(certificate)) => certificate::spent(&certificate, now).is_none(),
        // One that cannot be read, or whose signature does not count, clears nobody.
        Ok(None) | Err(_) => false,
    }
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::cli::config;
    use crate::gate::certificates::Seal;
    use crate::model::certificate::CERTIFICATE_FORMAT;
    use crate::model::certificate::Certificate;
    use crate::model::certificate::Identity;
    use crate::model::certificate::VoidOn;
    use crate::record::signing::SigningKey;

    /// Whom `n1` is measured against where `n2` has a certificate that nobody signed,
    /// under a configuration that says this of signatures.
    fn taken(certificates: &str) -> Vec<NodeName> {
        let folder = tempfile::tempdir().expect("a folder");
        let (key, _) = SigningKey::generate().expect("a key");
        fs::write(folder.path().join("key.pub"), key.public().pem()).expect("written");
        let file = folder.path().join("fabricgate.toml");
        let text = format!("claims = \"c\"\n[gate]\n[certificates]\n{certificates}\n");
        fs::write(&file, text).expect("written");
        let now = coordinator::now().as_second();
        let made = Certificate {
            format: CERTIFICATE_FORMAT.to_owned(),
            node: "n2".into(),
            identity: Identity::default(),
            domain: None,
            platform: None,
            simulated: false,
            profile: "recertify".to_owned(),
            minima: Vec::new(),
            detectable: None,
            thresholds_digest: String::new(),
            run: "r1".to_owned(),
            issued: String::new(),
            issued_unix: now,
            expires: String::new(),
            expires_unix: now + 3_600,
            void_on: VoidOn::default(),
            voided: None,
            signature: None,
        };
        let nobody = Trust::default();
        let unsealed = Seal { key: Ok(None), trust: &nobody };
        certificates::keep(&folder.path().join("gate"), vec![made], Vec::new(), &unsealed)
            .expect("written");
        let config = config::open(Some(&file)).expect("good");
        let domain = ClaimedDomain {
            name: "d".into(),
            nodes: ["n1".into(), "n2".into()].into(),
            platform: None,
            gpus_per_node: None,
            nic: None,
        };
        let fleet = Claims { domains: vec![domain], ..Claims::default() };
        partners(&config, &fleet, &["n1".into()].into(), &Past::default(), 3).taken
    }

    #[test]
    fn a_certificate_clears_a_partner_only_where_its_signature_counts() {
        assert_eq!(taken(""), ["n2".into()]);
        assert_eq!(taken("public_keys = [\"key.pub\"]"), ["n2".into()]);
        let required = "public_keys = [\"key.pub\"]\nrequire_signature = true";
        assert_eq!(taken(required), Vec::<NodeName>::new());
    }
}
