//! Renders outputs as nvbandwidth lays them out, version by version.

use std::fmt::Write;

#[derive(Clone, Debug)]
pub(super) struct RenderedMatrix {
    pub(super) name: String,
    pub(super) title: String,
    pub(super) cells: Vec<Vec<Option<f64>>>,
}

/// Numbers that depend on their position and have two decimals.
pub(super) fn number(row: usize, column: usize) -> f64 {
    let hundredths = 39_000 + (row * 7_919 + column * 104_729) % 2_000;
    f64::from(u32::try_from(hundredths).expect("a small number")) / 100.0
}

/// A matrix between `n` GPUs, the diagonal not measured.
pub(super) fn square(name: &str, title: &str, n: usize) -> RenderedMatrix {
    let cell = |i, j| (i != j).then(|| number(i, j));
    let cells = (0..n).map(|i| (0..n).map(|j| cell(i, j)).collect()).collect();
    RenderedMatrix { name: name.to_owned(), title: title.to_owned(), cells }
}

/// A matrix of one row.
pub(super) fn line(name: &str, title: &str, n: usize) -> RenderedMatrix {
    let cells = vec![(0..n).map(|j| Some(number(n, j))).collect()];
    RenderedMatrix { name: name.to_owned(), title: title.to_owned(), cells }
}

pub(super) const READ: &str = "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)";
pub(super) const H2D: &str = "memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)";

impl RenderedMatrix {
    pub(super) fn sum(&self) -> f64 {
        self.cells.iter().flatten().flatten().sum()
    }

    /// Title, labels and rows. v0.1 to v0.4 have a label width of 1; empty
    /// cells are `0.00` in v0.1.
    pub(super) fn table(&self, width: usize, empty: &str) -> String {
        let mut out = format!("{}\n{:width$}", self.title, "");
        for column in 0..self.cells[0].len() {
            write!(out, "{column:>10}").expect("a string grows");
        }
        out.push('\n');
        for (i, row) in self.cells.iter().enumerate() {
            write!(out, "{i:>width$}").expect("a string grows");
            for cell in row {
                match cell {
                    Some(value) => write!(out, "{value:>10.2}"),
                    None => write!(out, "{empty:>10}"),
                }
                .expect("a string grows");
            }
            out.push('\n');
        }
        out
    }

    /// The complete test with its announcement and sum.
    pub(super) fn test(&self, width: usize) -> String {
        format!("Running {}.\n{}", self.name, self.part(width))
    }

    pub(super) fn part(&self, width: usize) -> String {
        format!("{}\nSUM {} {:.2}\n\n", self.table(width, "N/A"), self.name, self.sum())
    }
}

/// The head of a version before 0.6.
pub(super) fn old_head(version: &str) -> String {
    format!(
        "nvbandwidth Version: {version}\nBuilt from Git version: 1a2b3c4\n\n\
         NOTE: This tool reports current measured bandwidth on your system.\n\
         Additional system-specific tuning may be required to achieve maximal peak bandwidth.\n\n\
         CUDA Runtime Version: 12010\nCUDA Driver Version: 12020\nDriver Version: 535.54.03\n\n\
         Device 0: NVIDIA H100 80GB HBM3\nDevice 1: NVIDIA H100 80GB HBM3\n\n"
    )
}

/// The head since v0.6, with this list of devices.
pub(super) fn head(version: &str, devices: &str) -> String {
    format!(
        "nvbandwidth Version: {version}\nBuilt from Git version: {version}\n\n\
         CUDA Runtime Version: 12080\nCUDA Driver Version: 12080\nDriver Version: 570.86.10\n\n\
         {devices}\n"
    )
}

pub(super) const DEVICES: &str =
    "Device 0: NVIDIA B200 (00000000:1b:00)\nDevice 1: NVIDIA B200 (00000000:43:00)\n";

/// The note that ends a run since v0.6.
pub(super) const NOTE: &str = "NOTE: The reported results may not reflect the full capabilities \
     of the platform.\nPerformance can vary with software drivers, hardware clocks, and system \
     topology.\n\n";

/// A multi-node run of v0.8 with `nodes` x 4 ranks.
pub(super) fn multinode(nodes: usize, body: &str) -> String {
    let last = nodes * 4 - 1;
    let width = last.to_string().len();
    let mut list = String::new();
    for rank in 0..=last {
        writeln!(
            list,
            "Process {rank:>width$} (tray{:02}): device {}: NVIDIA GB200 (0000000{}:01:00)",
            rank / 4,
            rank % 4,
            rank % 4
        )
        .expect("a string grows");
    }
    let head = head("v0.8", &list).replace("\n\nCUDA", "\n\nMPI version: Open MPI v4.1.7\nCUDA");
    format!("{head}{body}{NOTE}")
}
