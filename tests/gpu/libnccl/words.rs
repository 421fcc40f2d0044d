//! Output of this library under NCCL_DEBUG, as far as fabricgate reads it: the forms are NCCL's,
//! the rest is left out.

use std::io::Write;

use crate::description::Description;

/// Writes a line to the file of NCCL_DEBUG_FILE.
fn print_log(gpu: &str, text: &str) {
    if !std::env::var("NCCL_DEBUG").is_ok_and(|level| level == "INFO") {
        return;
    }
    let process = std::process::id();
    let line = format!("stub:{process}:{process} [{gpu}] NCCL INFO {text}\n");
    let Ok(place) = std::env::var("NCCL_DEBUG_FILE") else {
        print!("{line}");
        return;
    };
    let file = std::fs::OpenOptions::new().append(true).create(true).open(place);
    // The reader may have ended.
    let _ = file.and_then(|mut file| file.write_all(line.as_bytes()));
}

/// Transport between ranks: the description's, unless a variable forbids it.
fn transport(description: &Description) -> String {
    let configured = description.get::<String>(&["nccl", "transport"]);
    match std::env::var("NCCL_NET").ok().as_deref() {
        Some("Socket") => "NET/Socket/0".to_owned(),
        Some("IB") => configured.unwrap_or("NET/IB/0/GDRDMA".to_owned()),
        _ => configured.unwrap_or("P2P/CUMEM/read".to_owned()),
    }
}

pub fn connected(description: &Description, rank: u32, ranks: u32) {
    let gpu = rank.to_string();
    if let Ok(rail) = std::env::var("NCCL_IB_HCA") {
        print_log(&gpu, &format!("NCCL_IB_HCA set to {rail}"));
    }
    if 1 < ranks {
        let next = (rank + 1) % ranks;
        let via = transport(description);
        print_log(&gpu, &format!("Channel 00/0 : {rank}[{rank}] -> {next}[{next}] via {via}"));
        if via.starts_with("P2P/MNNVL") {
            print_log(&gpu, &format!("MNNVL 1 cliqueId 1 cliqueSize {ranks} cliqueRank {rank}"));
        }
    }
}

pub fn chosen(description: &Description, rank: u32, function: &str, bytes: usize) {
    let algorithm = description.get(&["nccl", "algorithm"]).unwrap_or("RING".to_owned());
    if rank == 0 {
        let text = format!("{function}: {bytes} Bytes -> Algo {algorithm} proto SIMPLE");
        print_log("0", &text);
    }
}
