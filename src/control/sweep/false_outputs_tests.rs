//! Outputs that a falsely reporting node makes up or changes.

/// A test that no plan here requests.
pub(super) const UNORDERED_TEST: &str = "multinode_device_to_device_bidirectional_memcpy_write_ce";

pub(super) const IMEX_OUTPUT: &str = "Connectivity Table Legend:\nI - Invalid\n5/27/2025 09:00:11.000\nNodes:\n\
    Node #0   - 10.40.0.11      - UNAVAILABLE\nNode #1   - 10.40.0.12      - UNAVAILABLE\n\
    Node #2   - 10.40.0.13      - READY                - Version: 570.133.20\nDomain State: DOWN\n";

pub(super) const NCCL_OUTPUT: &str = "# nThread 1 nGpus 1 minBytes 1048576 maxBytes 4194304 step: 2(factor) warmup iters: 5 \
    iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n\
    #  Rank  0 Group  0 Pid     71 on         WHO device  0 [0000:1b:00] NVIDIA GB200\n\
    #  Rank  1 Group  0 Pid     72 on         WHO device  1 [0000:2b:00] NVIDIA GB200\n\
    #\n#       size         count      type   redop    root     time   algbw   busbw #wrong     \
    time   algbw   busbw #wrong\n\
    \x20    4194304        262144     float     sum      -1   100.00   41.94   41.94      7   100.00   41.94   \
    41.94      7\n# Out of bounds values : 14 FAILED\n# Avg bus bandwidth    : 41.94 \n#\n";

/// Ranks of a node in front of an output.
pub(super) fn rank_lines(who: &str) -> String {
    let rank =
        |n: u32| format!("Process {n} ({who}): device {}: NVIDIA GB200 (00000008:01:00)\n", n % 4);
    let all: String = (0..8).map(rank).collect();
    let test = "multinode_device_to_device_memcpy_write_ce";
    format!("{all}\nRunning {test}.\n{}\nSUM {test} 100.00\n\n", low_row_table(who))
}

/// A table with one low row.
pub(super) fn low_row_table(_: &str) -> String {
    let mut out = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)\n          ".to_owned();
    (0..8).for_each(|col| out.push_str(&format!("{col:>10}")));
    for row in 0..8 {
        out.push_str(&format!("\n{row:>10}"));
        for col in 0..8 {
            let rate = if row == 2 || col == 2 { 400.0 } else { 775.0 };
            let cell = if row == col { "N/A".to_owned() } else { format!("{rate:.2}") };
            out.push_str(&format!("{cell:>10}"));
        }
    }
    out + "\n"
}

/// The text with all decimal numbers of some rows times a factor.
pub(super) fn scale_rows(text: &str, factor: f64, rows: impl Fn(u64) -> bool) -> String {
    let line = |line: &str| {
        let first = line.split_whitespace().next().and_then(|word| word.parse().ok());
        if !rows(first.unwrap_or(0)) {
            return line.to_owned();
        }
        let mut out = String::new();
        for word in line.split_inclusive(' ') {
            let plain = word.trim_end();
            let is_rate = plain.contains('.') && !plain.starts_with("0.");
            match plain.parse::<f64>().ok().filter(|_| is_rate) {
                Some(rate) => out.push_str(&word.replace(plain, &format!("{:.2}", rate * factor))),
                None => out.push_str(word),
            }
        }
        out
    };
    text.split('\n').map(line).collect::<Vec<_>>().join("\n")
}
