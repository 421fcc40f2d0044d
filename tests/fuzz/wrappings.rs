//! Text that launchers, collectors and users put around an output does not change its parsed
//! values.

use std::fs;
use std::path::{Path, PathBuf};

use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput};
use readers::outputs;

use super::corpus::corpus;

/// Prefix of the line with this number, from 0.
type Front = fn(usize) -> String;

/// A prefix outside the list.
const ANYTHING: &str = "anything";

const FRONTS: &[(&str, Front)] = &[
    ("a host in brackets", |_| "[n7] ".to_owned()),
    ("a comment of a shell", |_| "# ".to_owned()),
    ("a comment of C", |_| "// ".to_owned()),
    ("a comment of SQL", |_| "-- ".to_owned()),
    ("a comment of TeX", |_| "% ".to_owned()),
    ("a comment of Lisp", |_| "; ".to_owned()),
    ("a bar", |_| "| ".to_owned()),
    ("a drawn bar", |_| "\u{2502} ".to_owned()),
    ("an asterisk", |_| "* ".to_owned()),
    ("a quotation", |_| "> ".to_owned()),
    ("a quotation of a quotation", |_| "> > ".to_owned()),
    ("pdsh", |_| "n7: ".to_owned()),
    ("pdsh with a domain", |_| "rack2-n5.example.org: ".to_owned()),
    ("parallel --tag", |_| "n7\t".to_owned()),
    ("fabric", |_| "[n7] out: ".to_owned()),
    ("srun -l", |_| " 0: ".to_owned()),
    ("Open MPI", |_| "[1,0]<stdout>:".to_owned()),
    ("PRRTE", |_| "[prterun-n7-12@1,0]<stdout>: ".to_owned()),
    ("Intel MPI", |_| "[0] ".to_owned()),
    ("torchrun", |_| "[default0]:".to_owned()),
    ("torch", |_| "[rank0]: ".to_owned()),
    ("kubectl --prefix", |_| "[pod/burn-0/main] ".to_owned()),
    ("kubectl --prefix --timestamps", |at| {
        format!("[pod/burn-0/main] 2026-02-03T04:{:02}:{:02}.5Z ", at / 60 % 60, at % 60)
    }),
    ("kubectl --timestamps", |at| format!("2026-02-03T04:05:{:02}.000000009Z ", at % 60)),
    ("containerd", |at| format!("2026-02-03T04:05:{:02}.1+01:00 stdout F ", at % 60)),
    ("docker compose", |_| "burn-1  | ".to_owned()),
    ("docker service", |_| "burn.1.x9k2@n7    | ".to_owned()),
    ("ray", |_| "(worker pid=123, ip=10.0.0.1) ".to_owned()),
    ("ray without an address", |_| "(train_fn pid=77) ".to_owned()),
    ("syslog", |at| format!("Feb  3 04:05:{:02} rack4-n2 burnin[77]: ", at % 60)),
    ("journal", |at| format!("2026-02-03T04:05:{:02}+0100 n2 burnin[77]: ", at % 60)),
    ("ts", |at| format!("Feb 13 04:05:{:02} ", at % 60)),
    ("ts with a short format", |at| format!("04:05:{:02} ", at % 60)),
    ("date", |at| format!("Fri Feb 13 04:05:{:02} 2026 ", at % 60)),
    ("a logger", |at| format!("[2026-02-03 04:05:{:02},250] ", at % 60)),
    ("a logger with a level", |at| format!("2026-02-03 04:05:{:02},250 - INFO - ", at % 60)),
    ("a level", |_| "INFO ".to_owned()),
    ("a level in brackets", |_| "[INFO] ".to_owned()),
    ("logging of Python", |_| "INFO:root:".to_owned()),
    ("klog", |at| format!("I0203 04:05:{:02}.000006      77 main.go:12] ", at % 60)),
    ("dmesg", |at| format!("[{:5}.000250] ", at + 7)),
    ("cat -n", |at| format!("{:6}\t", at + 1)),
    ("grep -n", |at| format!("{}:", at + 1)),
    ("a name of a stream", |_| "stdout: ".to_owned()),
    (ANYTHING, |_| "job 77 on n7 -> stdout) ".to_owned()),
    ("srun of mpirun", |_| "3: [1,0]<stdout>:".to_owned()),
    ("a quotation of a log", |at| format!("> 2026-02-03T04:05:{:02}Z n7: ", at % 60)),
];

/// Text around a whole output.
type Around = fn(&str) -> String;

const AROUND: &[(&str, Around)] = &[
    ("ansible", |text| format!("n7 | CHANGED | rc=0 >>\n{text}")),
    ("a task of ansible", |text| {
        let lines: Vec<String> =
            text.lines().map(|l| format!("        {}", serde_json::json!(l))).collect();
        format!(
            "ok: [n7] => {{\n    \"changed\": true,\n    \"stdout_lines\": [\n{}\n    ]\n}}\n",
            lines.join(",\n")
        )
    }),
    ("json-file", |text| {
        text.lines()
            .map(|l| {
                let record = serde_json::json!(format!("{l}\n"));
                format!(
                    "{{\"log\":{record},\"stream\":\"stdout\",\"time\":\"2026-02-03T04:05:06Z\"}}\n"
                )
            })
            .collect()
    }),
    ("dshbak", |text| format!("----------------\nn7\n----------------\n{text}")),
    ("parallel-ssh", |text| format!("[1] 04:05:06 [SUCCESS] n7\n{text}")),
    ("a block of Markdown", |text| {
        format!("```\n{text}{}```\n", if text.ends_with('\n') { "" } else { "\n" })
    }),
];

/// Rendered outputs of each tool.
const SAMPLES: usize = 4;

/// All samples of all tools: rendered, recorded, and from other machines if a folder of them lies
/// next to the repository.
fn samples() -> Vec<(String, String)> {
    let corpus = corpus();
    let all = [
        ("nvbandwidth", &corpus.nvbandwidth),
        ("nccl", &corpus.nccl),
        ("p2p", &corpus.p2p),
        ("perftest", &corpus.perftest),
        ("nvlink", &corpus.nvlink),
        ("topo", &corpus.topo),
        ("query", &corpus.query),
        ("imex", &corpus.imex),
        ("dcgm", &corpus.dcgm),
        ("nvloom", &corpus.nvloom),
        ("iperf3", &corpus.iperf3),
        ("tcp", &corpus.tcp),
        ("copy", &corpus.copy),
        ("collective", &corpus.collective),
    ];
    let rendered = all.into_iter().flat_map(|(tool, outputs)| {
        let texts = outputs.iter().map(|bytes| String::from_utf8_lossy(bytes).into_owned());
        // More samples of a kind add nothing.
        texts.take(SAMPLES).enumerate().map(move |(at, text)| (format!("{tool} {at}"), text))
    });
    let root = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files = Vec::new();
    for folder in
        ["tests/recorded/rack-lost-link/domains", "tests/recorded/rack-lost-link/nodes/node0011"]
    {
        walk(&root.join(folder), &mut files);
    }
    let elsewhere = root.join("../shared/samples");
    for folder in ["dcgm", "ib", "imex", "nccl-tests", "nvbandwidth", "nvidia-smi", "p2p"] {
        walk(&elsewhere.join(folder), &mut files);
    }
    let recorded = files.into_iter().filter_map(|path| {
        let text = String::from_utf8(fs::read(&path).ok()?).ok()?;
        Some((path.display().to_string(), text))
    });
    // A single line does not reveal its prefix.
    rendered.chain(recorded).filter(|(_, text)| 1 < text.lines().count()).collect()
}

fn walk(folder: &Path, files: &mut Vec<PathBuf>) {
    let Ok(entries) = fs::read_dir(folder) else { return };
    for entry in entries.flatten() {
        let path = entry.path();
        if path.is_dir() { walk(&path, files) } else { files.push(path) }
    }
    files.sort();
}

/// Parts that must be the same: all except the node's name and the line numbers.
fn same(parsed: &ParseOutput) -> ParseOutput {
    let mut parsed = parsed.clone();
    parsed.facts.hosts.clear();
    let plain =
        |p: &OutputProblem| OutputProblem { line: None, rank: None, host: None, ..p.clone() };
    parsed.problems = parsed.problems.iter().map(plain).collect();
    parsed
}

/// A readable difference.
fn difference(was: &ParseOutput, is: &ParseOutput) -> Option<String> {
    let (was, is) = (same(was), same(is));
    if was == is {
        return None;
    }
    let of = |p: &ParseOutput| {
        let tool = p.tool.map_or("no tool", |tool| tool.as_str());
        let problems: Vec<String> = p
            .problems
            .iter()
            .take(4)
            .map(|p| format!("{}: {}", p.kind.as_str(), p.detail))
            .collect();
        format!(
            "{tool}, {} measurements, complete {}, {problems:?}",
            p.measurements.len(),
            p.complete
        )
    };
    let facts = if was.facts == is.facts { "" } else { "; facts differ" };
    Some(format!("was {}; is {}{facts}", of(&was), of(&is)))
}

#[test]
fn text_around_an_output_changes_nothing_of_it() {
    let (mut wrong, mut held) = (Vec::new(), 0);
    for (name, text) in samples() {
        let was = outputs::parse_output(text.as_bytes());
        let mut hold = |how: &str, wrapped: String| {
            held += 1;
            if let Some(why) = difference(&was, &outputs::parse_output(wrapped.as_bytes())) {
                wrong.push(format!("{how}: {name}: {why}"));
            }
        };
        let end = if text.ends_with('\n') { "\n" } else { "" };
        for (how, front) in FRONTS {
            // A few lines can share a prefix by chance.
            if [ANYTHING, "grep -n"].contains(how) && text.lines().count() < 4 {
                continue;
            }
            let lines: Vec<String> =
                text.lines().enumerate().map(|(at, line)| format!("{}{line}", front(at))).collect();
            hold(how, lines.join("\n") + end);
        }
        for (how, around) in AROUND {
            hold(how, around(&text));
        }
    }
    assert!(30 * 40 < held, "only {held} were held against each other");
    wrong.sort();
    assert!(wrong.is_empty(), "{} of {held}:\n{}", wrong.len(), wrong.join("\n"));
}

#[test]
fn nothing_is_removed_from_an_unwrapped_output() {
    let corpus = corpus();
    for bytes in corpus.of_tools().flatten() {
        let text = outputs::text::decode(bytes);
        let lines = outputs::text::split_lines(&text);
        let is: Vec<&str> = lines.iter().map(|line| line.text).collect();
        let was: Vec<&str> = text.lines().map(str::trim_end).collect();
        let launched = was.iter().any(|line| line.contains("<stdout>:") || line.starts_with("0: "));
        assert!(launched || is == was, "{text}");
    }
}

#[test]
fn no_document_that_lacks_something_is_complete() {
    for (name, text) in samples() {
        let lines: Vec<&str> = text.lines().collect();
        let cuts = lines.len().min(16);
        for kept in 0..cuts {
            let cut = lines[..kept * lines.len() / cuts].join("\n");
            let parsed = outputs::parse_output(cut.as_bytes());
            let is_cut = parsed.has_problem(OutputProblemKind::Truncated);
            assert!(!(is_cut && parsed.complete), "{name}, {kept}: {:?}", parsed.problems);
        }
    }
}
