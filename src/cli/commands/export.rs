//! `fabricgate export`: the verified map of a stored run in the format of another system.
//!
//! Opens the run, reads the files that options name, and writes files; the module `export` renders
//! them.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use schemars::JsonSchema;
use serde::Serialize;

use crate::cli::stdout::Globals;
use crate::cli::stored_run::MapTrustArgs;
use crate::cli::{collect_claims, report_output, run_lookup, stdout, stored_run};
use crate::exit::CommandError;
use crate::{config, exit};
use control::sources::slurm;
use engine::export::{
    DegradedPlacement, ExportOptions, ExportOutput, ExportTarget, TARGETS, find_target,
};
use engine::place::map::{MapOrigin, VerifiedMap};
use model::id::NodeName;
use model::source_report::SourceKind;
use model::{hostlist, limits};
use readers::claims::slurm::partitions::partition_of_topology;

/// Write the verified map of a run for a scheduler, a framework, or another program.
#[derive(Debug, clap::Args)]
#[command(after_help = targets_help())]
pub struct ExportArgs {
    /// The run: its folder, its id, `latest`, or the reason of a drain.
    #[arg(value_name = "RUN")]
    run: PathBuf,
    /// The system to write for.
    #[arg(long, value_name = "TARGET")]
    to: String,
    /// Write to this file instead of standard output, or to this folder if there are several files.
    #[arg(long, value_name = "FILE|DIR")]
    output: Option<PathBuf>,
    /// Only these nodes, as a host list.
    #[arg(long, value_name = "LIST")]
    nodes: Option<String>,
    /// Only this domain, by its name in the map.
    #[arg(long, value_name = "NAME")]
    domain: Option<String>,
    /// The cluster's devices: the output of `kubectl get resourceslices -o json`.
    #[arg(long, value_name = "FILE")]
    slices: Option<PathBuf>,
    /// The effect of rules about single GPUs; None changes nothing.
    #[arg(long, value_name = "EFFECT", value_parser = ["None", "NoSchedule"])]
    effect: Option<String>,
    /// HAMi's own scores to compare with: the output of `kubectl get nodes -o json`.
    #[arg(long, value_name = "FILE")]
    hami: Option<PathBuf>,
    /// One of the target's output forms.
    #[arg(long, value_name = "FORM")]
    form: Option<String>,
    /// Update this file of the other system instead of writing a new one.
    #[arg(long, value_name = "FILE")]
    from: Option<PathBuf>,
    /// Where degraded and failed nodes go in a topology; by default they stay.
    #[arg(long, value_enum, value_name = "WHERE")]
    degraded: Option<DegradedArg>,
    /// The base block size of a topology; by default the largest that Slurm accepts for these
    /// blocks.
    #[arg(long, value_name = "N")]
    block_size: Option<u32>,
    /// The name of the topology in topology.yaml.
    #[arg(long, value_name = "NAME")]
    topology: Option<String>,
    /// Whether a filter advises users about jobs that no measured domain can hold, or refuses them.
    #[arg(long, value_enum, value_name = "MODE")]
    mode: Option<FilterModeArg>,
    /// Tensor-parallel ranks of the job.
    #[arg(long, value_name = "N")]
    tp: Option<u32>,
    /// Pipeline-parallel stages of the job.
    #[arg(long, value_name = "N")]
    pp: Option<u32>,
    /// GPUs that the job uses on each node; by default all.
    #[arg(long, value_name = "N",
        value_parser = clap::value_parser!(u32).range(..=i64::from(limits::MAX_GPUS_PER_NODE)))]
    gpus_per_node: Option<u32>,
    #[command(flatten)]
    trust: MapTrustArgs,
}

/// The --degraded option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum DegradedArg {
    /// Keep them in their block.
    Keep,
    /// Put them into a separate block.
    OwnBlock,
    /// Leave them out of all blocks.
    LeaveOut,
}

/// The --mode option.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum FilterModeArg {
    /// Advise users, and let every job pass.
    Advise,
    /// Refuse jobs that no measured domain can hold.
    Enforce,
}

/// The result of `export --json`.
#[derive(Debug, Serialize, JsonSchema)]
pub(crate) struct ExportDocument<'a> {
    /// `fabricgate.export/1`.
    format: &'static str,
    /// The system that the files are for.
    target: &'static str,
    /// The run that was exported.
    run: &'a MapOrigin,
    /// Notes to read before using the files.
    remarks: &'a [String],
    /// The files.
    files: Vec<ExportDocumentFile<'a>>,
}

/// An exported file.
#[derive(Debug, Serialize, JsonSchema)]
struct ExportDocumentFile<'a> {
    /// Name of the file.
    name: &'a str,
    /// Content of the file; absent if it was written to `path`.
    #[serde(skip_serializing_if = "Option::is_none")]
    content: Option<std::borrow::Cow<'a, str>>,
    /// Path of the written file.
    #[serde(skip_serializing_if = "Option::is_none")]
    path: Option<PathBuf>,
}

/// The format of `export --json`.
pub(crate) const EXPORT_FORMAT: &str = "fabricgate.export/1";

/// The list of targets, for the help text.
fn targets_help() -> String {
    let width = TARGETS.iter().map(|target| target.name.len()).max().unwrap_or(0);
    let mut text = "Targets:\n".to_owned();
    for target in TARGETS {
        text.push_str(&format!("  {:width$}  {}", target.name, target.about));
        if !target.takes.is_empty() {
            let takes: Vec<String> = target.takes.iter().map(|it| format!("--{it}")).collect();
            text.push_str(&format!(" ({})", takes.join(", ")));
        }
        text.push('\n');
    }
    text
}

/// Runs the command. Exporting is not a verdict: the exit code reports only whether the map could
/// be written.
pub fn run(args: &ExportArgs, globals: &Globals) -> anyhow::Result<u8> {
    let Some(target) = find_target(&args.to) else {
        let known: Vec<&str> = TARGETS.iter().map(|target| target.name).collect();
        return Err(CommandError::Usage(format!(
            "--to {}: no such target, expected one of {}",
            engine::report::plain_text::to_plain(&args.to),
            known.join(", ")
        ))
        .into());
    };
    let options = build_options(args, target)?;
    let mut map = stored_run::open_verified_map(
        &run_lookup::find_run(&args.run, globals.config.as_deref())?,
        args.trust,
    )?;
    if target.takes.contains(&"from") && args.from.is_none() && map.partitions.is_none() {
        map.partitions = read_partition_topologies(globals)?;
    }
    let export = (target.write)(&map, &options)
        .map_err(|error| CommandError::Usage(format!("export to {}: {error}", target.name)))?;
    for remark in &export.remarks {
        stdout::note(&engine::report::plain_text::to_plain(remark));
    }
    // `-` stands for standard output, the default.
    let output = args.output.as_deref().filter(|path| path.as_os_str() != "-");
    let written = match output {
        Some(output) => write_files(output, &export)?,
        None => Vec::new(),
    };
    if globals.json {
        stdout::write_json(&build_document(target, &map, &export, &written))?;
    } else if output.is_none() {
        if let [file, more, ..] = export.files.as_slice() {
            stdout::note(&format!(
                "only {} is printed; --output DIR writes {} and the other files too",
                file.name, more.name
            ));
        }
        if let Some(file) = export.files.first() {
            stdout::write_bytes(&file.bytes)?;
        }
    }
    Ok(exit::PASS)
}

/// The topologies of Slurm's partitions, if a configuration names a Slurm controller and it
/// answers.
fn read_partition_topologies(
    globals: &Globals,
) -> Result<Option<BTreeMap<String, String>>, CommandError> {
    let Some(path) = &globals.config else { return Ok(None) };
    let config = config::open(Some(path))?;
    let Some(slurm) = collect_claims::slurm_controller(&config) else { return Ok(None) };
    let reports = crate::cli::runtime::build_runtime()?.block_on(slurm::fetch_claims(&slurm));
    let partitions = reports.into_iter().find(|it| it.source.kind == SourceKind::SlurmPartitions);
    Ok(partitions.filter(|it| it.problems.is_empty()).map(|it| {
        let named = it.settings.into_iter().filter_map(|(key, topology)| {
            Some((partition_of_topology(&key)?.to_owned(), topology))
        });
        named.collect()
    }))
}

/// The options of this target; an option that the target does not read is an error, because it
/// would have no effect.
fn build_options(args: &ExportArgs, target: &ExportTarget) -> Result<ExportOptions, CommandError> {
    let given = [
        ("nodes", args.nodes.is_some()),
        ("domain", args.domain.is_some()),
        ("slices", args.slices.is_some()),
        ("effect", args.effect.is_some()),
        ("hami", args.hami.is_some()),
        ("form", args.form.is_some()),
        ("from", args.from.is_some()),
        ("degraded", args.degraded.is_some()),
        ("block-size", args.block_size.is_some()),
        ("topology", args.topology.is_some()),
        ("mode", args.mode.is_some()),
        ("tp", args.tp.is_some()),
        ("pp", args.pp.is_some()),
        ("gpus-per-node", args.gpus_per_node.is_some()),
    ];
    let unread = given.iter().find(|(name, is_given)| *is_given && !target.takes.contains(name));
    if let Some((name, _)) = unread {
        return Err(CommandError::Usage(format!(
            "--{name}: export to {} does not read it",
            target.name
        )));
    }
    let nodes = args.nodes.as_deref().map(parse_nodes).transpose()?;
    let text = |path: &Option<PathBuf>| path.as_deref().map(config::read_text).transpose();
    Ok(ExportOptions {
        nodes,
        domain: args.domain.clone(),
        slices: text(&args.slices)?,
        effect: args.effect.clone(),
        hami: text(&args.hami)?,
        form: args.form.clone(),
        from: text(&args.from)?,
        degraded: match args.degraded {
            None | Some(DegradedArg::Keep) => DegradedPlacement::Keep,
            Some(DegradedArg::OwnBlock) => DegradedPlacement::OwnBlock,
            Some(DegradedArg::LeaveOut) => DegradedPlacement::LeaveOut,
        },
        block_size: args.block_size,
        topology: args.topology.clone(),
        enforce: args.mode == Some(FilterModeArg::Enforce),
        tp: args.tp,
        pp: args.pp,
        gpus_per_node: args.gpus_per_node,
    })
}

/// The nodes of a host list.
fn parse_nodes(list: &str) -> Result<BTreeSet<NodeName>, CommandError> {
    let names = hostlist::expand(list).map_err(|error| {
        CommandError::Usage(format!(
            "--nodes {}: {error}",
            engine::report::plain_text::to_plain(list)
        ))
    })?;
    Ok(names.into_iter().map(NodeName::from).collect())
}

/// Writes one file to the path itself, or several files into a folder of that name. If the path is
/// a folder, a single file goes into it under its own name.
fn write_files(output: &Path, export: &ExportOutput) -> Result<Vec<PathBuf>, CommandError> {
    let is_folder = output.is_dir() || 1 < export.files.len();
    if is_folder {
        std::fs::create_dir_all(output)
            .map_err(|error| CommandError::Environment(format!("{}: {error}", output.display())))?;
    }
    let mut paths = Vec::new();
    for file in &export.files {
        let path = if is_folder { output.join(&file.name) } else { output.to_owned() };
        report_output::write_file(&path, &file.bytes)?;
        paths.push(path);
    }
    Ok(paths)
}

fn build_document<'a>(
    target: &ExportTarget,
    map: &'a VerifiedMap,
    export: &'a ExportOutput,
    written: &[PathBuf],
) -> ExportDocument<'a> {
    let mut paths = written.iter().cloned();
    let files = export.files.iter().map(|file| {
        let path = paths.next();
        let content = path.is_none().then(|| String::from_utf8_lossy(&file.bytes));
        ExportDocumentFile { name: &file.name, content, path }
    });
    ExportDocument {
        format: EXPORT_FORMAT,
        target: target.name,
        run: &map.run,
        remarks: &export.remarks,
        files: files.collect(),
    }
}
