//! Properties: printed numbers are read back, and damage never becomes a number.

use std::collections::BTreeMap;
use std::time::{Duration, Instant};

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq};
use proptest::sample::select;
use proptest::{option, proptest};

use super::super::testcases::is_listed;
use super::render::{
    DEVICES, H2D, NOTE, READ, RenderedMatrix, head, line, multinode, old_head, square,
};
use super::{matrices, matrix, read};
use crate::outputs;
use crate::outputs::ParserInput;
use crate::outputs::text::decode;

const READ_CE: &str = "device_to_device_memcpy_read_ce";

/// A square matrix of hundredths, any cell off the diagonal may be missing.
fn any_matrix() -> impl Strategy<Value = RenderedMatrix> {
    (2usize..14)
        .prop_flat_map(|n| vec(vec(option::weighted(0.9, 0u32..200_000_000), n), n))
        .prop_map(|mut rows| {
            for (i, row) in rows.iter_mut().enumerate() {
                row[i] = None;
            }
            let cell = |c: &Option<u32>| c.map(|hundredths| f64::from(hundredths) / 100.0);
            let cells = rows.iter().map(|row| row.iter().map(cell).collect()).collect();
            RenderedMatrix { name: READ_CE.to_owned(), title: READ.to_owned(), cells }
        })
}

/// A long output with matrices of several shapes.
fn sample() -> String {
    let parts =
        [("_read1", "Read1"), ("_read2", "Read2"), ("_total", "Total")].map(|(part, title)| {
            let title = format!("memcpy CE CPU(row) <-> GPU(column) {title} bandwidth (GB/s)");
            let name = format!("multinode_device_to_device_bidirectional_memcpy_read_ce{part}");
            square(&name, &title, 8).part(2)
        });
    let body = format!(
        "{}Running multinode_device_to_device_bidirectional_memcpy_read_ce.\n{}{}Waived: \n",
        square("multinode_device_to_device_memcpy_read_ce", READ, 8).test(2),
        parts.concat(),
        line("host_to_device_memcpy_ce", H2D, 4).test(2)
    );
    multinode(2, &body)
}

#[derive(Clone, Debug)]
enum OutputDamage {
    Cut(usize),
    DropLine(usize),
    DoubleLine(usize),
    Insert(usize, Vec<u8>),
}

fn any_output_damage() -> impl Strategy<Value = OutputDamage> {
    let garbage = vec![
        b"\x00".to_vec(),
        b"\xff\xfe".to_vec(),
        b"\t\t".to_vec(),
        b"NaN".to_vec(),
        b"-".to_vec(),
        b"{".to_vec(),
        b"\"".to_vec(),
        b"1e999".to_vec(),
        b"\r".to_vec(),
        b"\n".to_vec(),
        "\u{202e}".as_bytes().to_vec(),
    ];
    let at = 0usize..1_000_000;
    proptest::prop_oneof![
        at.clone().prop_map(OutputDamage::Cut),
        at.clone().prop_map(OutputDamage::DropLine),
        at.clone().prop_map(OutputDamage::DoubleLine),
        (at, select(garbage)).prop_map(|(at, bytes)| OutputDamage::Insert(at, bytes)),
    ]
}

fn apply_output_damage(mut bytes: Vec<u8>, how: &[OutputDamage]) -> Vec<u8> {
    for how in how {
        let at = |n: usize| n % (bytes.len() + 1);
        let lines = || bytes.split(|b| *b == b'\n').map(<[u8]>::to_vec).collect::<Vec<_>>();
        match how {
            OutputDamage::Cut(n) => bytes.truncate(at(*n)),
            OutputDamage::DropLine(n) => {
                let mut lines = lines();
                lines.remove(n % lines.len());
                bytes = lines.join(&b'\n');
            }
            OutputDamage::DoubleLine(n) => {
                let mut lines = lines();
                let line = n % lines.len();
                lines.insert(line, lines[line].clone());
                bytes = lines.join(&b'\n');
            }
            OutputDamage::Insert(n, garbage) => {
                let at = at(*n);
                bytes.splice(at..at, garbage.iter().copied());
            }
        }
    }
    bytes
}

proptest! {
    #[test]
    fn any_bytes_are_survived(bytes in vec(any::<u8>(), 0..2_000)) {
        let text = decode(&bytes);
        let input = ParserInput::new(&text);
        super::super::recognises(&input);
        super::super::parse(&input);
    }

    #[test]
    fn any_lines_made_of_its_words_are_survived(
        words in vec(select(vec![
            "Running", "host_to_device_memcpy_ce.", "SUM", "host_to_device_memcpy_ce", "0", "1",
            "2", "N/A", "12.50", "...", "\n", "\n", "\n", "Waived:", "NOTE: The reported results",
            "nvbandwidth Version:", "v0.8", "memcpy GPU(row) GPU(column) (GB/s)", "0->1",
            "&&&& PERF", "{\"nvbandwidth\" :", "[", "}", "Device 0: x", "Process 0 (h): device 0: x",
        ]), 0..120)
    ) {
        let text = words.join(" ");
        let input = ParserInput::new(&text);
        super::super::parse(&input);
    }

    #[test]
    fn printed_output_is_read_back(printed in any_matrix()) {
        let outputs = [
            (format!("{}{}", old_head("v0.2"), printed.test(1)), "0.2"),
            (format!("{}{}{NOTE}", head("v0.6", DEVICES), printed.test(2)), "0.6"),
            (format!("{}{}{NOTE}", head("v0.8", &format!("n1\n{DEVICES}")), printed.test(2)), "0.8"),
        ];
        for (text, version) in outputs {
            let parsed = read(&text);
            prop_assert_eq!(parsed.tool_version.as_deref(), Some(version));
            prop_assert_eq!(&matrix(&parsed, READ_CE).cells, &printed.cells);
            prop_assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
        }
    }

    #[test]
    fn damage_loses_cells_and_never_changes_one(how in vec(any_output_damage(), 1..6)) {
        let original = sample();
        let known: BTreeMap<String, Vec<Vec<Option<f64>>>> = matrices(&read(&original))
            .into_iter()
            .map(|m| (m.testcase.clone().expect("a name"), m.cells.clone()))
            .collect();
        let bytes = apply_output_damage(original.into_bytes(), &how);
        let parsed = outputs::parse_output(&bytes);
        for m in matrices(&parsed) {
            let Some(name) = &m.testcase else { continue };
            let cells = known.get(name);
            prop_assert!(cells.is_some() || !is_listed(name), "invented test {}", name);
            if cells.is_none() {
                continue;
            }
            for (i, j, value) in m.numbers() {
                let want = cells.and_then(|c| c.get(i)?.get(j).copied()).flatten();
                prop_assert_eq!(Some(value), want, "{} row {} column {}", name, i, j);
            }
        }
    }
}

#[test]
fn a_hundred_files_of_a_full_domain_are_read_in_time() {
    let names = ["multinode_device_to_device_memcpy_read_ce", "device_to_device_memcpy_write_sm"];
    let body: String = names.iter().map(|name| square(name, READ, 72).test(2)).collect();
    let text = multinode(18, &body);
    let start = Instant::now();
    for _ in 0..100 {
        assert_eq!(matrices(&outputs::parse_output(text.as_bytes())).len(), 2);
    }
    // Far above the time needed even without optimisation; it guards against quadratic parsing, not
    // against a slow machine.
    assert!(start.elapsed() < Duration::from_secs(60), "{:?}", start.elapsed());
}
