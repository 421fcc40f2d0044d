//! `fabricgate certificate verify`: checks offline whether certificates and acceptance documents
//! are valid.
//!
//! Uses only the files, the keys, the clock, and the facts of a machine; contacts no server.

use std::path::PathBuf;
use std::time::Duration;

use serde_json::Value;

use crate::cli::commands::certificate;
use crate::cli::commands::certificate::{
    CertificateFile, CertificateLocationArgs, CertificateLookup,
};
use crate::cli::stdout::{Globals, note};
use crate::cli::{gate_apply, report_output, stdout};
use crate::exit;
use crate::exit::CommandError;
use control::gate::certificates::CertificateDocument;
use control::gate::clock;
use control::launch::SIM_VARIABLE;
use control::store::document_signature::{
    PublicKey, SignatureStatus, SignatureTrust, SigningError,
};
use control::store::{RecordError, acceptance, document_signature, run_reader as documents};
use engine::policy::certificate::CertificateBoundary;
use engine::policy::{acceptance as accepting, certificate as certifying, identity};
use engine::report;
use engine::report::plain_text::to_plain;
use model::certificate::{
    DriverVoidRule, IdentityDifference, MachineIdentity, VERIFICATION_FORMAT, Verification,
    VerificationDocument, VerificationKind, VerificationOutcome, VoidPolicy,
};
use model::id::NodeName;
use model::journal::ClockStamp;
use model::node_facts::{NODE_FACTS_FORMAT, NodeFacts};
use node::exec::executable;
use node::facts;
use node::facts::FactsRequest;

/// Time limit for the driver of this machine.
const DRIVER_TIMEOUT: Duration = Duration::from_secs(60);

/// Verify certificates and acceptance documents offline: signature, expiry, and the machine.
///
/// The exit code is 0 if all are valid, 3 if one is invalid (expired, void, a wrong signature,
/// other hardware, a node that was not accepted), and 4 if the result is unknown (no certificate, a
/// required signature is missing, nothing to compare, a burn-in that did not finish).
#[derive(Debug, clap::Args)]
pub struct CertificateVerifyArgs {
    /// Nodes or host lists, such as node[0001-0018], or files: certificates, or the acceptance
    /// document of a burn-in or its folder.
    #[arg(value_name = "NODE|FILE", required = true)]
    which: Vec<String>,
    #[command(flatten)]
    place: CertificateLocationArgs,
    /// A trusted public key (Ed25519, PEM), in addition to those of the configuration; a signature
    /// is then required.
    #[arg(long = "key", value_name = "FILE")]
    keys: Vec<PathBuf>,
    /// Reject certificates without a trusted signature.
    #[arg(long)]
    require_signature: bool,
    /// Accept files without a trusted signature; certificates in the gate's state folder need none
    /// unless the configuration requires it.
    #[arg(long, conflicts_with = "require_signature")]
    unsigned: bool,
    /// Accept a certificate only if the node was measured across this boundary: inside the node,
    /// with other nodes of its NVLink domain, with other nodes over the network.
    #[arg(long, value_enum, value_name = "BOUNDARY")]
    scope: Vec<BoundaryArg>,
    /// Compare with the machine that these facts describe: the output of `fabricgate node facts
    /// --json`. Several certificates are each compared with the facts of their own host.
    #[arg(long, value_name = "FACTS")]
    against: Vec<PathBuf>,
    /// Compare with this machine.
    #[arg(long, conflicts_with = "against")]
    here: bool,
}

/// [`CertificateBoundary`] as a value of an option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct BoundaryArg(CertificateBoundary);

impl clap::ValueEnum for BoundaryArg {
    fn value_variants<'a>() -> &'a [Self] {
        &[
            Self(CertificateBoundary::Node),
            Self(CertificateBoundary::Domain),
            Self(CertificateBoundary::Network),
        ]
    }

    fn to_possible_value(&self) -> Option<clap::builder::PossibleValue> {
        Some(clap::builder::PossibleValue::new(match self.0 {
            CertificateBoundary::Node => "node",
            CertificateBoundary::Domain => "domain",
            CertificateBoundary::Network => "network",
        }))
    }
}

pub(crate) fn run(args: &CertificateVerifyArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = certificate::open_named_config(globals)?;
    let mut trust = gate_apply::read_trusted_keys(config.as_ref());
    for file in &args.keys {
        trust.keys.push(PublicKey::read(file).map_err(key_error)?);
    }
    trust.required |= args.require_signature || !args.keys.is_empty();
    let machines = read_machines(args)?;
    let lookups =
        certificate::find_certificates(&args.which, &args.place, globals, config.as_ref())?;
    let now = clock::now();
    let is_single = lookups.len() == 1;
    let stand_ins = config.as_ref().is_some_and(|config| config.policy.simulated);
    let mut codes = Vec::new();
    let mut all = Vec::new();
    for it in lookups {
        let context = VerificationContext {
            trust: &trust,
            machines: machines.as_deref(),
            alone: is_single,
            scope: &args.scope,
            unsigned: args.unsigned,
            now: &now,
        };
        let (verification, code) = verify_document(it, &context, stand_ins);
        codes.push(code);
        all.push(verification);
    }
    let outcome = all.iter().map(|it| it.outcome).max().unwrap_or(VerificationOutcome::Unknown);
    let document = VerificationDocument {
        format: VERIFICATION_FORMAT.to_owned(),
        at: now.at,
        outcome,
        certificates: all,
    };
    if globals.json {
        stdout::write_json(&document)?;
    } else {
        stdout::write_text(&report::certificate::render_verification(
            &document,
            &report_output::terminal_style(),
        ))?;
    }
    // An invalid document outranks one that cannot be read.
    let worst = [exit::GATE_CLOSED, exit::ENVIRONMENT, exit::USAGE, exit::INCONCLUSIVE];
    Ok(worst.into_iter().find(|code| codes.contains(code)).unwrap_or(exit::PASS))
}

fn key_error(error: SigningError) -> CommandError {
    if error.is_user_error() {
        CommandError::usage(error)
    } else {
        CommandError::environment(error)
    }
}

/// The machines to compare with; `None` without a requested comparison.
fn read_machines(args: &CertificateVerifyArgs) -> anyhow::Result<Option<Vec<NodeFacts>>> {
    if args.here {
        if std::env::var_os(SIM_VARIABLE).is_some() {
            let why = "--here: a simulated node has no facts: its hardware is this machine's";
            return Err(CommandError::environment(why).into());
        }
        return Ok(Some(vec![read_this_machine()?]));
    }
    if args.against.is_empty() {
        return Ok(None);
    }
    let mut all = Vec::new();
    for file in &args.against {
        let facts = documents::read_json::<NodeFacts>(file, NODE_FACTS_FORMAT);
        let missing = || CommandError::Environment(format!("{}: no such file", file.display()));
        all.push(facts.map_err(crate::cli::stored_run::record_error)?.ok_or_else(missing)?);
    }
    Ok(Some(all))
}

fn read_this_machine() -> anyhow::Result<NodeFacts> {
    let executable = executable::current_executable()?;
    let request = FactsRequest {
        executable: &executable,
        nvml: None,
        record: None,
        root: std::path::Path::new("/"),
        limit: DRIVER_TIMEOUT,
    };
    let runtime = crate::cli::runtime::build_runtime()?;
    let collected = runtime.block_on(facts::collect_facts(&request));
    // A process that hangs in the kernel must not delay the exit.
    runtime.shutdown_background();
    if let Some(trouble) = collected.trouble {
        note(&trouble);
    }
    Ok(collected.facts)
}

/// The inputs that documents are checked against.
#[derive(Clone, Copy, Debug)]
struct VerificationContext<'a> {
    trust: &'a SignatureTrust,
    /// The given machines; `None` without a requested comparison.
    machines: Option<&'a [NodeFacts]>,
    /// Only one document is verified.
    alone: bool,
    /// The boundaries that a certificate must cover.
    scope: &'a [BoundaryArg],
    /// Files need no trusted signature.
    unsigned: bool,
    now: &'a ClockStamp,
}

impl VerificationContext<'_> {
    /// Whether a document must carry a trusted signature. The gate's own folder is as trusted as
    /// the gate; a file given by the operator is not.
    fn needs_signature(&self, is_file: bool) -> bool {
        self.trust.required || (is_file && !self.unsigned)
    }

    /// The machine to compare a node with: the only one, or the one with the node's name.
    fn find_machine(&self, node: Option<&NodeName>, alone: bool) -> Option<MachineIdentity> {
        let machines = self.machines?;
        let is_it = |facts: &&NodeFacts| {
            let host = facts.hostname.as_deref().unwrap_or_default();
            node.is_some_and(|node| node.matches_host(host))
        };
        let only = machines.first().filter(|_| alone && machines.len() == 1);
        only.or_else(|| machines.iter().find(is_it)).map(identity::identity_from_facts)
    }
}

/// Reasons against a document.
#[derive(Debug, Default)]
struct VerificationProblems {
    wrong: Vec<String>,
    unknown: Vec<String>,
}

impl VerificationProblems {
    /// Describes the signature. A voided document (`is_void`) needs no signature to be void.
    fn check_signature(
        &mut self,
        document: &Value,
        (trust, needed): (&SignatureTrust, bool),
        is_void: bool,
    ) -> String {
        let (description, refused) = describe_signature(
            &document_signature::check_signature(document, &trust.keys),
            trust,
            needed,
        );
        match refused {
            Some(VerificationOutcome::Invalid) => self.wrong.push(description.clone()),
            Some(_) if !is_void => self.unknown.push(description.clone()),
            _ => {}
        }
        description
    }

    fn write_into(self, it: &mut Verification) -> u8 {
        let (outcome, code) = match (self.wrong.is_empty(), self.unknown.is_empty()) {
            (false, _) => (VerificationOutcome::Invalid, exit::GATE_CLOSED),
            (true, false) => (VerificationOutcome::Unknown, exit::INCONCLUSIVE),
            (true, true) => (VerificationOutcome::Valid, exit::PASS),
        };
        it.outcome = outcome;
        it.why = self.wrong.into_iter().chain(self.unknown).collect();
        code
    }
}

fn verify_document(
    found: CertificateLookup,
    context: &VerificationContext<'_>,
    stand_ins: bool,
) -> (Verification, u8) {
    let mut it = Verification {
        kind: VerificationKind::Certificate,
        file: found.file.display().to_string(),
        node: found.node,
        outcome: VerificationOutcome::Unknown,
        why: Vec::new(),
        signature: None,
        same: Vec::new(),
        differs: Vec::new(),
        untold: Vec::new(),
        expires: None,
        run: None,
        simulated: false,
        nodes: Vec::new(),
    };
    let code = match found.read {
        Ok(Some(CertificateFile::Certificate(read))) => {
            verify_certificate(&mut it, *read, (found.withdrawn, found.is_file), context)
        }
        Ok(Some(CertificateFile::Acceptance(read))) => {
            verify_acceptance(&mut it, &read, context, stand_ins)
        }
        Ok(None) => {
            it.why.push("it has no certificate".to_owned());
            exit::INCONCLUSIVE
        }
        Err(error) => {
            it.why.push(error.to_string());
            let is_io = matches!(error, RecordError::Io { .. });
            if is_io { exit::ENVIRONMENT } else { exit::USAGE }
        }
    };
    (it, code)
}

fn verify_certificate(
    it: &mut Verification,
    read: CertificateDocument,
    (withdrawn, it_is_file): (Option<String>, bool),
    context: &VerificationContext<'_>,
) -> u8 {
    let CertificateDocument { certificate, document } = read;
    let mut problems = VerificationProblems::default();
    let is_void = certificate.voided.is_some();
    it.signature = Some(problems.check_signature(
        &document,
        (context.trust, context.needs_signature(it_is_file)),
        is_void,
    ));
    problems.wrong.extend(certifying::explain_expiry(&certificate, context.now.unix));
    problems.wrong.extend(withdrawn);
    let uncovered = context
        .scope
        .iter()
        .filter_map(|boundary| certifying::explain_uncovered(&certificate, boundary.0));
    problems.wrong.extend(uncovered);
    if context.machines.is_some() {
        let machine = context.find_machine(it.node.as_ref(), context.alone).unwrap_or_default();
        let compared = certifying::compare_machine(&certificate, &machine);
        let voids = compared.differs.iter().filter(|it| it.voids);
        problems.wrong.extend(voids.map(|it| it.why.clone()));
        if compared.is_incomparable {
            problems.unknown.push(certifying::IDENTITY_UNKNOWN.to_owned());
        } else if !compared.same.iter().any(|part| part == "gpus" || part == "boot")
            && !certificate.identity.gpus.is_empty()
        {
            let why = "it names GPUs, and neither they nor the boot could be compared: a driver \
                       version does not identify a machine";
            problems.unknown.push(why.to_owned());
        }
        (it.same, it.differs, it.untold) = (compared.same, compared.differs, compared.unknown);
    }
    it.simulated = certificate.simulated;
    it.expires = Some(certificate.expires);
    it.run = Some(certificate.run);
    problems.write_into(it)
}

/// An acceptance does not expire: it records a result of one day, for the file. A reboot or another
/// driver does not void it, other GPUs do.
fn verify_acceptance(
    it: &mut Verification,
    read: &acceptance::AcceptanceDocument,
    context: &VerificationContext<'_>,
    stand_ins: bool,
) -> u8 {
    const VOID_ON: VoidPolicy =
        VoidPolicy { boot: false, driver: DriverVoidRule::Never, firmware: false };
    let document = &read.acceptance;
    it.kind = VerificationKind::Acceptance;
    it.run = Some(document.id.clone());
    it.nodes = document.nodes.iter().map(|node| node.node.clone()).collect();
    let mut problems = VerificationProblems::default();
    it.signature = Some(problems.check_signature(
        &read.document,
        (context.trust, context.needs_signature(true)),
        false,
    ));
    for moment in [Some(&document.created), document.ended.as_ref()].into_iter().flatten() {
        match moment.parse::<jiff::Timestamp>() {
            Ok(at) if context.now.unix < at.as_second() => {
                problems.wrong.push(format!("its time {} is in the future", to_plain(moment)));
            }
            Ok(_) => {}
            Err(_) => problems.wrong.push(format!("{:?} is not a timestamp", to_plain(moment))),
        }
    }
    let (wrong, unknown) = accepting::list_doubts(document, stand_ins);
    problems.wrong.extend(wrong);
    problems.unknown.extend(unknown);
    if context.machines.is_some() {
        let alone = context.alone && it.nodes.len() == 1;
        let mut is_nothing = true;
        for node in &it.nodes {
            let Some(machine) = context.find_machine(Some(node), alone) else { continue };
            let then = accepting::last_identity(document, node);
            let compared = certifying::compare_identities(&then, VOID_ON, &machine);
            is_nothing &= compared.is_incomparable;
            let of = |part: String| format!("{node}: {part}");
            let voids = compared.differs.iter().filter(|it| it.voids);
            problems.wrong.extend(voids.map(|it| of(it.why.clone())));
            it.same.extend(compared.same.into_iter().map(of));
            let differs = compared.differs.into_iter();
            it.differs.extend(differs.map(|it| IdentityDifference { part: of(it.part), ..it }));
            it.untold.extend(compared.unknown.into_iter().map(of));
        }
        if is_nothing {
            let why = "no machine could be compared with those that were accepted";
            problems.unknown.push(why.to_owned());
        }
    }
    problems.write_into(it)
}

/// A description of the signature, and the outcome if it counts against the document. An
/// unverifiable signature counts as none; `needed` reports whether one is required.
fn describe_signature(
    checked: &SignatureStatus,
    trust: &SignatureTrust,
    needed: bool,
) -> (String, Option<VerificationOutcome>) {
    let unknown = needed.then_some(VerificationOutcome::Unknown);
    match checked {
        SignatureStatus::Valid(key) => (format!("good, by key {key}"), None),
        SignatureStatus::Invalid(key) => {
            let text = format!("the signature of key {key} does not match the document");
            (text, Some(VerificationOutcome::Invalid))
        }
        SignatureStatus::Unsigned => ("it is not signed".to_owned(), unknown),
        SignatureStatus::UnknownKey(key) if trust.keys.is_empty() => (
            format!("signed with key {key}, but no key is given to verify it: pass --key FILE"),
            unknown,
        ),
        SignatureStatus::UnknownKey(key) => {
            (format!("signed with key {key}, which is not one of the given keys"), unknown)
        }
        SignatureStatus::Unreadable(why) => {
            (format!("its signature cannot be read: {why}"), unknown)
        }
    }
}
