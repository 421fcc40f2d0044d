//! `fabricgate claims`: what every source claims about the fabric, and where
//! they disagree.

use std::path::Path;
use std::path::PathBuf;

use super::Globals;
use super::asking;
use super::config;
use super::config::Source;
use super::exit;
use super::expectations;
use super::failure::Failure;
use super::show;
use super::sources::Wanted;
use super::stdout;
use control::store::CLAIMS_FORMAT;
use control::store::ClaimsRecord;
use control::store::file;
use engine::report;
use model::claims::Claims;
use model::disagreement::Severity;
use model::limits;
use readers::claims::reconcile;

/// Show what every source claims about the fabric, and where they disagree.
///
/// Sources are files (claims.toml, Slurm's topology files, outputs of scontrol or kubectl, cabling,
/// LLDP, Ray, NCCL topologies, job environments; found by looking at them), Slurm, Kubernetes and the
/// nodes themselves. Without FILE and --from, the configuration says who is asked; without a
/// configuration, whoever is found here. Ends with 3 when sources contradict each other, 4 when a
/// source could not be read, 5 when none could.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Files with claims, or folders of them.
    #[arg(value_name = "FILE", conflicts_with = "scenario")]
    files: Vec<PathBuf>,
    /// Ask this source and no other: slurm, slurmrestd[=ADDRESS], kubernetes[=CONTEXT],
    /// ray[=ADDRESS], nodes, files, or a file. May be given several times.
    #[arg(long, value_name = "SOURCE", conflicts_with = "scenario")]
    from: Vec<String>,
    /// GPUs that every node must have.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(limits::GPUS_PER_NODE)))]
    gpus_per_node: Option<u32>,
    /// NICs of the compute network that every node must have.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=i64::from(limits::NICS_PER_NODE)))]
    nics_per_node: Option<u32>,
    /// Show what has changed since an earlier moment: what --json printed then, or a run folder.
    #[arg(long, value_name = "EARLIER")]
    against: Option<PathBuf>,
    #[command(flatten)]
    simulated: config::Simulated,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    // Before anybody is asked: a mistake here should not cost their answers.
    let earlier = args.against.as_deref().map(earlier).transpose()?;
    let claims = gathered(args, globals)?;
    let changes = earlier.map(|earlier| reconcile::diff::diff(&earlier, &claims));
    let code = code(&claims);
    if globals.json {
        stdout::json(&ClaimsRecord { format: CLAIMS_FORMAT.to_owned(), claims, changes })?;
    } else {
        let text = match changes {
            Some(changes) => report::claims::changes(&changes, &show::style()),
            None => report::claims::render(&claims, &show::style()),
        };
        stdout::text(&text)?;
    }
    Ok(code)
}

/// What was claimed at an earlier moment.
fn earlier(path: &Path) -> Result<Claims, Failure> {
    let file = if path.is_dir() { path.join(file::CLAIMS) } else { path.to_owned() };
    let name = file.display().to_string();
    let text = config::read_text(&file)?;
    let wrong = |why: String| Failure::Usage(format!("--against {name}: {why}"));
    let record: ClaimsRecord = serde_json::from_str(&text).map_err(|error| {
        wrong(format!("{error}; expected what `fabricgate claims --json` printed, or a run folder"))
    })?;
    if record.format != CLAIMS_FORMAT {
        return Err(wrong(format!("format {:?}, expected {CLAIMS_FORMAT:?}", record.format)));
    }
    Ok(record.claims)
}

fn gathered(args: &Args, globals: &Globals) -> Result<Claims, Failure> {
    let path = globals.config.as_deref();
    let named = !args.files.is_empty() || !args.from.is_empty();
    let config = match (named, args.simulated.is_asked(), path) {
        (_, true, path) => Some(args.simulated.config(path)?),
        (_, false, Some(path)) => Some(config::open(Some(path))?),
        (_, false, None) => None,
    };
    let site = config.as_ref().map(|config| config.thresholds.clone()).unwrap_or_default();
    let in_force = expectations::load(&site)?;
    let of_config = config.as_ref().and_then(|config| match &config.claims {
        Source::Sources(wanted) => Some(wanted.as_ref()),
        _ => None,
    });
    let mut wanted = match (&config, named) {
        (_, true) => {
            let mut wanted = Wanted::from_words(&args.from, of_config)?;
            wanted.files.extend(args.files.iter().cloned());
            wanted
        }
        (Some(config), false) => match of_config {
            Some(wanted) => wanted.clone(),
            None => return config.claims(&in_force.catalogue),
        },
        (None, false) => Wanted::found_here(),
    };
    wanted.gpus_per_node = args.gpus_per_node.or(wanted.gpus_per_node);
    wanted.nics_per_node = args.nics_per_node.or(wanted.nics_per_node);
    if wanted.is_nobody() {
        let text = "no source to ask: expected FILE, --from SOURCE, --config FILE, or Slurm or \
                    Kubernetes on this machine";
        return Err(Failure::Usage(text.to_owned()));
    }
    asking::claims(&wanted, config.as_ref(), &in_force.catalogue)
}

/// The exit code: contradictions close the gate, what could not be read leaves
/// it open whether there are some.
fn code(claims: &Claims) -> u8 {
    let contradicts = claims.disagreements.iter().any(|d| d.severity == Severity::Contradiction);
    let unread = claims.sources.iter().any(|source| source.unread().is_some());
    let says_nothing =
        claims.assertions.is_empty() && claims.nodes.is_empty() && claims.domains.is_empty();
    match (says_nothing, contradicts, unread) {
        (true, _, _) => exit::ENVIRONMENT,
        (_, true, _) => exit::GATE_CLOSED,
        (_, _, true) => exit::INCONCLUSIVE,
        _ => exit::PASS,
    }
}
