//! The command line: the layer around the stages. It opens files, reads the clock, prints, and
//! turns outcomes into exit codes. `commands` has a file per subcommand; the other modules are
//! shared by several commands and import none of them.

pub mod allocation;
pub mod audit_scope;
pub mod collect_claims;
pub mod commands;
pub mod earlier_runs_option;
pub mod expectations;
pub mod gate_apply;
pub mod metrics_state;
pub mod output;
pub mod partner_selection;
pub mod past_runs;
pub mod plan_scope;
pub mod post_run;
pub mod report_output;
pub mod run_lookup;
pub mod runtime;
#[cfg(test)]
mod schemas;
pub(crate) mod simulated_node;
pub mod simulation_option;
pub mod stdout;
pub mod stored_run;
pub mod sweep;
pub mod sweep_setup;
pub mod tenancy;

use std::process::ExitCode;

use clap::{Parser, Subcommand};

use crate::exit;
use commands::{
    apply, audit, burn_in, capacity, certificate, claims, completions, config, doctor, explain,
    export, gate, history, judge, metrics, node, notify, parse, place, plan, probes, recertify,
    replay, report, sim, thresholds, watch,
};
use model::profile::Profile;
use stdout::{Color, Globals};

/// The text of `--version`: `ci/package` adds the commit through this variable. Without a build
/// script, the same sources produce the same bytes.
const VERSION: &str = match option_env!("FABRICGATE_VERSION") {
    Some(version) => version,
    None => env!("CARGO_PKG_VERSION"),
};

/// Measure the GPU fabric of a cluster before jobs run on it.
#[derive(Debug, Parser)]
#[command(name = "fabricgate", version = VERSION, about, max_term_width = 100)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,

    #[command(subcommand)]
    command: CliCommand,
}

#[derive(Debug, Subcommand)]
enum CliCommand {
    Parse(parse::ParseArgs),
    Judge(judge::JudgeArgs),
    Claims(claims::ClaimsArgs),
    Plan(plan::PlanArgs),
    /// Measure nodes before their first job: state, inside nodes, across nodes, collectives.
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
    Config(config::ConfigArgs),
    Notify(notify::NotifyArgs),
    Completions(completions::CompletionsArgs),
    Man(completions::ManArgs),
}

/// Parses the command line, runs the command, and returns its exit code.
pub fn main() -> ExitCode {
    if let Some(result) = simulated_node::answer_by_name() {
        return report_result(result, false);
    }
    let cli = match Cli::try_parse() {
        Ok(cli) => cli,
        Err(error) => {
            // Help and version go to stdout with 0; everything else is a usage error.
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
        CliCommand::Config(args) => config::run(args, globals),
        CliCommand::Notify(args) => notify::run(args, globals),
        CliCommand::Completions(args) => completions::print_completions(args),
        CliCommand::Man(args) => completions::print_man_pages(args),
    };
    report_result(result, globals.verbose)
}

/// The exit code of a command; prints the error of a failed one.
fn report_result(result: anyhow::Result<u8>, verbose: bool) -> ExitCode {
    match result {
        Ok(code) => ExitCode::from(code),
        // The reader closed the pipe. The rest of the output is lost, so the result is unknown.
        Err(error) if exit::is_broken_pipe(&error) => ExitCode::from(exit::INCONCLUSIVE),
        Err(error) => {
            let text = if verbose { format!("{error:?}") } else { format!("{error:#}") };
            stdout::note(&text);
            ExitCode::from(exit::exit_code_of(&error))
        }
    }
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
        // First cells, word by word: `sim record\|tool` names a command and its two subcommands.
        let cells = table.lines().filter_map(|row| row.strip_prefix("| `")?.split(" | ").next());
        let is_word = |c: char| c.is_ascii_alphanumeric() || c == '-';
        let rows: Vec<Vec<&str>> =
            cells.map(|cell| cell.split(|c| !is_word(c)).collect()).collect();
        assert!(20 < rows.len(), "{rows:?}");
        let cli = Cli::command();
        let mut missing = Vec::new();
        for command in cli.get_subcommands().filter(|it| !it.is_hide_set()) {
            let name = command.get_name();
            let words = rows.iter().filter(|row| row.contains(&name));
            let words: Vec<&str> = words.flatten().copied().collect();
            if words.is_empty() {
                missing.push(name.to_owned());
            }
            let own = command.get_subcommands().filter(|it| !it.is_hide_set());
            let own = own.map(clap::Command::get_name).filter(|own| !words.contains(own));
            missing.extend(own.map(|own| format!("{name} {own}")));
        }
        assert!(missing.is_empty(), "README.md, Commands, lacks {missing:?}");
    }
}
