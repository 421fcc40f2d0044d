//! Outputs of unsupported tools, and the tools they are mistaken for.
//!
//! Their tables have the shapes of supported tools and other meanings: the problem names such a
//! file's tool, and the file yields no numbers.

use super::{CERTAIN, ParserConfidence, ParserInput};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};

struct UnsupportedTool {
    name: &'static str,
    /// Text that it alone prints, at the beginning of a line.
    begins: &'static [&'static str],
    /// Text that it alone prints anywhere.
    holds: &'static [&'static str],
    /// The tools whose parsers accept its tables.
    like: &'static [Tool],
}

const UNSUPPORTED_TOOLS: &[UnsupportedTool] = &[
    UnsupportedTool {
        name: "rocm-bandwidth-test (AMD)",
        begins: &["D/D ", "RocmBandwidthTest Version"],
        holds: &["rocm-bandwidth-test", "rocm_bandwidth_test"],
        like: &[Tool::P2pBandwidthLatencyTest],
    },
    UnsupportedTool {
        name: "TransferBench (AMD)",
        begins: &["TransferBench v", "TransferBench V"],
        holds: &[],
        like: &[Tool::NvidiaSmiTopo, Tool::P2pBandwidthLatencyTest],
    },
    UnsupportedTool {
        name: "rccl-tests (AMD)",
        begins: &["RCCL version", "# rccl-tests", "rccl-tests"],
        holds: &["rccl-tests:", "rccl-tests version", "librccl.so", "AMD Instinct"],
        like: &[Tool::NcclTests],
    },
    UnsupportedTool {
        name: "amd-smi or rocm-smi (AMD)",
        begins: &[],
        holds: &["ROCm System Management Interface", "AMD System Management Interface", "XGMI"],
        like: &[Tool::NvidiaSmiTopo, Tool::NvidiaSmiQ],
    },
    UnsupportedTool {
        name: "bandwidthTest (cuda-samples)",
        begins: &["[CUDA Bandwidth Test]"],
        holds: &[],
        like: &[],
    },
    UnsupportedTool {
        name: "iperf 2",
        begins: &[
            "Client connecting to ",
            "Server listening on TCP port",
            "Server listening on UDP port",
        ],
        holds: &[],
        like: &[Tool::Iperf3],
    },
    UnsupportedTool { name: "netperf", begins: &["MIGRATED TCP"], holds: &[], like: &[] },
    UnsupportedTool { name: "OSU micro-benchmarks", begins: &["# OSU "], holds: &[], like: &[] },
    UnsupportedTool {
        name: "Intel MPI benchmarks",
        begins: &["#    Intel(R) MPI Benchmarks", "# Intel(R) MPI Benchmarks"],
        holds: &[],
        like: &[],
    },
    UnsupportedTool {
        name: "oneCCL benchmark (Intel)",
        begins: &[],
        holds: &["oneCCL"],
        like: &[Tool::NcclTests],
    },
    UnsupportedTool { name: "gpu-burn", begins: &[], holds: &["Gflop/s)   errors: "], like: &[] },
];

/// The result for a file of an unsupported tool. `sure` is the confidence of the supported parsers.
pub(super) fn parse_unsupported(
    input: &ParserInput<'_>,
    sure: &[(ParserConfidence, Tool)],
) -> Option<ParseOutput> {
    // Nearly all files contain none of these texts, and searching for all of them in one pass is
    // cheap.
    let named = UNSUPPORTED_TOOLS
        .iter()
        .filter(|foreign| foreign.markers().any(|w| input.text.contains(w)));
    let wrote = |foreign: &&UnsupportedTool| {
        input.lines.iter().any(|line| foreign.is_printed_by(line.trimmed()))
    };
    let known = { named }.find(wrote)?;
    // The file also contains an output of another tool, which is read.
    let is_supported =
        |(sure, tool): &(ParserConfidence, Tool)| *sure == CERTAIN && !known.like.contains(tool);
    if sure.iter().any(is_supported) {
        return None;
    }
    let detail = format!("an output of {}, which is not supported", known.name);
    let problem = OutputProblem::new(OutputProblemKind::Unrecognised, detail);
    Some(ParseOutput { problems: vec![problem], ..ParseOutput::default() })
}

impl UnsupportedTool {
    fn markers(&self) -> impl Iterator<Item = &'static str> {
        self.begins.iter().chain(self.holds).copied()
    }

    fn is_printed_by(&self, line: &str) -> bool {
        self.begins.iter().any(|begin| line.starts_with(begin))
            || self.holds.iter().any(|word| line.contains(word))
    }
}

#[cfg(test)]
mod tests {
    use crate::outputs::parse_output;
    use model::parse_output::OutputProblemKind;

    const ROCM: &str = "....\n          RocmBandwidthTest Version: 2.6.0\n\n\
        \x20         Unidirectional copy peak bandwidth GB/s\n\n\
        \x20         D/D       0           1\n\n          0         N/A         58.212\n\n\
        \x20         1         58.301      N/A\n\n";

    const ROWS: &str = "#       size         count      type   redop    root     time   algbw   busbw \
        #wrong     time   algbw   busbw #wrong\n     4194304       1048576     float     sum      -1   \
        100.00   41.94   41.94      0   100.00   41.94   41.94      0\n\
        # Out of bounds values : 0 OK\n# Avg bus bandwidth    : 41.94 \n#\n";

    #[test]
    fn unsupported_tools_are_named_and_give_no_numbers() {
        let corner = ROCM.lines().skip(4).collect::<Vec<_>>().join("\n");
        let rccl =
            format!("# Collective test starting: all_reduce_perf\nRCCL version : 2.20.5\n{ROWS}");
        let instinct = format!(
            "#  Rank  0 Group  0 Pid   7 on  n1 device  0 [0000:0c:00] AMD Instinct MI300X\n{ROWS}"
        );
        let iperf = "Client connecting to n2, TCP port 5001\n\
            [ ID] Interval       Transfer     Bandwidth\n[  3]  0.0-10.0 sec  10.9 GBytes  9.36 Gbits/sec\n";
        let bench = "TransferBench v1.50 (with NIC support)\nExecutor: GPU 00 | 48.1 GB/s\n";
        for (text, name) in [
            (ROCM, "rocm-bandwidth-test"),
            (&corner, "rocm-bandwidth-test"),
            (&rccl, "rccl-tests"),
            (&instinct, "rccl-tests"),
            (iperf, "iperf 2"),
            (bench, "TransferBench"),
        ] {
            let parsed = parse_output(text.as_bytes());
            assert_eq!(parsed.tool, None, "{text}");
            assert!(parsed.measurements.is_empty() && !parsed.complete, "{text}");
            let [problem] = &parsed.problems[..] else { panic!("{:?}", parsed.problems) };
            assert_eq!(problem.kind, OutputProblemKind::Unrecognised);
            assert!(problem.detail.contains(name), "{}", problem.detail);
        }
    }

    #[test]
    fn supported_tools_next_to_them_are_read() {
        let parsed = parse_output(format!("gpu: x Gflop/s)   errors: 0\n{ROWS}").as_bytes());
        assert_eq!((parsed.tool.is_some(), parsed.measurements.len()), (true, 1));
    }
}
