//! Outputs in each release's format, with generated numbers and hosts.

#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) enum NcclTestsRelease {
    /// 2.0 to 2.11: `error`, columns as the test needs them.
    Old,
    /// 2.13 to 2.16.
    Wrong,
    /// 2.19 with -I 1 and -S 1.
    Iterations,
    /// With a bitwise check, and DCGM's last column.
    Bitwise,
}

pub(super) const RELEASES: [NcclTestsRelease; 4] = [
    NcclTestsRelease::Old,
    NcclTestsRelease::Wrong,
    NcclTestsRelease::Iterations,
    NcclTestsRelease::Bitwise,
];

/// One half as a release would print it.
#[derive(Clone, Debug)]
pub(super) struct RenderedRowHalf {
    pub(super) time: f64,
    pub(super) algbw: f64,
    pub(super) busbw: f64,
    pub(super) wrong: Option<u32>,
}

/// The half of a row of `bytes` that took `time` on `ranks` ranks.
pub(super) fn half(bytes: u64, time: f64, ranks: u32) -> RenderedRowHalf {
    let algbw = bytes as f64 / time / 1e3;
    let busbw = algbw * 2.0 * f64::from(ranks - 1) / f64::from(ranks);
    RenderedRowHalf { time, algbw, busbw, wrong: Some(0) }
}

pub(super) fn fit(value: f64, width: usize) -> String {
    for decimals in [2, 1, 0] {
        let text = format!("{value:width$.decimals$}");
        if text.len() <= width {
            return text;
        }
    }
    format!("{value:.0e}").replace('e', "e+0")
}

pub(super) fn render_half(half: &RenderedRowHalf, release: NcclTestsRelease) -> String {
    let check = match (half.wrong, release) {
        (None, _) => "N/A".to_owned(),
        (Some(_), NcclTestsRelease::Old) => "3e-07".to_owned(),
        (Some(wrong), _) => wrong.to_string(),
    };
    let (time, algbw, busbw) = (fit(half.time, 7), fit(half.algbw, 6), fit(half.busbw, 6));
    let mut text = format!("  {time}  {algbw}  {busbw}  {check:>6}");
    match release {
        NcclTestsRelease::Iterations => text.push_str("    18.10    25.00    24.90     3.10"),
        NcclTestsRelease::Bitwise => text.push_str("        0"),
        _ => {}
    }
    text
}

pub(super) fn header(release: NcclTestsRelease) -> String {
    let half = match release {
        NcclTestsRelease::Old => "time   algbw   busbw  error",
        NcclTestsRelease::Wrong => "time   algbw   busbw #wrong",
        NcclTestsRelease::Iterations => "time  algbw  busbw  #wrong  i_min  i_max  i_p99  i_cv%",
        NcclTestsRelease::Bitwise => "time  algbw  busbw  #wrong  #bitdiff",
    };
    let (lead, trail) = match release {
        NcclTestsRelease::Old => ("size  count  type  redop", ""),
        NcclTestsRelease::Wrong => ("size  count  type  redop  root", ""),
        NcclTestsRelease::Iterations => ("size  count  type  redop  root", " timestamp"),
        NcclTestsRelease::Bitwise => ("size  count  type  redop  root", " #iters"),
    };
    format!("#  {lead}  {half}  {half}{trail}\n#  (B)  (elements)  (us)  (GB/s)\n")
}

pub(super) fn render_row(
    bytes: u64,
    halves: &[RenderedRowHalf; 2],
    release: NcclTestsRelease,
) -> String {
    let root = if release == NcclTestsRelease::Old { "" } else { "      -1" };
    let lead = format!("{bytes:12}  {:12}  {:>8}  {:>6}{root}", bytes / 4, "float", "sum");
    let trail = match release {
        NcclTestsRelease::Iterations => "  2026-01-02 03:04:05",
        NcclTestsRelease::Bitwise => "  20",
        _ => "",
    };
    let [out, within] = halves;
    format!("{lead}{}{}{trail}\n", render_half(out, release), render_half(within, release))
}

/// A complete run of all_reduce_perf on eight GPUs of two hosts.
pub(super) struct RenderedNcclOutput {
    pub(super) release: NcclTestsRelease,
    pub(super) rows: Vec<(u64, [RenderedRowHalf; 2])>,
}

impl RenderedNcclOutput {
    pub(super) fn new(release: NcclTestsRelease) -> Self {
        let sizes = [4096u64, 8192, 16384, 32768];
        let row =
            |bytes: u64| (bytes, [half(bytes, 20.0 + bytes as f64 / 3e3, 8), half(bytes, 21.5, 8)]);
        Self { release, rows: sizes.into_iter().map(row).collect() }
    }

    pub(super) fn preamble(&self) -> String {
        let mut text = String::new();
        if self.release != NcclTestsRelease::Old {
            text.push_str("# nccl-tests version 2.17.5 nccl-headers=22703 nccl-library=22703\n");
            text.push_str("# Collective test starting: all_reduce_perf\n");
        }
        text.push_str(
            "# nThread 1 nGpus 1 minBytes 4096 maxBytes 32768 step: 2(factor) warmup iters: 5 \
             iters: 20 agg iters: 1 validation: 1 graph: 0\n#\n# Using devices\n",
        );
        for rank in 0..8 {
            let (host, device) = (format!("gpu-{}", rank / 4), rank % 4);
            let group = if self.release == NcclTestsRelease::Old { "" } else { " Group  0" };
            text.push_str(&format!(
                "#  Rank {rank:2}{group} Pid   4{rank} on {host:>10} device {device:2} \
                 [0000:{device}b:00] Made Up GPU\n"
            ));
        }
        text + "#\n"
    }

    pub(super) fn table(&self) -> String {
        let rows = self.rows.iter().map(|(bytes, halves)| render_row(*bytes, halves, self.release));
        header(self.release) + &rows.collect::<String>()
    }

    pub(super) fn average(&self) -> f64 {
        let halves: Vec<f64> = self.rows.iter().flat_map(|r| &r.1).map(|h| h.busbw).collect();
        halves.iter().sum::<f64>() / halves.len() as f64
    }

    pub(super) fn footer(&self) -> String {
        let average = format!("{:.4}", self.average());
        format!("# Out of bounds values : 0 OK\n# Avg bus bandwidth    : {average} \n#\n")
    }

    pub(super) fn text(&self) -> String {
        self.preamble() + &self.table() + &self.footer()
    }
}
