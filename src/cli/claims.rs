//! `fabricgate claims`: what is claimed about the fabric.

use std::fmt::Write as _;
use std::path::PathBuf;

use super::Globals;
use super::config;
use super::exit;
use super::stdout;
use crate::inventory::hostlist;
use crate::model::claims::Claims;
use crate::record::CLAIMS_FORMAT;
use crate::record::ClaimsRecord;

/// Show what is claimed about the fabric.
#[derive(Debug, clap::Args)]
pub struct Args {
    /// A claims file; without it, the configuration's.
    #[arg(value_name = "FILE", conflicts_with = "scenario")]
    file: Option<PathBuf>,
    #[command(flatten)]
    simulated: config::Simulated,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let claims = match &args.file {
        Some(path) => config::claims(path)?,
        None => args.simulated.config(globals.config.as_deref())?.claims()?,
    };
    if globals.json {
        stdout::json(&ClaimsRecord { format: CLAIMS_FORMAT.to_owned(), claims })?;
    } else {
        stdout::text(&shown(&claims))?;
    }
    Ok(exit::PASS)
}

fn shown(claims: &Claims) -> String {
    let mut text = String::new();
    for domain in &claims.domains {
        let nodes = hostlist::fold(domain.nodes.iter().map(|n| n.as_str()));
        let _ = write!(text, "{}: {} nodes, {nodes}", domain.name, domain.nodes.len());
        if let Some(platform) = &domain.platform {
            let _ = write!(text, ", {platform}");
        }
        if let Some(gpus) = domain.gpus_per_node {
            let _ = write!(text, ", {gpus} GPUs per node");
        }
        if let Some(nic) = &domain.nic {
            let _ = write!(text, ", NICs {nic}");
        }
        text.push('\n');
    }
    for leaf in &claims.leaves {
        let nodes = hostlist::fold(leaf.nodes.iter().map(|n| n.as_str()));
        let _ = writeln!(text, "leaf {}: {} nodes, {nodes}", leaf.name, leaf.nodes.len());
    }
    for rail in &claims.rails {
        let said = [("device", &rail.device), ("network", &rail.network), ("rdma", &rail.rdma)];
        let said: Vec<String> = said
            .iter()
            .filter_map(|(key, value)| Some(format!("{key} {}", value.as_ref()?)))
            .collect();
        let _ = writeln!(text, "rail {}: {}", rail.name, said.join(", "));
    }
    text
}
