//! `fabricgate claims`: the claims of every source about the fabric, and their disagreements.

use std::path::{Path, PathBuf};

use crate::cli::simulation_option::SimulationArgs;
use crate::cli::stdout::Globals;
use crate::cli::{collect_claims, expectations, report_output, stdout};
use crate::config::ClaimsSource;
use crate::config::sources::SourcesConfig;
use crate::exit::CommandError;
use crate::{config, exit};
use control::store::{CLAIMS_FORMAT, ClaimsRecord, file};
use engine::report;
use model::claims::Claims;
use model::disagreement::DisagreementSeverity;
use model::limits;
use readers::claims::reconcile;

/// Show the claims of every source about the fabric, and their disagreements.
///
/// Sources are files (claims.toml, Slurm's topology files, outputs of scontrol or kubectl, cabling,
/// LLDP, Ray, NCCL topologies, job environments; detected by content), Slurm, Kubernetes and the
/// nodes themselves. Without FILE and --from, the configuration selects the sources; without a
/// configuration, the sources that this machine can query. The exit code is 3 when sources
/// contradict each other, 4 when a source could not be read, 5 when none could.
#[derive(Debug, clap::Args)]
pub struct ClaimsArgs {
    /// Files with claims, or folders of them.
    #[arg(value_name = "FILE", conflicts_with = "scenario")]
    files: Vec<PathBuf>,
    /// Query only this source: slurm, slurmrestd[=ADDRESS], kubernetes[=CONTEXT], ray[=ADDRESS],
    /// nodes, files, or a file. May be given several times.
    #[arg(long, value_name = "SOURCE", conflicts_with = "scenario")]
    from: Vec<String>,
    /// GPUs that every node must have.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=i64::from(limits::MAX_GPUS_PER_NODE)))]
    gpus_per_node: Option<u32>,
    /// NICs of the compute network that every node must have.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=i64::from(limits::MAX_NICS_PER_NODE)))]
    nics_per_node: Option<u32>,
    /// Show the changes since an earlier state: a file with the output of --json, or a run folder.
    #[arg(long, value_name = "EARLIER")]
    against: Option<PathBuf>,
    #[command(flatten)]
    simulated: SimulationArgs,
}

/// Runs the command.
pub fn run(args: &ClaimsArgs, globals: &Globals) -> anyhow::Result<u8> {
    // Before any query: a mistake in an option should not cost the sources' answers.
    let earlier = args.against.as_deref().map(read_earlier_claims).transpose()?;
    let claims = gather_claims(args, globals)?;
    let changes = earlier.map(|earlier| reconcile::diff::diff_claims(&earlier, &claims));
    let code = exit_code(&claims);
    if globals.json {
        stdout::write_json(&ClaimsRecord { format: CLAIMS_FORMAT.to_owned(), claims, changes })?;
    } else {
        let text = match changes {
            Some(changes) => {
                report::claims::render_changes(&changes, &report_output::terminal_style())
            }
            None => report::claims::render(&claims, &report_output::terminal_style()),
        };
        stdout::write_text(&text)?;
    }
    Ok(code)
}

/// The claims of an earlier state.
fn read_earlier_claims(path: &Path) -> Result<Claims, CommandError> {
    let file = if path.is_dir() { path.join(file::CLAIMS) } else { path.to_owned() };
    let name = file.display().to_string();
    let text = config::read_text(&file)?;
    let wrong = |why: String| CommandError::Usage(format!("--against {name}: {why}"));
    let record: ClaimsRecord = serde_json::from_str(&text).map_err(|error| {
        wrong(format!(
            "{error}; expected the output of `fabricgate claims --json`, or a run folder"
        ))
    })?;
    if record.format != CLAIMS_FORMAT {
        return Err(wrong(format!("format {:?}, expected {CLAIMS_FORMAT:?}", record.format)));
    }
    Ok(record.claims)
}

fn gather_claims(args: &ClaimsArgs, globals: &Globals) -> Result<Claims, CommandError> {
    let path = globals.config.as_deref();
    let named = !args.files.is_empty() || !args.from.is_empty();
    let config = match (named, args.simulated.is_requested(), path) {
        (_, true, path) => Some(args.simulated.open_config(path)?),
        (_, false, Some(path)) => Some(config::open(Some(path))?),
        (_, false, None) => None,
    };
    let site = config.as_ref().map(|config| config.thresholds.clone()).unwrap_or_default();
    let in_force = expectations::load_thresholds(&site)?;
    let of_config = config.as_ref().and_then(|config| match &config.claims {
        ClaimsSource::Sources(wanted) => Some(wanted.as_ref()),
        _ => None,
    });
    let mut wanted = match (&config, named) {
        (_, true) => {
            let mut wanted = SourcesConfig::from_option(&args.from, of_config)?;
            wanted.files.extend(args.files.iter().cloned());
            wanted
        }
        (Some(config), false) => match of_config {
            Some(wanted) => wanted.clone(),
            None => return config.collect_claims(&in_force.catalogue),
        },
        (None, false) => SourcesConfig::detect(),
    };
    wanted.gpus_per_node = args.gpus_per_node.or(wanted.gpus_per_node);
    wanted.nics_per_node = args.nics_per_node.or(wanted.nics_per_node);
    if wanted.is_empty() {
        let text = "no source: expected FILE, --from SOURCE, --config FILE, or Slurm or \
                    Kubernetes on this machine";
        return Err(CommandError::Usage(text.to_owned()));
    }
    collect_claims::collect_claims(&wanted, config.as_ref(), &in_force.catalogue)
}

/// The exit code: contradictions close the gate; unread sources are inconclusive, because they may
/// hide contradictions.
fn exit_code(claims: &Claims) -> u8 {
    let contradicts =
        claims.disagreements.iter().any(|d| d.severity == DisagreementSeverity::Contradiction);
    let unread = claims.sources.iter().any(|source| source.unread_problem().is_some());
    let is_empty =
        claims.assertions.is_empty() && claims.nodes.is_empty() && claims.domains.is_empty();
    match (is_empty, contradicts, unread) {
        (true, _, _) => exit::ENVIRONMENT,
        (_, true, _) => exit::GATE_CLOSED,
        (_, _, true) => exit::INCONCLUSIVE,
        _ => exit::PASS,
    }
}
