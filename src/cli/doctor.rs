//! `fabricgate doctor`: what this machine, or these nodes, have and lack to run
//! which probes, with the remedy.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::Globals;
use super::config;
use super::exit;
use super::failure::Failure;
use super::stdout;
use crate::doctor;
use crate::doctor::Look;
use crate::model::checkup::CHECKUP_FORMAT;
use crate::model::checkup::Check;
use crate::model::checkup::Checkup;
use crate::model::checkup::CheckupDocument;
use crate::model::checkup::State;
use crate::plan;
use crate::probe::catalog::Catalog;

/// Tell what this machine has and lacks to run which probes, with the remedy.
///
/// Looks at driver, devices, programs, IMEX, RDMA, limits and schedulers; measures and changes
/// nothing. Ends with 5 when something is lacking that the default profiles need.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// Show also what is there and what no default profile needs.
    #[arg(long, short)]
    all: bool,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let catalog = match globals.config.as_deref() {
        Some(path) => config::open(Some(path))?.catalog,
        None => Catalog::built_in(),
    };
    let machines = vec![here(&catalog)?];
    let lacks = machines.iter().flat_map(|m| &m.checks).any(is_lacking);
    if globals.json {
        stdout::json(&CheckupDocument { format: CHECKUP_FORMAT.to_owned(), machines })?;
    } else {
        stdout::text(&shown(&machines, args.all))?;
    }
    Ok(if lacks { exit::ENVIRONMENT } else { exit::PASS })
}

/// This machine.
fn here(catalog: &Catalog) -> Result<Checkup, Failure> {
    let host = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .map_err(|error| Failure::Environment(format!("no runtime: {error}")))?;
    let look = Look {
        machine: host.trim().to_owned(),
        root: PathBuf::from("/"),
        path: std::env::var("PATH").unwrap_or_default(),
        probes: catalog.probes.values().collect(),
        default_probes: plan::AUDIT_PROBES.to_vec(),
    };
    Ok(runtime.block_on(doctor::look(&look)))
}

fn is_lacking(check: &Check) -> bool {
    check.needed && check.state == State::Lacks
}

fn shown(machines: &[Checkup], all: bool) -> String {
    let mut text = String::new();
    for machine in machines {
        let lacking = machine.checks.iter().filter(|check| is_lacking(check)).count();
        let verdict = match lacking {
            0 => "has what the default probes need".to_owned(),
            1 => "lacks one thing that the default probes need".to_owned(),
            n => format!("lacks {n} things that the default probes need"),
        };
        let _ = writeln!(text, "{}: {verdict}", machine.machine);
        let mut left_out = 0;
        for check in &machine.checks {
            if !all && !is_lacking(check) && check.state != State::Has {
                left_out += 1;
                continue;
            }
            line(&mut text, check);
        }
        if 0 < left_out {
            let _ = writeln!(text, "  {left_out} more that only some probes need, see --all");
        }
    }
    text
}

fn line(text: &mut String, check: &Check) {
    let (area, state) = (check.area.words(), check.state.as_str());
    let _ = writeln!(text, "  {state:<8} {area:<10} {}: {}", check.what, check.detail);
    if check.state == State::Has {
        return;
    }
    if !check.probes.is_empty() {
        let _ = writeln!(text, "  {:20}needed by {}", "", check.probes.join(", "));
    }
    if let Some(remedy) = &check.remedy {
        let _ = writeln!(text, "  {:20}{remedy}", "");
    }
}
