//! `fabricgate certificate verify`: whether certificates count, offline.
//!
//! Nobody is asked: the file, the keys, the clock, and the machine in front of
//! one or what it said of itself are all there is.

use std::path::PathBuf;
use std::time::Duration;

use super::Globals;
use super::certificate;
use super::certificate::Found;
use super::certificate::Place;
use super::exit;
use super::failure::Failure;
use super::show;
use super::stdout;
use super::stdout::note;
use crate::act::certificate as certifying;
use crate::act::identity;
use crate::facts;
use crate::facts::Gathering;
use crate::gate::certificates::Read;
use crate::gate::stamp;
use crate::launch::SIM_VARIABLE;
use crate::model::certificate::Identity;
use crate::model::certificate::VERIFICATION_FORMAT;
use crate::model::certificate::Verification;
use crate::model::certificate::VerificationDocument;
use crate::model::certificate::Verified;
use crate::model::journal::Stamp;
use crate::model::node_facts::NODE_FACTS_FORMAT;
use crate::model::node_facts::NodeFacts;
use crate::record::RecordError;
use crate::record::signing;
use crate::record::signing::Checked;
use crate::record::signing::PublicKey;
use crate::record::signing::SigningError;
use crate::record::signing::Trust;
use crate::record::stored as documents;
use crate::report;

/// How long the driver of this machine may take to answer.
const LIMIT: Duration = Duration::from_secs(60);

/// Verify certificates offline: signature, end, and the machine.
///
/// Ends with 0 where all are valid, with 3 where one is not (expired, void, a
/// wrong signature, other hardware), and with 4 where nobody can tell (none is
/// there, a signature is required and missing, nothing to compare).
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Nodes or host lists, such as node[0001-0018], or files.
    #[arg(value_name = "NODE|FILE", required = true)]
    which: Vec<String>,
    #[command(flatten)]
    place: Place,
    /// A public key (Ed25519, PEM) whose signature counts, beside those of the configuration; a
    /// signature is required then.
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// A certificate without a signature that counts is not taken.
    #[arg(long)]
    require_signature: bool,
    /// Compare with the machine that said this: what `fabricgate node facts --json` printed; with
    /// several certificates each with the facts of its own host.
    #[arg(long, value_name = "FACTS")]
    against: Vec<PathBuf>,
    /// Compare with this machine.
    #[arg(long, conflicts_with = "against")]
    here: bool,
}

/// Runs the command.
pub(super) fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let config = certificate::configured(globals)?;
    let mut trust = certificate::trust(config.as_ref());
    for file in &args.keys {
        trust.keys.push(PublicKey::read(file).map_err(key_failure)?);
    }
    trust.required |= args.require_signature || !args.keys.is_empty();
    let machines = machines(args)?;
    let found = certificate::find(&args.which, &args.place, config.as_ref())?;
    let now = stamp::stamp();
    let alone = found.len() == 1;
    let mut codes = Vec::new();
    let mut all = Vec::new();
    for it in found {
        let machine = machines.as_deref().map(|machines| of(&it, machines, alone));
        let (verification, code) = verified(it, &trust, machine, &now);
        codes.push(code);
        all.push(verification);
    }
    let outcome = all.iter().map(|it| it.outcome).max().unwrap_or(Verified::Unknown);
    let document = VerificationDocument {
        format: VERIFICATION_FORMAT.to_owned(),
        at: now.at,
        outcome,
        certificates: all,
    };
    if globals.json {
        stdout::json(&document)?;
    } else {
        stdout::text(&report::certificate::verification(&document, &show::style()))?;
    }
    // That one is not valid is worth more than that another cannot be read.
    let worst = [exit::GATE_CLOSED, exit::ENVIRONMENT, exit::USAGE, exit::INCONCLUSIVE];
    Ok(worst.into_iter().find(|code| codes.contains(code)).unwrap_or(exit::PASS))
}

fn key_failure(error: SigningError) -> Failure {
    if error.is_mistake() { Failure::usage(error) } else { Failure::environment(error) }
}

/// The machines to compare with; `None` where nobody asked for that.
fn machines(args: &Args) -> anyhow::Result<Option<Vec<NodeFacts>>> {
    if args.here {
        if std::env::var_os(SIM_VARIABLE).is_some() {
            let why = "--here: a simulated node has no facts: its hardware is this machine's";
            return Err(Failure::environment(why).into());
        }
        return Ok(Some(vec![this_machine()?]));
    }
    if args.against.is_empty() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for file in &args.against {
        let facts = documents::json::<NodeFacts>(file, NODE_FACTS_FORMAT);
        let missing = || Failure::Environment(format!("{}: no such file", file.display()));
        all.push(facts.map_err(super::stored::failure)?.ok_or_else(missing)?);
    }
    Ok(Some(all))
}

fn this_machine() -> anyhow::Result<NodeFacts> {
    let executable = std::env::current_exe()?;
    let gathering = Gathering {
        executable: &executable,
        nvml: None,
        record: None,
        root: std::path::Path::new("/"),
        limit: LIMIT,
    };
    let runtime = super::runtime()?;
    let gathered = runtime.block_on(facts::gather(&gathering));
    // A process that hangs in the kernel must not keep us.
    runtime.shutdown_background();
    if let Some(trouble) = gathered.trouble {
        note(&trouble);
    }
    Ok(gathered.facts)
}

/// The machine that a certificate is held against: the only one, or the one with
/// the name of its node.
fn of(found: &Found, machines: &[NodeFacts], alone: bool) -> Identity {
    let is_it = |facts: &&NodeFacts| {
        let host = facts.hostname.as_deref().unwrap_or_default();
        found.node.as_ref().is_some_and(|node| node.matches_host(host))
    };
    let only = machines.first().filter(|_| alone && machines.len() == 1);
    only.or_else(|| machines.iter().find(is_it)).map(identity::identity).unwrap_or_default()
}

fn verified(
    found: Found,
    trust: &Trust,
    machine: Option<Identity>,
    now: &Stamp,
) -> (Verification, u8) {
    let mut it = Verification {
        file: found.file.display().to_string(),
        node: found.node,
        outcome: Verified::Unknown,
        why: Vec::new(),
        signature: None,
        same: Vec::new(),
        differs: Vec::new(),
        untold: Vec::new(),
        expires: None,
        run: None,
    };
    let Read { certificate, document } = match found.read {
        Ok(Some(read)) => read,
        Ok(None) => {
            it.why.push("it has no certificate".to_owned());
            return (it, exit::INCONCLUSIVE);
        }
        Err(error) => {
            it.why.push(error.to_string());
            let is_io = matches!(error, RecordError::Io { .. });
            return (it, if is_io { exit::ENVIRONMENT } else { exit::USAGE });
        }
    };
    let (mut wrong, mut untold) = (Vec::new(), Vec::new());
    let (said, refused) = signature(&signing::check(&document, &trust.keys), trust);
    it.signature = Some(said.clone());
    match refused {
        Some(Verified::Invalid) => wrong.push(said),
        // What was declared void needs no signature to be void.
        Some(_) if certificate.voided.is_none() => untold.push(said),
        _ => {}
    }
    wrong.extend(certifying::spent(&certificate, now.unix));
    if let Some(machine) = machine {
        let compared = certifying::compared(&certificate, &machine);
        wrong.extend(compared.differs.iter().filter(|it| it.voids).map(|it| it.why.clone()));
        if compared.is_nothing {
            untold.push(certifying::NOTHING_TELLS.to_owned());
        }
        (it.same, it.differs, it.untold) = (compared.same, compared.differs, compared.untold);
    }
    it.outcome = match (wrong.is_empty(), untold.is_empty()) {
        (false, _) => Verified::Invalid,
        (true, false) => Verified::Unknown,
        (true, true) => Verified::Valid,
    };
    it.why = wrong.into_iter().chain(untold).collect();
    it.expires = Some(certificate.expires);
    it.run = Some(certificate.run);
    let code = match it.outcome {
        Verified::Valid => exit::PASS,
        Verified::Unknown => exit::INCONCLUSIVE,
        Verified::Invalid => exit::GATE_CLOSED,
    };
    (it, code)
}

/// What a signature is worth, in words, and what follows where it counts against.
fn signature(checked: &Checked, trust: &Trust) -> (String, Option<Verified>) {
    let unknown = trust.required.then_some(Verified::Unknown);
    match checked {
        Checked::Good(key) => (format!("good, of key {key}"), None),
        Checked::Wrong(key) => {
            let text = format!("the signature of key {key} does not fit what it says");
            (text, Some(Verified::Invalid))
        }
        Checked::Unsigned => ("it is not signed".to_owned(), unknown),
        Checked::Stranger(key) if trust.keys.is_empty() => {
            (format!("signed with key {key}, and no key is given to verify that"), unknown)
        }
        Checked::Stranger(key) => {
            (format!("signed with key {key}, which is none of those given"), unknown)
        }
        Checked::Unreadable(why) => (format!("its signature cannot be read: {why}"), unknown),
    }
}
