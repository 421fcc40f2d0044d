//! The cells between ends that were measured together, stored sparsely.
//!
//! A domain of 72 GPUs has nearly all of its pairs, a network of ten thousand nodes a few partners
//! each, and a dense matrix of ten thousand ends does not fit in memory. So only measured pairs
//! take memory and time. This module only stores.

use super::fabric_group::PairReading;
use model::stats;

/// The readings of one ordered pair, relative to the level of their group.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct PairCell {
    pub(super) src: usize,
    pub(super) dst: usize,
    pub(super) ratio: f64,
    pub(super) readings: usize,
    /// The group of the first reading.
    pub(super) group: usize,
    /// Index of the first reading.
    first: usize,
}

/// The cells of one island or rail.
#[derive(Clone, Debug)]
pub(super) struct PairMatrix {
    /// Ordered by source and destination.
    cells: Vec<PairCell>,
    /// Index of the first cell of each source, plus the end of the last.
    rows: Vec<usize>,
    /// Cell indices ordered by destination and source.
    transposed: Vec<usize>,
    /// Index of the first entry of each destination in `transposed`.
    columns: Vec<usize>,
    ratios: Vec<f64>,
}

impl PairMatrix {
    /// The cells of `n` ends. The readings are ordered by source and destination.
    pub(super) fn new(n: usize, readings: &[PairReading], levels: &[f64]) -> Self {
        debug_assert!(readings.is_sorted_by_key(|r| (r.src, r.dst)), "readings are in order");
        let ratios: Vec<f64> = readings.iter().map(|r| r.value / levels[r.group]).collect();
        let mut cells = Vec::new();
        let mut first = 0;
        for same in readings.chunk_by(|a, b| (a.src, a.dst) == (b.src, b.dst)) {
            let own = &ratios[first..first + same.len()];
            let ratio = match own {
                [one] => *one,
                many => stats::median(&mut many.to_vec()).unwrap_or(f64::NAN),
            };
            let (src, dst) = (same[0].src, same[0].dst);
            let group = same[0].group;
            cells.push(PairCell { src, dst, ratio, readings: same.len(), group, first });
            first += same.len();
        }
        let rows = row_offsets(n, cells.iter().map(|c| c.src));
        let columns = row_offsets(n, cells.iter().map(|c| c.dst));
        let mut next = columns.clone();
        let mut transposed = vec![0; cells.len()];
        for (at, cell) in cells.iter().enumerate() {
            transposed[next[cell.dst]] = at;
            next[cell.dst] += 1;
        }
        Self { cells, rows, transposed, columns, ratios }
    }

    pub(super) fn end_count(&self) -> usize {
        self.rows.len() - 1
    }

    /// All cells, ordered by source and destination.
    pub(super) fn cells(&self) -> &[PairCell] {
        &self.cells
    }

    pub(super) fn reading_count(&self) -> usize {
        self.ratios.len()
    }

    /// The cells that an end sent.
    pub(super) fn row(&self, src: usize) -> &[PairCell] {
        &self.cells[self.rows[src]..self.rows[src + 1]]
    }

    /// The cells that an end received.
    pub(super) fn column(&self, dst: usize) -> impl Iterator<Item = &PairCell> {
        let own = &self.transposed[self.columns[dst]..self.columns[dst + 1]];
        own.iter().map(|at| &self.cells[*at])
    }

    /// The cell of an ordered pair, if it was read.
    pub(super) fn cell(&self, src: usize, dst: usize) -> Option<&PairCell> {
        let sent = self.row(src);
        sent.binary_search_by_key(&dst, |cell| cell.dst).ok().map(|at| &sent[at])
    }

    pub(super) fn readings_of(&self, cell: &PairCell) -> &[f64] {
        &self.ratios[cell.first..cell.first + cell.readings]
    }
}

/// The start offset of each of `n` keys in a sequence sorted by key.
fn row_offsets(n: usize, keys: impl Iterator<Item = usize>) -> Vec<usize> {
    let mut starts = vec![0; n + 1];
    keys.for_each(|key| starts[key + 1] += 1);
    for at in 1..starts.len() {
        starts[at] += starts[at - 1];
    }
    starts
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn cells_are_found_from_both_ends_and_only_those_that_were_read() {
        let read = [(0, 2, 8.0), (0, 2, 10.0), (0, 2, 9.0), (1, 0, 5.0), (1, 2, 4.0), (2, 0, 10.0)];
        let readings = read.map(|(src, dst, value)| PairReading { src, dst, group: 0, value });
        let cells = PairMatrix::new(4, &readings, &[10.0]);
        let pairs = |cells: &mut dyn Iterator<Item = &PairCell>| -> Vec<(usize, usize)> {
            cells.map(|c| (c.src, c.dst)).collect()
        };
        assert_eq!(pairs(&mut cells.row(1).iter()), [(1, 0), (1, 2)]);
        assert_eq!(pairs(&mut cells.column(2)), [(0, 2), (1, 2)]);
        assert_eq!((cells.row(3).len(), cells.column(1).count()), (0, 0));
        let cell = cells.cell(0, 2).expect("it was read");
        assert!((cell.ratio - 0.9).abs() < 1e-12 && cell.readings == 3);
        assert_eq!(cells.readings_of(cell), [0.8, 1.0, 0.9]);
        assert_eq!(cells.cell(2, 1), None);
        // A large matrix only takes the memory of its readings.
        let cells = PairMatrix::new(100_000, &readings, &[10.0]);
        assert_eq!((cells.cells().len(), cells.reading_count()), (4, 6));
    }
}
