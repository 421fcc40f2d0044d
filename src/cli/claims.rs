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
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
}

/// Runs the command.
pub fn run(args: &Args, globals: &Globals) -> anyhow::Result<u8> {
    let path = match &args.file {
        Some(path) => path.clone(),
        None => config::open(globals.config.as_deref())?.claims,
    };
    let claims = config::claims(&path)?;
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
    text
}
