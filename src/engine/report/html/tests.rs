//! The page for fixture runs: its text, its escapes, its size.

use std::path::Path;

use super::*;
use crate::report::fixture;
use model::id::NodeName;
use model::verdict::Finding;

fn html(run: &Run) -> String {
    render(run, &HtmlPageContext::default()).expect("every run has a page")
}

/// The text of a page with one line per block, without style, script, figures and tags.
fn skeleton(page: &str) -> String {
    let mut text = page.to_owned();
    for tag in ["style", "script", "svg"] {
        while let Some(from) = text.find(&format!("<{tag}")) {
            let end = format!("</{tag}>");
            let to = text[from..].find(&end).expect("elements end") + from + end.len();
            text.replace_range(from..to, "");
        }
    }
    let mut out = String::new();
    let mut rest = text.as_str();
    while let Some((words, tail)) = rest.split_once('<') {
        out.push_str(words);
        let (tag, tail) = tail.split_once('>').expect("tags end");
        let name = tag.split_whitespace().next().unwrap_or("");
        match name.strip_prefix('/').unwrap_or(name) {
            "td" | "th" | "dt" => out.push_str(" | "),
            "h1" | "h2" | "h3" if !name.starts_with('/') => out.push_str("\n# "),
            "tr" | "p" | "li" | "dd" | "h1" | "h2" | "h3" | "figcaption" | "summary" | "pre" => {
                out.push('\n');
            }
            _ => {}
        }
        rest = tail;
    }
    out.push_str(rest);
    let lines = out.lines().map(|l| l.split_whitespace().collect::<Vec<_>>().join(" "));
    lines.filter(|l| !l.is_empty() && l != "|").collect::<Vec<_>>().join("\n")
}

#[test]
fn the_text_of_a_rack() {
    insta::assert_snapshot!("rack", skeleton(&html(&fixture::rack())));
}

#[test]
fn the_text_of_two_nodes_with_a_waived_test() {
    insta::assert_snapshot!("hgx", skeleton(&html(&fixture::hgx())));
}

#[test]
fn the_text_of_an_empty_run() {
    insta::assert_snapshot!("empty", skeleton(&html(&fixture::empty())));
}

#[test]
fn findings_that_a_figure_does_not_name_are_counted() {
    let mut run = fixture::rack();
    let named = |run: &Run| {
        let words = skeleton(&html(run));
        let line = words.lines().find(|line| line.starts_with("Outlined: "));
        line.expect("a part is outlined").to_owned()
    };
    assert!(!named(&run).contains("more"));
    let first = run.verdicts.findings[0].clone();
    for n in 0..9 {
        run.verdicts.findings.insert(1, Finding { id: format!("f{n}"), ..first.clone() });
    }
    let line = named(&run);
    assert!(line.matches(';').count() == 7 && line.ends_with(" and 2 more"), "{line}");
}

#[test]
fn cells_between_claimed_domains_are_drawn_under_their_own_name() {
    let mut run = fixture::rack();
    for cell in &mut run.cells {
        cell.domain = None;
    }
    let words = skeleton(&html(&run));
    // The bad GPU is low in this test, so the test neither passes nor is left out.
    assert!(words.contains("| between domains | | degraded | | – | | – |"), "{words}");
    assert!(words.contains("# between domains"), "{words}");
    run.claims.domains.clear();
    assert!(skeleton(&html(&run)).contains("no claimed domain"));
}

#[test]
fn a_page_needs_nothing_from_outside() {
    for run in fixture::all() {
        let page = html(&run);
        assert_eq!(page.matches("url(").count(), page.matches("url(#hatch)").count());
        assert!(!page.contains("@import"));
        for tag in page.split('<').skip(1).filter_map(|rest| rest.split_once('>')).map(|t| t.0) {
            let loads = ["img", "link", "iframe", "object", "embed", "image", "use", "base"];
            let name = tag.split_whitespace().next().unwrap_or("");
            assert!(!loads.contains(&name), "{tag}");
            let is_data = tag == "script type=\"application/json\" id=\"data\"";
            assert!(is_data || !tag.starts_with("script "), "{tag}");
            assert!(!tag.contains(" srcset=") && !tag.contains(" style="), "{tag}");
            if let Some((_, target)) = tag.split_once(" href=\"") {
                assert!(target.starts_with('#'), "{tag}");
            }
        }
    }
}

/// Cells without nodes, without numbers, with invalid numbers.
#[test]
fn odd_cells_render_in_every_format() {
    let mut run = fixture::hgx();
    let proto = run.cells[0].clone();
    let odd = [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, 0.0, -0.0, -7.0, 1e308, 5e-324];
    run.cells = odd
        .iter()
        .enumerate()
        .map(|(i, &value)| {
            let mut cell = proto.clone();
            cell.value = Some(value);
            cell.expected = (i % 2 == 0).then_some(value);
            cell.ratio = Some(value);
            cell.src_node = (i % 3 != 0).then(|| NodeName::from(""));
            cell.dst_gpu = (i % 4 != 1).then_some(u32::MAX);
            cell.domain = (i % 5 != 2).then(|| DomainName::from(""));
            cell
        })
        .collect();
    let mut finding = fixture::rack().verdicts.findings[0].clone();
    (finding.ratio, finding.measured, finding.detectable) =
        (Some(f64::NAN), Some(f64::INFINITY), Some(f64::NAN));
    run.verdicts.findings.push(finding);
    run.verdicts.outcome = Outcome::Degraded;
    assert!(html(&run).ends_with("</html>\n") || html(&run).ends_with("</html>"));
    let style = crate::report::TerminalStyle { width: 80, colour: false };
    assert!(crate::report::terminal::render(&run, &style).starts_with("DEGRADED"));
    assert!(crate::report::junit::render(&run).ends_with("</testsuites>\n"));
    assert_eq!(
        crate::report::csv::render_matrix(&run).split(|b| *b == b'\n').count(),
        odd.len() + 2
    );
    assert!(crate::report::explain::explain(&run, "hgx0101").is_some());
}

#[test]
fn hostile_names_stay_text() {
    let page = html(&fixture::hostile());
    assert!(!fixture::steers(&page));
    for markup in ["<script>alert", "<img", "</script><script>", "<b>at all", "<x>", "<k>", "<200>"]
    {
        assert!(!page.contains(markup), "{markup}");
    }
    assert_eq!(page.matches("<script").count(), 2, "data and the one script");
    assert!(page.contains("{{ 7 * 7 }}"), "template syntax in data is data");
}

#[test]
fn a_rack_is_well_under_two_megabytes() {
    let size = html(&fixture::rack()).len();
    assert!(size < 600_000, "{size}");
}

/// Many racks with the same cells.
fn fleet(racks: usize, bad: usize) -> Run {
    let mut run = fixture::rack();
    let (cells, findings) = (std::mem::take(&mut run.cells), run.verdicts.findings.clone());
    let claim = run.claims.domains[0].clone();
    let nodes = std::mem::take(&mut run.verdicts.nodes);
    run.verdicts.findings.clear();
    run.claims.domains.clear();
    for rack in 0..racks {
        let name = DomainName::from(format!("block{rack:03}"));
        let rename = |node: &NodeName| NodeName::from(format!("r{rack:03}-{node}"));
        run.claims.domains.push(model::claims::ClaimedDomain {
            name: name.clone(),
            nodes: claim.nodes.iter().map(rename).collect(),
            ..claim.clone()
        });
        run.cells.extend(cells.iter().cloned().map(|mut cell| {
            cell.domain = Some(name.clone());
            if bad <= rack {
                cell.outcome = Outcome::Pass;
                cell.ratio = cell.value.map(|_| 1.0);
            }
            cell.src_node = cell.src_node.as_ref().map(rename);
            cell.dst_node = cell.dst_node.as_ref().map(rename);
            cell
        }));
        run.verdicts.nodes.extend(nodes.iter().cloned().map(|mut node| {
            node.node = rename(&node.node);
            node.domain = Some(name.clone());
            if bad <= rack {
                node.outcome = Outcome::Pass;
            }
            node
        }));
        if rack < bad {
            let mut finding = findings[0].clone();
            finding.locus.domain = Some(name.clone());
            finding.locus.node = finding.locus.node.as_ref().map(rename);
            run.verdicts.findings.push(finding);
        }
    }
    run
}

#[test]
fn of_many_domains_those_with_findings_and_a_few_others_are_drawn() {
    let page = html(&fleet(12, 2));
    assert_eq!(page.matches("<section class=\"domain\"").count(), 4);
    assert!(page.contains("8 domains are not drawn"), "the page counts the omitted entries");
    assert!(page.len() < 2_000_000, "{}", page.len());
}

fn is_committed(name: &str, page: &str) {
    let path =
        Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../..")).join("reports/example").join(name);
    if std::env::var_os("UPDATE_REPORTS").is_some() {
        std::fs::write(&path, page).expect("the example folder is writable");
    }
    let example = std::fs::read_to_string(&path).expect("the example is there");
    assert!(example == page, "reports/example/{name} is old; run with UPDATE_REPORTS=1");
}

#[test]
fn the_committed_examples_are_what_the_code_renders() {
    is_committed("rack.html", &html(&fixture::rack()));
    is_committed("repaired.html", &repaired());
}

/// The page of a rack after a repair, with all its context.
fn repaired() -> String {
    let (before, trends, comparison) =
        (fixture::rack(), fixture::multi_run::trends(), fixture::multi_run::comparison());
    let repairs = fixture::multi_run::repairs();
    let context = HtmlPageContext {
        before: Some(&before),
        trends: &trends,
        comparison: Some(&comparison),
        repairs: Some(&repairs),
    };
    render(&fixture::repaired(), &context).expect("a page")
}

#[test]
fn the_text_of_a_rack_after_a_repair() {
    let words = skeleton(&repaired());
    assert!(words.contains("1 part not measured now, 1 part better, 1 part same"), "{words}");
    for expected in [
        "What the repair changed 2 nodes",
        "node0007: degraded then, pass now",
        "it passes now: what was blamed is as it must be",
        "Then: GPU 2 delivers 94.3 % of what it must",
        "GPU 2: GPU-aaaa, now GPU-bbbb",
        "product: not reported, now GB200",
        "node0009: not compared: no earlier run in run_dir measured it",
    ] {
        assert!(words.contains(expected), "{expected}: {words}");
    }
    assert!(words.contains("5.6 % below the usual level, since 202608"), "{words}");
    assert!(words.contains("driver from 580.65.06 to 580.82.07"), "{words}");
}

#[test]
fn rails_and_leaves_have_figures_of_their_own() {
    let words = skeleton(&html(&fixture::rails()));
    assert!(words.contains("ib_write_bw, rail by rail"), "{words}");
    assert!(words.contains("ib_write_bw, leaf by leaf"), "{words}");
}

#[test]
fn the_page_of_ten_thousand_nodes_is_small_enough_to_open() {
    let [few, many] = [2_500, 10_000].map(|nodes| html(&fixture::fleet(nodes)).len());
    // Four times the nodes, and the part that does not depend on their number.
    assert!(many < 5 * few, "{few} and {many} bytes");
    assert!(many < 20_000_000, "{many} bytes");
}

#[test]
fn every_node_of_a_large_fleet_has_a_tile_that_leads_to_its_line() {
    let page = html(&fixture::fleet(5_000));
    let tiles = page.split("id=\"tiles\"").nth(1).and_then(|t| t.split("</section>").next());
    let leads: Vec<&str> = tiles
        .expect("the fleet")
        .split("href=\"#")
        .skip(1)
        .filter_map(|rest| rest.split('"').next())
        .collect();
    assert_eq!(leads.len(), 5_000);
    for lead in leads.iter().step_by(97) {
        assert!(page.contains(&format!("<tr id=\"{lead}\"")), "{lead}");
    }
    assert!(page.len() < 2_600_000, "{}", page.len());
}

#[test]
fn data_cannot_end_its_element_and_reads_back_unchanged() {
    let text = "</script><!--<script>\u{2028}&amp;\"\\";
    let json = to_script_json(&[text]);
    assert!(!json.contains(['<', '>', '&', '\u{2028}']), "{json}");
    assert_eq!(serde_json::from_str::<Vec<String>>(&json).expect("JSON"), [text]);
}

#[test]
fn the_policy_names_digests_and_no_source() {
    let policy = content_security_policy("a", "");
    // echo -n | openssl dgst -sha256 -binary | base64
    assert!(policy.contains("script-src 'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"));
    assert!(!policy.contains("unsafe") && !policy.contains("http"), "{policy}");
}

#[test]
fn no_two_places_share_a_name_and_no_text_gets_into_it() {
    let mut anchors = HtmlAnchors::default();
    let names = ["a b", "a-b", "a\"b", "a-b-1", "a-b"].map(|t| anchors.unique_name("node", t));
    assert_eq!(names, ["node-a-b", "node-a-b-1", "node-a-b-2", "node-a-b-1-1", "node-a-b-3"]);
    assert_eq!(anchors.unique_name("node", "<x>&#"), "node--x---");
}
