//! The command line: one file per subcommand, thin.
//!
//! This is the shell around the stages: it opens files, reads the clock,
//! prints, and turns outcomes into exit codes. It decides nothing else.

mod abreast;
pub mod acting;
pub mod afterwards;
pub mod apply;
pub mod asking;
pub mod audit;
pub mod auditing;
pub mod beside;
pub mod bundling;
pub mod burn_in;
pub mod burning;
pub mod capacity;
pub mod certificate;
pub mod certificate_verify;
pub mod certifying;
pub mod claims;
pub mod completions;
pub mod config;
pub mod configuration;
pub mod doctor;
mod earlier;
pub mod exit;
pub mod expectations;
pub mod explain;
pub mod export;
pub mod failure;
pub mod gate;
pub mod gating;
pub mod history;
pub mod history_arg;
pub mod holding;
pub mod judge;
pub mod keeping;
pub mod launcher;
pub mod metering;
pub mod metrics;
pub mod node;
pub mod node_attach;
pub mod node_facts;
pub mod node_library;
pub mod node_probe;
pub mod node_token;
pub mod notify;
pub mod notifying;
pub mod output;
pub mod parse;
mod partners;
mod pausing;
pub mod place;
pub mod plan;
pub mod probes;
pub mod recertify;
pub mod replay;
pub mod report;
pub mod runs;
#[cfg(test)]
mod schemas;
pub mod show;
pub mod sim;
mod site;
pub mod sources;
pub mod stdout;
pub mod stored;
pub mod sweep;
mod tenancy;
pub mod thresholds;
pub mod topology;
pub mod watch;
pub mod watching;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Parser, Subcommand};

use failure::CommandError;
use plan::Profile;

/// What `--version` says: with the commit, where the build was told it (`ci/package`
/// is). A variable and no build script: the same sources make the same bytes.
const VERSION: &str = match option_env!("FABRICGATE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Measure the GPU fabric of a cluster before anybody trusts it.
#[derive(Debug, Parser)]
#[command(name = "fabricgate", version = VERSION, about, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,

    #[command(subcommand)]
    command: CliCommand,
}

/// Options of every command.
#[derive(Debug, clap::Args)]
pub struct Globals {
    /// Print one JSON document (or JSON lines) on stdout and nothing else there.
    #[arg(long, global = true)]
    pub json: bool,
    /// The configuration file.
    #[arg(long, global = true, value_name = "FILE", env = "FABRICGATE_CONFIG")]
    pub config: Option<PathBuf>,
    /// When to use colours.
    #[arg(long, global = true, value_enum, value_name = "WHEN", default_value = "auto")]
    pub color: Color,
    /// Do not tell on stderr how far a run is.
    #[arg(long, global = true)]
    pub no_progress: bool,
    /// Say more about errors.
    #[arg(short, long, global = true)]
    pub verbose: bool,
}

/// When to use colours.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
pub enum Color {
    /// In a terminal that wants them (`NO_COLOR` is respected).
    Auto,
    /// Always.
    Always,
    /// Never.
    Never,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Parse(parse::ParseArgs),
    Judge(judge::JudgeArgs),
    Claims(claims::ClaimsArgs),
    Plan(plan::PlanArgs),
    /// Measure nodes before their first job: state, inside, across, collectives.
    Admit(sweep::SweepArgs),
    BurnIn(burn_in::BurnInArgs),
    Recertify(recertify::RecertifyArgs),
    Audit(audit::AuditArgs),
    Apply(apply::ApplyArgs),
    Gate(gate::GateArgs),
    Watch(watch::WatchArgs),
    Capacity(capacity::CapacityArgs),
    Certificate(certificate::CertificateArgs),
    Metrics(metrics::MetricsArgs),
    Report(report::ReportArgs),
    Explain(explain::ExplainArgs),
    History(history::HistoryArgs),
    Export(export::ExportArgs),
    Place(place::PlaceArgs),
    Replay(replay::ReplayArgs),
    Probes(probes::ProbesArgs),
    Thresholds(thresholds::ThresholdsArgs),
    Doctor(doctor::DoctorArgs),
    Sim(sim::SimArgs),
    Node(node::NodeArgs),
    Config(configuration::ConfigArgs),
    Notify(notify::NotifyArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Parses the command line, runs the command, and gives its exit code.
pub fn main() -> ExitCode {
    if let Some(result) = sim::answer_by_name() {
        return report_result(result, false);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0, everything else is usage.
            let code = if error.use_stderr() { exit::USAGE } else { exit::PASS };
            let _ = error.print();
            return ExitCode::from(code);
        }
    };
    let globals = &cli.globals;
    match globals.color {
        Color::Auto => {}
        Color::Always => anstream::ColorChoice::Always.write_global(),
        Color::Never => anstream::ColorChoice::Never.write_global(),
    }
    if globals.json {
        stdout::reserve_for_document();
    }
    let result = match &cli.command {
        CliCommand::Parse(args) => parse::run(args, globals.json),
        CliCommand::Judge(args) => judge::run(args, globals),
        CliCommand::Claims(args) => claims::run(args, globals),
        CliCommand::Plan(args) => plan::run(args, globals),
        CliCommand::Admit(args) => sweep::run(args, globals, Profile::Admit),
        CliCommand::BurnIn(args) => burn_in::run(args, globals),
        CliCommand::Recertify(args) => recertify::run(args, globals),
        CliCommand::Audit(args) => audit::run(args, globals),
        CliCommand::Apply(args) => apply::run(args, globals),
        CliCommand::Gate(args) => gate::run(args, globals),
        CliCommand::Watch(args) => watch::run(args, globals),
        CliCommand::Capacity(args) => capacity::run(args, globals),
        CliCommand::Certificate(args) => certificate::run(args, globals),
        CliCommand::Metrics(args) => metrics::run(args, globals),
        CliCommand::Report(args) => report::run(args, globals),
        CliCommand::Explain(args) => explain::run(args, globals),
        CliCommand::History(args) => history::run(args, globals),
        CliCommand::Export(args) => export::run(args, globals),
        CliCommand::Place(args) => place::run(args, globals),
        CliCommand::Replay(args) => replay::run(args, globals),
        CliCommand::Probes(args) => probes::run(args, globals),
        CliCommand::Thresholds(args) => thresholds::run(args, globals),
        CliCommand::Doctor(args) => doctor::run(args, globals),
        CliCommand::Sim(args) => sim::run(args, globals),
        CliCommand::Node(args) => node::run(args, globals),
        CliCommand::Config(args) => configuration::run(args, globals),
        CliCommand::Notify(args) => notify::run(args, globals),
        CliCommand::Completions(args) => completions::print_completions(args),
        CliCommand::Man(args) => completions::print_man_pages(args),
    };
    report_result(result, globals.verbose)
}

/// The exit code of a command, and after a message where it failed.
fn report_result(result: anyhow::Result<u8>, verbose: bool) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        // Nobody reads on. What was left to say is lost, so nothing is known.
        Err(error) if failure::is_broken_pipe(&error) => ExitCode::from(exit::INCONCLUSIVE),
        Err(error) => {
            let told = if verbose { format!("{error:?}") } else { format!("{error:#}") };
            stdout::note(&told);
            ExitCode::from(failure::exit_code_of(&error))
        }
    }
}

/// What a command waits with for programs and servers.
pub(crate) fn build_runtime() -> Result<tokio::runtime::Runtime, CommandError> {
    tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| CommandError::Environment(format!("no runtime: {error}")))
}

/// A number that differs between two starts of the program, for names.
#[expect(clippy::disallowed_methods, reason = "the command line is where the clock is read")]
pub(crate) fn random_number() -> u64 {
    let nanos = jiff::Timestamp::now().as_nanosecond().unsigned_abs();
    let low = u64::try_from(nanos & u128::from(u64::MAX)).unwrap_or(0);
    low ^ (u64::from(std::process::id()) << 40)
}

#[cfg(test)]
mod tests {
    use clap::CommandFactory;

    use super::*;

    #[test]
    fn every_command_can_be_built() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_command_has_its_row_in_the_readme() {
        let readme = include_str!("../../README.md");
        let table = readme.split("\n## Commands\n").nth(1).expect("the section");
        let table = table.split("\n## ").next().expect("its end");
        // First cells, word by word: `sim record\|tool` names a command and two of its own.
        let cells = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next());
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let rows: Vec<Vec<&str>> =
            cells.map(|cell| cell.split(|c| !is_word(c)).collect()).collect();
        assert!(20 < rows.len(), "{rows:?}");
        let cli = Cli::command();
        let mut silent = Vec::new();
        for command in cli.get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = command.get_name();
            let told = rows.iter().filter(|row| row.contains(&name));
            let told: Vec<&str> = told.flatten().copied().collect();
            if told.is_empty() {
                silent.push(name.to_owned());
            }
            let own = command.get_subcommands().filter(|it| !it.is_hide_set());
            let own = own.map(clap::Command::get_name).filter(|own| !told.contains(own));
            silent.extend(own.map(|own| format!("{name} {own}")));
        }
        assert!(silent.is_empty(), "README.md, Commands, does not tell of {silent:?}");
    }
}
