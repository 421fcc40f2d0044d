//! `fabricgate certificate`: lists and verifies the certificates of nodes.
//!
//! Only reads; except that `keygen` writes two new files. `act::certificate` and `record::signing`
//! decide on validity.

pub mod verify;

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use crate::cli::stdout::{Globals, note};
use crate::cli::{gate_apply, report_output, run_lookup, stdout, stored_run};
use crate::config::Config;
use crate::exit::CommandError;
use crate::{config, exit};
use control::gate::certificates::{CertificateDocument, FOLDER};
use control::gate::{certificates, clock, journal};
use control::store::document_signature::{SignatureTrust, SigningKey};
use control::store::run_folder::parent_folder;
use control::store::{RecordError, acceptance, document_signature, file, run_reader as documents};
use engine::policy::certificate;
use engine::policy::journal_state::JournalState;
use engine::report;
use model::acceptance::ACCEPTANCE_FORMAT;
use model::certificate::{
    CERTIFICATES_FORMAT, CertificateEntry, CertificateStatus, CertificatesDocument,
};
use model::hostlist;
use model::id::NodeName;
use model::journal::ClockStamp;
use model::verdict::{Outcome, VERDICTS_FORMAT, Verdicts};

/// Show and verify the certificates of nodes.
#[derive(Debug, clap::Args)]
pub struct CertificateArgs {
    #[command(subcommand)]
    command: CertificateCommand,
}

#[derive(Debug, clap::Subcommand)]
enum CertificateCommand {
    Show(CertificateShowArgs),
    Verify(verify::CertificateVerifyArgs),
    Keygen(KeygenArgs),
}

/// Show certificates: several as a table, one in full.
///
/// The exit code is 4 if a named node has no certificate, or an unreadable one.
#[derive(Debug, clap::Args)]
#[command(visible_alias = "list")]
struct CertificateShowArgs {
    /// Nodes or host lists, such as node[0001-0018], or files; by default every node.
    #[arg(value_name = "NODE|FILE")]
    which: Vec<String>,
    /// Every node with a certificate.
    #[arg(long, conflicts_with = "which")]
    all: bool,
    #[command(flatten)]
    place: CertificateLocationArgs,
    /// Print only the bytes that the signature of one certificate or acceptance covers.
    #[arg(long, conflicts_with = "all", requires = "which")]
    payload: bool,
}

/// Create a key for signing certificates: FILE, readable only by you, and FILE.pub.
#[derive(Debug, clap::Args)]
struct KeygenArgs {
    /// The private key's file; it must not exist yet.
    #[arg(value_name = "FILE")]
    file: PathBuf,
}

/// The location of certificates.
#[derive(Debug, clap::Args)]
pub(crate) struct CertificateLocationArgs {
    /// The gate's state folder, instead of the configuration's [gate] state.
    #[arg(long, value_name = "DIR", conflicts_with = "run")]
    state: Option<PathBuf>,
    /// A run (its folder, its id or `latest`), for the certificates in its own folder.
    #[arg(long, value_name = "RUN")]
    run: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &CertificateArgs, globals: &Globals) -> anyhow::Result<u8> {
    match &args.command {
        CertificateCommand::Show(args) => show_certificates(args, globals),
        CertificateCommand::Verify(args) => verify::run(args, globals),
        CertificateCommand::Keygen(args) => generate_key(args, globals),
    }
}

/// Opens the configuration, if one is given.
pub(crate) fn open_named_config(globals: &Globals) -> Result<Option<Config>, CommandError> {
    globals.config.as_deref().map(|path| config::open(Some(path))).transpose()
}

/// A requested certificate.
#[derive(Debug)]
pub(crate) struct CertificateLookup {
    /// The node that the user or the certificate names.
    pub(crate) node: Option<NodeName>,
    pub(crate) file: PathBuf,
    /// The content; `None` without a certificate.
    pub(crate) read: Result<Option<CertificateFile>, RecordError>,
    /// Why the journal of the folder withdraws it.
    pub(crate) withdrawn: Option<String>,
    /// Whether the user named the file: its writer is then unknown.
    pub(crate) is_file: bool,
}

/// The content of a requested file.
#[derive(Debug)]
pub(crate) enum CertificateFile {
    Certificate(Box<CertificateDocument>),
    /// The acceptance document of a burn-in; read only if the user names its file.
    Acceptance(Box<acceptance::AcceptanceDocument>),
}

impl CertificateFile {
    /// The document as read.
    pub(crate) fn document(&self) -> &serde_json::Value {
        match self {
            Self::Certificate(read) => &read.document,
            Self::Acceptance(read) => &read.document,
        }
    }

    fn from_certificate(read: CertificateDocument) -> Self {
        Self::Certificate(Box::new(read))
    }
}

/// Finds the requested certificates: files as they are, nodes in the folder of the gate, of a run,
/// or of the newest run that certified each.
pub(crate) fn find_certificates(
    which: &[String],
    place: &CertificateLocationArgs,
    globals: &Globals,
    config: Option<&Config>,
) -> Result<Vec<CertificateLookup>, CommandError> {
    let folders_of = || CertificateFolders::from_location(place, globals, config);
    let mut found = Vec::new();
    let mut folders = None;
    for name in which {
        if is_file_path(name) {
            found.push(lookup_file(Path::new(name)));
            continue;
        }
        let nodes = hostlist::expand(name)
            .map_err(|error| CommandError::Usage(format!("NODE {name:?}: {error}")))?;
        let folders = match &mut folders {
            Some(folders) => folders,
            none => none.insert(folders_of()?),
        };
        found.extend(nodes.into_iter().map(|node| folders.lookup_node(NodeName::from(node))));
    }
    if which.is_empty() {
        let mut folders = folders_of()?;
        let nodes = folders.nodes();
        found.extend(nodes.into_iter().map(|node| folders.lookup_node(node)));
    }
    Ok(found)
}

/// Whether an argument is a file: a path, or an existing file or burn-in folder here.
fn is_file_path(word: &str) -> bool {
    let path = Path::new(word);
    word.contains('/') || path.is_file() || acceptance::is_burn_in_folder(path)
}

fn lookup_file(file: &Path) -> CertificateLookup {
    // The folder of a burn-in stands for the document in it.
    let inside = acceptance::is_burn_in_folder(file).then(|| file.join(acceptance::DOCUMENT_FILE));
    let file = inside.as_deref().unwrap_or(file);
    let read = if documents::has_format(file, ACCEPTANCE_FORMAT) {
        acceptance::read_file(file).map(|it| it.map(Box::new).map(CertificateFile::Acceptance))
    } else {
        certificates::read_file(file).map(|it| it.map(CertificateFile::from_certificate))
    };
    let read = match read {
        // A file given by name must exist.
        Ok(None) => {
            let source = std::io::Error::from(std::io::ErrorKind::NotFound);
            Err(RecordError::Io { path: file.to_owned(), source })
        }
        read => read,
    };
    let node = match &read {
        Ok(Some(CertificateFile::Certificate(it))) => Some(it.certificate.node.clone()),
        _ => None,
    };
    CertificateLookup { node, file: file.to_owned(), read, withdrawn: None, is_file: true }
}

struct CertificateFolders {
    /// Newest first.
    folders: Vec<PathBuf>,
    /// Whether the folders are runs, of which a later one may find a node faulty that an earlier
    /// one certified.
    are_runs: bool,
    /// Faulty nodes of each run, as far as it was read.
    at_fault: BTreeMap<PathBuf, BTreeSet<NodeName>>,
    /// The journal of the gate, once read.
    ledger: Option<JournalState>,
}

impl CertificateFolders {
    fn single(folder: &Path) -> Self {
        Self {
            folders: vec![folder.to_owned()],
            are_runs: false,
            at_fault: BTreeMap::new(),
            ledger: None,
        }
    }

    fn from_location(
        place: &CertificateLocationArgs,
        globals: &Globals,
        config: Option<&Config>,
    ) -> Result<Self, CommandError> {
        let named = |run: &PathBuf| run_lookup::find_run(run, globals.config.as_deref());
        let run = place.run.as_ref().map(named).transpose()?;
        if let Some(folder) = place.state.as_ref().or(run.as_ref()) {
            // A typo must not look like a fleet without certificates.
            std::fs::read_dir(folder).map_err(|error| {
                CommandError::Environment(format!("{}: {error}", folder.display()))
            })?;
            return Ok(Self::single(folder));
        }
        let Some(config) = config else {
            let text = "no place to find certificates: expected --config FILE, --state DIR, --run \
                        RUN, or the path of a certificate";
            return Err(CommandError::usage(text));
        };
        match &config.gate {
            Some(gate) => Ok(Self::single(&gate.folder)),
            None => {
                let mut folders = documents::find_run_folders(&config.run_dir)
                    .map_err(CommandError::environment)?;
                folders.reverse();
                Ok(Self { folders, are_runs: true, at_fault: BTreeMap::new(), ledger: None })
            }
        }
    }

    /// Every node with a certificate.
    fn nodes(&self) -> Vec<NodeName> {
        let mut all = BTreeSet::new();
        for folder in &self.folders {
            let (nodes, troubles) = certificates::list_nodes(folder);
            troubles.iter().for_each(|trouble| note(trouble));
            all.extend(nodes);
        }
        all.into_iter().collect()
    }

    /// The certificate of a node in the newest folder that has one, unless a newer run found the
    /// node faulty.
    fn lookup_node(&mut self, node: NodeName) -> CertificateLookup {
        let mut last = None;
        for folder in self.folders.clone() {
            let folder = folder.as_path();
            let read = certificates::read_document(folder, &node);
            let file = certificates::certificate_path(folder, &node)
                .unwrap_or_else(|_| folder.join(FOLDER));
            let is_there = !matches!(read, Ok(None));
            last = Some((file, read));
            if is_there {
                break;
            }
            if self.are_runs && self.bad_nodes(folder).contains(&node) {
                note(&format!(
                    "{node}: run {} found it faulty; its earlier certificates no longer count",
                    folder.display()
                ));
                break;
            }
        }
        let (file, read) = last.unwrap_or((PathBuf::new(), Ok(None)));
        let withdrawn = match &read {
            Ok(Some(read)) => self.withdrawal_reason(&node, read.certificate.issued_unix),
            _ => None,
        };
        let read = read.map(|it| it.map(CertificateFile::from_certificate));
        CertificateLookup { node: Some(node), file, read, withdrawn, is_file: false }
    }

    /// Why the gate's journal withdraws a certificate of this time: a restored file still has its
    /// valid signature.
    fn withdrawal_reason(&mut self, node: &NodeName, issued_unix: i64) -> Option<String> {
        let folder = self.folders.first().filter(|_| !self.are_runs)?;
        let ledger = self.ledger.get_or_insert_with(|| match journal::read_state(folder) {
            Ok(ledger) => ledger,
            Err(error) => {
                note(&format!("drains since the certificate was issued are unknown: {error}"));
                JournalState::default()
            }
        });
        let drain = ledger.drains.get(node)?;
        (issued_unix <= drain.stamp.unix).then(|| {
            format!("the gate drained the node at {}, after it was issued", drain.stamp.at)
        })
    }

    /// The nodes that a run found degraded or failed. An unreadable run is reported and has none.
    fn bad_nodes(&mut self, folder: &Path) -> &BTreeSet<NodeName> {
        self.at_fault.entry(folder.to_owned()).or_insert_with(|| {
            let path = folder.join(file::VERDICTS);
            let verdicts = documents::read_json::<Verdicts>(&path, VERDICTS_FORMAT);
            let verdicts = verdicts.unwrap_or_else(|error| {
                note(&error.to_string());
                None
            });
            let all = verdicts.into_iter().flat_map(|it| it.nodes);
            let is_bad = |outcome| matches!(outcome, Outcome::Degraded | Outcome::Failed);
            all.filter(|it| is_bad(it.outcome)).map(|it| it.node).collect()
        })
    }
}

fn show_certificates(args: &CertificateShowArgs, globals: &Globals) -> anyhow::Result<u8> {
    let config = open_named_config(globals)?;
    let found = find_certificates(&args.which, &args.place, globals, config.as_ref())?;
    if args.payload {
        if globals.json {
            let text = "--json: --payload prints only the signed bytes, expected one of the two";
            return Err(CommandError::usage(text).into());
        }
        return print_payload(found);
    }
    let (trust, now) = (gate_apply::read_trusted_keys(config.as_ref()), clock::now());
    let mut document = CertificatesDocument {
        format: CERTIFICATES_FORMAT.to_owned(),
        at: now.at.clone(),
        certificates: Vec::new(),
        none: Vec::new(),
    };
    let mut of_nodes: BTreeMap<(NodeName, PathBuf), CertificateEntry> = BTreeMap::new();
    for CertificateLookup { node, file, read, .. } in found {
        let node = node.unwrap_or_else(|| NodeName::from(file.display().to_string()));
        match read {
            Ok(None) => document.none.push(node),
            read => {
                let entry = describe_certificate(node.clone(), &file, read, &trust, &now);
                of_nodes.insert((node, file), entry);
            }
        }
    }
    document.certificates = of_nodes.into_values().collect();
    if globals.json {
        stdout::write_json(&document)?;
    } else {
        stdout::write_text(&report::certificate::render(
            &document,
            &report_output::terminal_style(),
        ))?;
    }
    let unreadable = |it: &CertificateEntry| it.standing == CertificateStatus::Unreadable;
    let is_whole = document.none.is_empty() && !document.certificates.iter().any(unreadable);
    Ok(if is_whole { exit::PASS } else { exit::INCONCLUSIVE })
}

fn describe_certificate(
    node: NodeName,
    file: &Path,
    read: Result<Option<CertificateFile>, RecordError>,
    trust: &SignatureTrust,
    now: &ClockStamp,
) -> CertificateEntry {
    let mut entry = CertificateEntry {
        node,
        file: file.display().to_string(),
        standing: CertificateStatus::Unreadable,
        why: None,
        age_s: None,
        worst_ratio: None,
        certificate: None,
    };
    match read {
        Ok(None) => {}
        Err(error) => entry.why = Some(error.to_string()),
        Ok(Some(CertificateFile::Acceptance(_))) => {
            let why = "it is the acceptance of a burn-in, which `certificate verify` reads";
            entry.why = Some(why.to_owned());
        }
        Ok(Some(CertificateFile::Certificate(read))) => {
            let CertificateDocument { certificate, document } = *read;
            let refusal = trust.explain_refusal(&document);
            (entry.standing, entry.why) =
                certificate::certificate_standing(&certificate, refusal, now.unix);
            entry.age_s = Some(now.unix.saturating_sub(certificate.issued_unix));
            entry.worst_ratio = certificate.worst_ratio();
            entry.certificate = Some(certificate);
        }
    }
    entry
}

/// Prints the signed bytes of the requested certificate.
fn print_payload(found: Vec<CertificateLookup>) -> anyhow::Result<u8> {
    let count = found.len();
    let [CertificateLookup { node, read, .. }] = <[CertificateLookup; 1]>::try_from(found)
        .map_err(|_| {
            CommandError::Usage(format!("--payload: {count} certificates, expected one"))
        })?;
    match read.map_err(stored_run::record_error)? {
        Some(held) => stdout::write_bytes(&document_signature::signed_payload(held.document()))?,
        None => {
            let node = node.map(|node| node.to_string()).unwrap_or_default();
            return Err(CommandError::Environment(format!("{node} has no certificate")).into());
        }
    }
    Ok(exit::PASS)
}

fn generate_key(args: &KeygenArgs, globals: &Globals) -> anyhow::Result<u8> {
    if globals.json {
        let text = "--json: `certificate keygen` has no JSON output";
        return Err(CommandError::usage(text).into());
    }
    let (key, text) = SigningKey::generate()?;
    let mut public = args.file.clone().into_os_string();
    public.push(".pub");
    let public = PathBuf::from(public);
    create_file(&public, 0o644, &key.public().to_pem())?;
    if let Err(error) = create_file(&args.file, 0o600, &text) {
        // Half of a key pair is useless and would only confuse.
        let _ = std::fs::remove_file(&public);
        return Err(error.into());
    }
    stdout::write_text(&format!(
        "key {}\nprivate key {}\npublic key {}\n",
        key.public().id(),
        args.file.display(),
        public.display()
    ))?;
    Ok(exit::PASS)
}

/// Writes a new file, completely or not at all, with these permissions from the start.
fn create_file(path: &Path, mode: u32, text: &str) -> Result<(), CommandError> {
    let write = || {
        let permissions = std::fs::Permissions::from_mode(mode);
        let mut builder = tempfile::Builder::new();
        let mut file =
            builder.prefix(".key-").permissions(permissions).tempfile_in(parent_folder(path))?;
        file.write_all(text.as_bytes())?;
        file.as_file().sync_all()?;
        file.persist_noclobber(path).map_err(|refused| refused.error)
    };
    write().map(drop).map_err(|error: std::io::Error| match error.kind() {
        std::io::ErrorKind::AlreadyExists => CommandError::Usage(format!(
            "{}: already exists; keys are not overwritten",
            path.display()
        )),
        _ => CommandError::Environment(format!("{}: {error}", path.display())),
    })
}
