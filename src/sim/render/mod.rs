//! Renders results in each tool's output format.
//!
//! One file per tool. The fixed text and columns are the tools' interface; the renderers do not
//! compute numbers.

pub mod imex;
pub mod iperf;
pub mod nccl;
pub mod nccl_debug;
pub mod nccl_json;
pub mod nvbandwidth;
pub mod nvbandwidth_json;
pub mod nvloom;
pub mod p2p;
pub mod perftest;
pub mod smi;
pub mod smi_csv;

use super::fabric::{SimFabric, SimNode};
use super::invocation::ToolInvocation;
use super::noise::NoiseKey;

/// Output of a tool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SimToolOutput {
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
    /// Exit code.
    pub code: u8,
    /// A file that the tool writes in addition: its path and contents.
    pub file: Option<(String, String)>,
}

impl SimToolOutput {
    /// A successful output.
    pub fn success(stdout: String) -> Self {
        Self { stdout, ..Self::default() }
    }

    /// An output with this exit code.
    pub fn with_exit_code(stdout: String, stderr: String, code: u8) -> Self {
        Self { stdout, stderr, code, file: None }
    }

    /// Both streams, as with `2>&1`.
    pub fn combined(&self) -> String {
        format!("{}{}", self.stdout, self.stderr)
    }
}

/// printf's `%.*g`: the shorter of fixed and exponent notation, without trailing zeros.
pub fn format_general(value: f64, digits: usize) -> String {
    if value == 0.0 {
        return "0".to_owned();
    }
    let scientific = format!("{value:.*e}", digits.saturating_sub(1));
    let (mantissa, exponent) = scientific.split_once('e').unwrap_or((&scientific, "0"));
    let exponent: i32 = exponent.parse().unwrap_or(0);
    let trim = |text: &str| match text.contains('.') {
        true => text.trim_end_matches('0').trim_end_matches('.').to_owned(),
        false => text.to_owned(),
    };
    let whole = i32::try_from(digits).unwrap_or(i32::MAX);
    if exponent < -4 || whole <= exponent {
        let sign = if exponent < 0 { '-' } else { '+' };
        return format!("{}e{sign}{:02}", trim(mantissa), exponent.abs());
    }
    let decimals = usize::try_from(whole - 1 - exponent).unwrap_or(0);
    trim(&format!("{value:.decimals$}"))
}

/// A GPU's UUID, derived from its node and slot, and equal in every output.
pub fn gpu_uuid(fabric: &SimFabric, gpu: usize) -> String {
    let key = NoiseKey::from_seed(0x6770_7520).with_name(&fabric.node_of(gpu).name);
    let key = key.with_part(u64::from(fabric.gpus[gpu].slot));
    let key = if fabric.gpus[gpu].swapped { key.with_name("swapped") } else { key };
    format!("GPU-{}", format_uuid(key))
}

/// The key of the ClusterUUID that a node's driver reports.
pub fn cluster_key(bench: &ToolInvocation<'_>, node: &SimNode) -> NoiseKey {
    NoiseKey::from_seed(bench.seed).with_name("cluster").with_part(node.clique as u64)
}

/// The first sixteen bytes of a key, formatted as a UUID.
pub fn format_uuid(key: NoiseKey) -> String {
    let (high, low) = (key.value(), key.with_part(1).value());
    format!(
        "{:08x}-{:04x}-{:04x}-{:04x}-{:012x}",
        high >> 32,
        (high >> 16) & 0xffff,
        high & 0xffff,
        low >> 48,
        low & 0xffff_ffff_ffff
    )
}

/// A count as a JSON number without decimals.
pub fn json_count(value: f64) -> serde_json::Value {
    let digits = format!("{value:.0}");
    digits.parse::<u64>().map_or(serde_json::Value::Null, serde_json::Value::from)
}

/// The address of a node, derived from its index.
pub fn node_address(number: usize) -> String {
    format!("10.40.{}.{}", number / 200, number % 200 + 11)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_printf_does() {
        let cases = [
            (395.081_234, 6, "395.081"),
            (1_234_567.0, 6, "1.23457e+06"),
            (0.000_012_34, 3, "1.23e-05"),
            (12.396_361_291_25, 17, "12.396361291250001"),
            (745.53, 6, "745.53"),
            (100.0, 6, "100"),
            (999_999.9, 6, "1e+06"),
        ];
        for (value, digits, text) in cases {
            assert_eq!(format_general(value, digits), text);
        }
    }
}
