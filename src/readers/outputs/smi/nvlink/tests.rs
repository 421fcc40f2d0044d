//! Generated outputs in the tool's grammar, and properties of the parser.

use std::fmt::Write;

use proptest::prelude::*;

use super::*;
use crate::outputs;
use crate::outputs::fixture;
use crate::outputs::fixture::problem_kinds;

fn read(text: &str) -> ParseOutput {
    let parsed = outputs::parse_output(text.as_bytes());
    assert_eq!(parsed.tool, Some(Tool::NvidiaSmiNvlink));
    parsed
}

fn uuid(gpu: u32) -> String {
    format!("GPU-0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1{gpu:02x}")
}

/// `rates[gpu][link]`, `None` for a link that is down.
fn render(name: &str, rates: &[Vec<Option<f64>>]) -> String {
    let mut out = String::new();
    for (gpu, links) in (0u32..).zip(rates) {
        writeln!(out, "GPU {gpu}: {name} (UUID: {})", uuid(gpu)).unwrap();
        for (link, rate) in links.iter().enumerate() {
            match rate {
                Some(rate) => writeln!(out, "\t Link {link}: {rate} GB/s").unwrap(),
                None => writeln!(out, "\t Link {link}: <inactive>").unwrap(),
            }
        }
    }
    out
}

#[test]
fn eighteen_links_with_one_inactive_are_read_with_their_rate() {
    let mut rates = vec![vec![Some(26.562); 18]; 8];
    rates[5][11] = None;
    let parsed = read(&render("NVIDIA H100 80GB HBM3", &rates));
    assert!(parsed.complete && parsed.problems.is_empty());
    let gpu = &parsed.facts.nvlinks[5];
    assert_eq!((gpu.gpu, gpu.uuid.clone(), gpu.links.len()), (5, Some(uuid(5)), 18));
    assert_eq!((gpu.links[11].active, gpu.links[11].rate), (Some(false), None));
    assert_eq!((gpu.links[10].active, gpu.links[10].rate), (Some(true), Some(26.562)));
    assert_eq!(parsed.facts.devices[5].name.as_deref(), Some("NVIDIA H100 80GB HBM3"));
}

#[test]
fn the_rate_of_later_generations_is_kept_as_printed() {
    let parsed = read(&render("NVIDIA B200", &vec![vec![Some(53.125); 18]; 8]));
    assert!(parsed.complete);
    assert!(parsed.facts.nvlinks.iter().flat_map(|g| &g.links).all(|l| l.rate == Some(53.125)));
}

#[test]
fn all_links_inactive_is_an_error_of_that_gpu_in_any_spelling() {
    for sentence in [
        "NVML: Unable to retrieve NVLink information as all links are inactive",
        "NVML: Unable to retrieve Nvlink information as all links are inActive",
    ] {
        let healthy = render("NVIDIA B200", &[vec![Some(53.125); 18]]);
        let heading = format!("GPU 1: NVIDIA B200 (UUID: {})", uuid(1));
        for text in [
            format!("{healthy}{heading}\n{sentence}\n"),
            format!("{healthy}{heading} {sentence}\n"),
        ] {
            let parsed = read(&text);
            assert!(parsed.complete, "{text}");
            assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Error]);
            assert_eq!(parsed.problems[0].gpu, Some(1));
            assert!(parsed.facts.nvlinks[1].all_inactive && !parsed.facts.nvlinks[0].all_inactive);
        }
        let alone = read(sentence);
        assert_eq!(
            (problem_kinds(&alone), alone.problems[0].gpu),
            (vec![OutputProblemKind::Error], None)
        );
    }
}

#[test]
fn a_gpu_without_nvlink_is_waived() {
    let text =
        format!("GPU 0: NVIDIA L4 (UUID: {})\nDevice does not have or support Nvlink\n", uuid(0));
    let parsed = read(&text);
    assert!(parsed.complete);
    assert_eq!(
        (problem_kinds(&parsed), parsed.problems[0].gpu),
        (vec![OutputProblemKind::Waived], Some(0))
    );
}

#[test]
fn old_and_new_counters_are_kept_by_name_and_unsupported_ones_have_no_value() {
    let text = format!(
        "GPU 0: NVIDIA H100 PCIe (UUID: {})\n\
         \t Link 0: Replay Errors: 7\n\t Link 0: Recovery Errors: N/A\n\t Link 0: CRC Errors: 65535\n\n\
         \t Link 1: Replay Errors: 0\n\t Link 1: Recovery Errors: Not supported\n\t Link 1: CRC Errors: 0\n\n\
         GPU 1: NVIDIA B300 SXM6 AC (UUID: {})\n\
         \t Link 0: Tx packets: 123456789\n\
         \t Link 0: Malformed packet Errors: 0\n\t Link 0: Link recovery failed events: 2\n\
         \t Link 0: Tx discards: 3\n\t Link 0: Effective BER: 15e-255\n\
         \t Link 0: FEC Errors - 0: 36140749276\n\t Link 0: FEC Errors - 1: 12\n",
        uuid(0),
        uuid(1),
    );
    let parsed = read(&text);
    assert!(parsed.complete && parsed.problems.is_empty(), "{:?}", parsed.problems);
    let errors = &parsed.facts.nvlinks[0].links[0].errors;
    assert_eq!(errors["Replay Errors"], Some(7));
    assert_eq!(errors["Recovery Errors"], None);
    assert_eq!(errors["CRC Errors"], Some(65535));
    assert_eq!(parsed.facts.nvlinks[0].links[0].active, None);
    let errors = &parsed.facts.nvlinks[1].links[0].errors;
    assert_eq!(errors["Link recovery failed events"], Some(2));
    assert_eq!(errors["FEC Errors - 0"], Some(36_140_749_276));
    assert!(!errors.contains_key("Tx packets"));
    assert_eq!(parsed.facts.parameters["gpu1.link0.effective_ber"], "15e-255");
}

#[test]
fn other_subcommands_are_recognised_and_give_no_links() {
    for lines in [
        "\t Link 0, P2P is supported: true\n\t Link 0, Access to system memory supported: true\n",
        "\t Link 0: Remote Device 00000000:C5:00.0: Link 3\n",
        "\t Link 0: 00000000:C5:00.0\n",
        "\t Link 0: Data Tx: 12 KiB\n\t Link 0: Data Rx: N/A\n",
    ] {
        let parsed = read(&format!("GPU 0: NVIDIA H100 PCIe (UUID: {})\n{lines}", uuid(0)));
        assert!(parsed.complete && parsed.problems.is_empty(), "{lines}{:?}", parsed.problems);
        assert!(parsed.facts.nvlinks[0].links.is_empty());
    }
}

#[test]
fn one_gpu_of_any_index_is_whole_and_a_gap_between_several_is_not() {
    let one = render("NVIDIA H200", &[vec![Some(26.562); 18]]).replace("GPU 0:", "GPU 6:");
    assert!(read(&one).complete);
    let gap = render("NVIDIA H200", &vec![vec![Some(26.562); 18]; 4]).replace("GPU 3:", "GPU 7:");
    let parsed = read(&gap);
    assert!(!parsed.complete && parsed.problems[0].detail.contains("GPUs 3 to 6 are not listed"));
}

#[test]
fn a_gpu_lost_to_an_error_is_an_error_and_not_a_gap() {
    let whole = render("NVIDIA H100 80GB HBM3", &vec![vec![Some(26.562); 18]; 3]);
    let text = whole.replace("GPU 2:", "GPU 3:")
        + "Unable to determine the device handle for GPU2: 0000:5F:00.0: Unknown Error\n";
    let parsed = read(&text);
    assert_eq!(
        (problem_kinds(&parsed), parsed.problems[0].gpu),
        (vec![OutputProblemKind::Error], Some(2))
    );
    assert!(parsed.complete);
}

#[test]
fn elisions_and_links_without_a_gpu_are_truncations() {
    let whole = render("NVIDIA A100-SXM4-40GB", &vec![vec![Some(25.0); 12]; 2]);
    let elided = whole.replacen("\t Link 5: 25 GB/s\n", "\t ...\n", 1);
    assert!(read(&elided).has_problem(OutputProblemKind::Truncated));
    let headless = whole.split_once('\n').unwrap().1;
    let parsed = read(headless);
    assert!(parsed.has_problem(OutputProblemKind::Truncated) && !parsed.complete);
    assert_eq!(parsed.facts.nvlinks.len(), 1);
}

#[test]
fn a_list_of_gpus_alone_has_no_links() {
    let text = format!(
        "GPU 0: NVIDIA A100-SXM4-40GB (UUID: {})\n  MIG 1g.5gb Device 0: (UUID: MIG-x)\n",
        uuid(0)
    );
    let parsed = read(&text);
    assert!(!parsed.complete && parsed.has_problem(OutputProblemKind::Truncated));
}

#[test]
fn labelled_lines_of_two_nodes_do_not_mix() {
    let a = render("NVIDIA H100 80GB HBM3", &[vec![Some(26.562); 3]]);
    let b = a.replace(&uuid(0), &uuid(9)).replacen("26.562 GB/s", "<inactive>", 1);
    let mut text = String::new();
    for (x, y) in a.lines().zip(b.lines()) {
        writeln!(text, "0: {x}\n1: {y}").unwrap();
    }
    let parsed = read(&text);
    assert_eq!(parsed.facts.nvlinks.len(), 2);
    assert_eq!(parsed.facts.nvlinks[0].links.len(), 3);
    assert_eq!(parsed.facts.nvlinks[1].links[0].active, Some(false));
    assert_eq!(problem_kinds(&parsed), [OutputProblemKind::Inconsistent]);
}

#[test]
fn a_forged_file_of_many_gpus_and_links_ends_in_time() {
    let mut text = String::new();
    for number in 0..60_000 {
        writeln!(text, "GPU {number}: X (UUID: GPU-{number})\n\t Link {number}: 25 GB/s").unwrap();
    }
    let parsed = read(&text);
    assert!(!parsed.complete && parsed.facts.nvlinks.len() == MOST_GPUS);
}

proptest! {
    #[test]
    fn rendered_output_is_read_back(
        links in 1usize..19,
        down in proptest::collection::vec(any::<bool>(), 8 * 18),
        gpus in 1usize..9,
        rate in 1u32..100_000,
    ) {
        let rate = f64::from(rate) / 1000.0;
        let rates: Vec<Vec<Option<f64>>> = (0..gpus)
            .map(|g| (0..links).map(|l| (!down[g * 18 + l]).then_some(rate)).collect())
            .collect();
        let parsed = read(&render("NVIDIA Test", &rates));
        prop_assert!(parsed.complete && parsed.problems.is_empty());
        let back: Vec<Vec<Option<f64>>> = parsed
            .facts
            .nvlinks
            .iter()
            .map(|g| g.links.iter().map(|l| l.rate).collect())
            .collect();
        prop_assert_eq!(back, rates);
    }

    #[test]
    fn a_cut_that_is_not_between_gpus_is_noticed(cut in 0usize..10_000) {
        let text = render("NVIDIA H200", &vec![vec![Some(26.562); 18]; 8]);
        // The first GPU alone has no equal to be compared with.
        let second = text.find("GPU 1").expect("a second GPU");
        let cut = second + cut % (text.len() - second);
        let kept = &text[..cut];
        let lost = text[cut..].trim_start_matches('\n');
        let whole_gpus = lost.is_empty() || lost.starts_with("GPU ");
        let parsed = read(kept);
        prop_assert_eq!(parsed.complete, whole_gpus, "{:?}", parsed.problems);
    }

    #[test]
    fn nothing_makes_it_panic(text in ".{0,300}", hurt in fixture::any_damage()) {
        let good = render("NVIDIA H200", &vec![vec![Some(26.562), None]; 3]);
        for bytes in [text.as_bytes().to_vec(), fixture::apply_damage(&good, &hurt)] {
            let decoded = text::decode(&bytes);
            let parsed = parse(&ParserInput::new(&decoded));
            let links = || parsed.facts.nvlinks.iter().flat_map(|g| &g.links);
            prop_assert!(links().all(|l| l.rate.is_none_or(f64::is_finite)));
        }
    }
}
