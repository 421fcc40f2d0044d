//! iperf3: the document of `-J`, and the summary lines of its plain text.
//!
//! Verified with esnet/iperf 3.9 to 3.19 (pull requests 1174 and 1908, issues 754, 952 and 1784):
//!
//! - `end.sum_received` counts received bytes, `end.sum_sent` sent bytes, whichever end is the
//!   client; with `-R` the server sends. UDP has them since 3.10 only; the older `end.sum` is the
//!   sender's count and does not measure the path.
//! - `--bidir` prints the other direction as `sum_..._bidir_reverse`; 3.7 printed the same keys
//!   twice and is not supported.
//! - A failed run prints a document with `error`, or a line `iperf3: error - ...`.
//! - `--json-stream` (3.17) prints one object per line, the sums in the last.
//! - In text, bits have decimal prefixes; a test of several streams ends in lines of `[SUM]`.
//!
//! Testcases: `iperf3` is client to server, `iperf3_reverse` the opposite direction; `iperf3_bidir`
//! and `iperf3_bidir_reverse` ran concurrently; `_udp` is inserted for UDP. All in GB/s. This
//! module knows no expectations.

use serde_json::{Map, Value};

use super::{CERTAIN, LIKELY, POSSIBLE, ParserConfidence, ParserInput, lenient_json, text};
use model::measurement::{Measurement, MeasurementScalar};
use model::parse_output::{OutputProblem, OutputProblemKind, ParseOutput, Tool};
use model::text::clean;
use model::unit::Unit;

/// Bits per second in one GB/s.
const BITS_PER_GB: f64 = 8e9;

/// Whether this tool wrote the output.
pub fn recognises(input: &ParserInput<'_>) -> ParserConfidence {
    let contains = |words: &str| input.text.contains(words);
    let version = contains("\"version\"") && contains("\"iperf 3");
    let sums = contains("\"sum_received\"") || contains("\"sum_sent\"");
    let start = contains("\"connecting_to\"") && contains("\"test_start\"");
    if version || start || (sums && contains("\"bits_per_second\"")) {
        return CERTAIN;
    }
    if contains("\"intervals\"") && contains("\"error\"") && contains("\"start\"") {
        return LIKELY;
    }
    input.lines.iter().map(|line| line_confidence(line.trimmed())).max().unwrap_or(0)
}

fn line_confidence(line: &str) -> ParserConfidence {
    if line.starts_with("iperf3: error - ") || is_header(line) {
        CERTAIN
    } else if line.starts_with("iperf3: ") || is_not_installed(line) {
        POSSIBLE
    } else {
        0
    }
}

fn is_header(line: &str) -> bool {
    line.starts_with("[ ID]") && line.contains("Interval") && line.contains("Transfer")
}

/// The shell's message for a missing binary.
fn is_not_installed(line: &str) -> bool {
    let missing =
        line.ends_with("command not found") || line.ends_with("No such file or directory");
    missing && line.contains("iperf3")
}

/// Parses the output.
pub fn parse(input: &ParserInput<'_>) -> ParseOutput {
    let plain = input.plain_text();
    let is_document =
        |map: &Map<String, Value>| map.contains_key("end") || map.contains_key("error");
    let is_begun = |map: &Map<String, Value>| map.contains_key("start");
    if let Some(document) = lenient_json::find_document_where(&plain, is_document)
        .or_else(|| lenient_json::find_document_where(&plain, is_begun))
    {
        let mut parsed = parse_document(&document);
        if document.is_followed(&plain, is_document) {
            parsed.problems.push(document.extra_document_problem());
            parsed.complete = false;
        }
        return parsed;
    }
    if plain.contains("{\"event\"") {
        return parse_json_stream(&plain);
    }
    parse_text(input)
}

/// The document of `-J`.
fn parse_document(document: &lenient_json::JsonDocument) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::Iperf3);
    let value = &document.value;
    let stopped = document.stopped.as_ref();
    if let Some(stop) = stopped {
        let what = format!("the document breaks off, {} was expected", stop.expected);
        parsed
            .problems
            .push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(stop.line));
    }
    read_start(&value["start"], &mut parsed);
    // The sums of a document that broke off inside them may be incomplete.
    if stopped.is_none() {
        read_end(&value["start"]["test_start"], &value["end"], document.line, &mut parsed);
    }
    if let Some(error) = value["error"].as_str() {
        push_failure(error, document.line, &mut parsed);
    }
    check_complete(&mut parsed, document.line);
    parsed
}

/// The objects of `--json-stream`, one per line.
fn parse_json_stream(plain: &str) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::Iperf3);
    let mut test = Value::Null;
    for (number, line) in (1u32..).zip(plain.lines()) {
        let Ok(event) = serde_json::from_str::<Value>(line.trim()) else { continue };
        match event["event"].as_str() {
            Some("start") => {
                read_start(&event["data"], &mut parsed);
                test = event["data"]["test_start"].clone();
            }
            Some("end") => read_end(&test, &event["data"], number, &mut parsed),
            Some("error") => {
                push_failure(event["data"].as_str().unwrap_or(""), number, &mut parsed);
            }
            _ => {}
        }
    }
    check_complete(&mut parsed, 1);
    parsed
}

fn check_complete(parsed: &mut ParseOutput, line: u32) {
    if parsed.measurements.is_empty() && parsed.problems.is_empty() {
        let what = "the output ends before the result";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(line));
    }
    parsed.complete = parsed.problems.is_empty();
}

fn push_failure(message: &str, line: u32, parsed: &mut ParseOutput) {
    let message = clean(message);
    let message = if message.is_empty() { "the tool reports an error".to_owned() } else { message };
    parsed.problems.push(OutputProblem::new(OutputProblemKind::Error, message).at_line(line));
}

fn read_start(start: &Value, parsed: &mut ParseOutput) {
    let version = start["version"].as_str().and_then(|v| v.strip_prefix("iperf "));
    parsed.tool_version = version.map(clean);
    let connected = &start["connected"][0];
    let test = &start["test_start"];
    let fields = [
        ("connecting_to", &start["connecting_to"]["host"]),
        ("local_host", &connected["local_host"]),
        ("remote_host", &connected["remote_host"]),
        ("protocol", &test["protocol"]),
        ("num_streams", &test["num_streams"]),
        ("duration", &test["duration"]),
        ("omit", &test["omit"]),
        ("target_bitrate", &test["target_bitrate"]),
    ];
    for (key, value) in fields {
        let text = match value {
            Value::String(text) => clean(text),
            Value::Number(number) => number.to_string(),
            _ => continue,
        };
        if !text.is_empty() {
            parsed.facts.parameters.insert(key.to_owned(), text);
        }
    }
}

fn read_end(test: &Value, end: &Value, line: u32, parsed: &mut ParseOutput) {
    let flag = |key: &str| test[key].as_u64() == Some(1) || test[key].as_bool() == Some(true);
    let udp = test["protocol"].as_str().is_some_and(|p| p.eq_ignore_ascii_case("udp"));
    let bidir = flag("bidir") || !end["sum_received_bidir_reverse"].is_null();
    let name = testcase_name(udp, bidir, flag("reverse"));
    let keys: &[(&str, &str, &str)] = if bidir {
        &[
            ("sum_received", "sum_sent", ""),
            ("sum_received_bidir_reverse", "sum_sent_bidir_reverse", "_reverse"),
        ]
    } else {
        &[("sum_received", "sum_sent", "")]
    };
    for (received, sent, suffix) in keys {
        let testcase = format!("{name}{suffix}");
        let rate = |key: &str| end[key]["bits_per_second"].as_f64().filter(|r| r.is_finite());
        // Data that was sent over UDP may not have arrived.
        let bits = rate(received).or_else(|| rate(sent).filter(|_| !udp));
        let problem = |kind, what: &str| {
            OutputProblem::new(kind, what).in_test(Some(&testcase)).at_line(line)
        };
        match bits {
            Some(bits) if 0.0 < bits => {
                parsed.measurements.push(scalar_measurement(&testcase, bits / BITS_PER_GB));
            }
            Some(_) => {
                let what = "nothing arrived";
                parsed.problems.push(problem(OutputProblemKind::Error, what));
            }
            None if udp && !end["sum"].is_null() => {
                let what = "only the sender's count is stated";
                parsed.problems.push(problem(OutputProblemKind::Unverified, what));
            }
            None => {}
        }
        let retransmits = end[*sent]["retransmits"].as_u64();
        if let Some(count) = retransmits {
            let key = format!("retransmits{suffix}");
            parsed.facts.parameters.insert(key, count.to_string());
        }
    }
}

fn testcase_name(udp: bool, bidir: bool, reverse: bool) -> String {
    let protocol = if udp { "_udp" } else { "" };
    let way = match (bidir, reverse) {
        (true, _) => "_bidir",
        (false, true) => "_reverse",
        (false, false) => "",
    };
    format!("iperf3{protocol}{way}")
}

fn scalar_measurement(testcase: &str, value: f64) -> Measurement {
    let unit = Some(Unit::GigabytesPerSecond);
    Measurement::Scalar(MeasurementScalar {
        run: 0,
        testcase: Some(testcase.to_owned()),
        unit,
        value,
    })
}

/// One summary line of the text.
struct Iperf3Summary {
    /// The sum of all streams.
    all: bool,
    /// `TX-C`, `RX-C` with `--bidir`.
    role: Option<String>,
    receiver: bool,
    /// Rate in GB/s.
    rate: f64,
}

/// The plain text: the summary lines after the intervals.
fn parse_text(input: &ParserInput<'_>) -> ParseOutput {
    let mut parsed = ParseOutput::for_tool(Tool::Iperf3);
    let mut summaries: Vec<Iperf3Summary> = Vec::new();
    let (mut done, mut reverse, mut udp) = (false, false, false);
    let mut last = 1;
    for line in &input.lines {
        let text = line.trimmed();
        last = line.number;
        if let Some(version) = text.strip_prefix("iperf ").filter(|v| v.starts_with('3')) {
            parsed.tool_version = Some(clean(version));
        } else if text.starts_with("Reverse mode") {
            reverse = true;
        } else if text == "iperf Done." {
            done = true;
        } else if is_header(text) {
            udp |= text.contains("Jitter") || text.contains("Datagrams");
        } else if let Some(error) = text.strip_prefix("iperf3: error - ") {
            push_failure(error, line.number, &mut parsed);
        } else if is_not_installed(text) {
            push_failure(text, line.number, &mut parsed);
        } else if let Some(summary) = parse_summary(text) {
            summaries.push(summary);
        }
    }
    if !done && parsed.problems.is_empty() {
        let what = "the output ends before \"iperf Done.\"";
        parsed.problems.push(OutputProblem::new(OutputProblemKind::Truncated, what).at_line(last));
    }
    // Without the end of the output, a sum may be missing.
    summaries.retain(|summary| done || summary.all);
    let roles: std::collections::BTreeSet<Option<String>> =
        summaries.iter().map(|s| s.role.clone()).collect();
    for role in roles {
        let backwards = role.as_deref() == Some("RX-C");
        let mut name = testcase_name(udp, role.is_some(), reverse);
        name.push_str(if backwards { "_reverse" } else { "" });
        if let Some(rate) = received_rate(&summaries, &role, udp) {
            parsed.measurements.push(scalar_measurement(&name, rate));
        }
    }
    check_complete(&mut parsed, last);
    parsed
}

/// The received rate in this direction: of all streams, or of the only one.
fn received_rate(summaries: &[Iperf3Summary], role: &Option<String>, udp: bool) -> Option<f64> {
    let of = |receiver: bool| {
        let ours = || summaries.iter().filter(|s| s.role == *role && s.receiver == receiver);
        let sum = ours().find(|s| s.all).map(|s| s.rate);
        let only = || ours().next().filter(|_| ours().count() == 1).map(|s| s.rate);
        sum.or_else(only)
    };
    of(true).or_else(|| of(false).filter(|_| !udp)).filter(|rate| 0.0 < *rate)
}

/// `[SUM][TX-C]   0.00-10.00  sec  10.9 GBytes  9.36 Gbits/sec  0   sender`.
fn parse_summary(text: &str) -> Option<Iperf3Summary> {
    let rest = text.strip_prefix('[')?;
    let receiver = text.ends_with("receiver");
    if !receiver && !text.ends_with("sender") {
        return None;
    }
    let (id, rest) = rest.split_once(']')?;
    let role = rest.strip_prefix('[').and_then(|r| r.split_once(']')).map(|(role, _)| role);
    let words: Vec<&str> = rest.split_whitespace().collect();
    let at = words.iter().position(|word| word.ends_with("bits/sec"))?;
    let number = text::parse_number(words.get(at.checked_sub(1)?)?)?;
    let scale = match words[at] {
        "bits/sec" => 1.0,
        "Kbits/sec" => 1e3,
        "Mbits/sec" => 1e6,
        "Gbits/sec" => 1e9,
        "Tbits/sec" => 1e12,
        _ => return None,
    };
    Some(Iperf3Summary {
        all: id.trim() == "SUM",
        role: role.map(str::to_owned),
        receiver,
        rate: number * scale / BITS_PER_GB,
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use serde_json::json;

    use super::*;

    fn document(received: f64, reverse: u32) -> Value {
        let sum = |bits: f64| {
            json!({"start": 0, "end": 10.0, "seconds": 10.0, "bytes": 5,
            "bits_per_second": bits, "retransmits": 3, "sender": true})
        };
        json!({
            "start": {"connected": [{"socket": 5, "local_host": "192.0.2.1", "local_port": 4,
                    "remote_host": "192.0.2.2", "remote_port": 5201}],
                "version": "iperf 3.16", "system_info": "Linux y1",
                "timestamp": {"time": "x", "timesecs": 1}, "connecting_to":
                {"host": "192.0.2.2", "port": 5201}, "cookie": "q", "test_start":
                {"protocol": "TCP", "num_streams": 4, "blksize": 131072, "omit": 1,
                 "duration": 10, "bytes": 0, "blocks": 0, "reverse": reverse, "bidir": 0}},
            "intervals": [{"streams": [], "sum": sum(1.0)}],
            "end": {"streams": [], "sum_sent": sum(received * 1.01),
                "sum_received": sum(received), "cpu_utilization_percent": {}}})
    }

    fn read(text: &str) -> ParseOutput {
        crate::outputs::parse_output(text.as_bytes())
    }

    fn values(parsed: &ParseOutput) -> Vec<(String, f64)> {
        let scalars = parsed.measurements.iter().map(|m| match m {
            Measurement::Scalar(s) => (s.testcase.clone().expect("a name"), s.value),
            other => panic!("{other:?}"),
        });
        scalars.collect()
    }

    #[test]
    fn the_received_rate_counts_and_reverse_is_named() {
        for (reverse, name) in [(0, "iperf3"), (1, "iperf3_reverse")] {
            let parsed = read(&document(94.0e9, reverse).to_string());
            assert_eq!(parsed.tool, Some(Tool::Iperf3));
            assert_eq!(parsed.tool_version.as_deref(), Some("3.16"));
            assert!(parsed.complete, "{:?}", parsed.problems);
            assert_eq!(values(&parsed), [(name.to_owned(), 11.75)]);
            assert_eq!(parsed.facts.parameters["num_streams"], "4");
            assert_eq!(parsed.facts.parameters["retransmits"], "3");
        }
    }

    #[test]
    fn a_second_document_is_reported_and_not_ignored() {
        let (one, two) = (document(80e9, 0), document(40e9, 0));
        let parsed = read(&format!("{one}\n{two}\n"));
        assert_eq!(values(&parsed), [("iperf3".to_owned(), 10.0)]);
        assert!(parsed.has_problem(OutputProblemKind::Unrecognised) && !parsed.complete);
    }

    #[test]
    fn concurrent_directions_are_two_numbers_and_the_sent_rate_is_the_fallback() {
        let mut value = document(80e9, 0);
        value["start"]["test_start"]["bidir"] = json!(1);
        value["end"]["sum_received_bidir_reverse"] = json!({"bits_per_second": 72e9});
        let names = ["iperf3_bidir".to_owned(), "iperf3_bidir_reverse".to_owned()];
        let [forward, back] = names;
        assert_eq!(values(&read(&value.to_string())), [(forward, 10.0), (back, 9.0)]);
        let mut value = document(80e9, 0);
        let end = value["end"].as_object_mut().expect("an object");
        end.remove("sum_received");
        end["sum_sent"]["bits_per_second"] = json!(81e9);
        assert_eq!(values(&read(&value.to_string()))[0].1, 10.125);
    }

    #[test]
    fn an_error_is_an_error_in_every_form() {
        let refused = "unable to connect to server: Connection refused";
        let text = format!("iperf3: error - {refused}\n");
        let short = json!({"start": {"connected": []}, "intervals": [], "end": {},
            "error": refused});
        let line = json!({"event": "error", "data": refused}).to_string();
        let stream =
            format!("{{\"event\":\"start\",\"data\":{{\"version\":\"iperf 3.17\"}}}}\n{line}\n");
        for text in [text, short.to_string(), stream] {
            let parsed = read(&text);
            assert_eq!(parsed.tool, Some(Tool::Iperf3), "{text}");
            assert!(
                parsed.has_problem(OutputProblemKind::Error) && parsed.measurements.is_empty(),
                "{text}"
            );
            assert!(parsed.problems[0].detail.contains("refused"), "{:?}", parsed.problems);
        }
    }

    #[test]
    fn udp_without_the_receivers_count_has_no_result() {
        let mut value = document(80e9, 0);
        value["start"]["test_start"]["protocol"] = json!("UDP");
        value["end"] = json!({"streams": [], "sum": {"bits_per_second": 80e9}});
        let parsed = read(&value.to_string());
        assert!(
            parsed.measurements.is_empty() && parsed.has_problem(OutputProblemKind::Unverified)
        );
    }

    #[test]
    fn the_summary_lines_of_the_text_are_read() {
        let text = "Connecting to host 192.0.2.2, port 5201\n\
            [  5] local 192.0.2.1 port 4 connected to 192.0.2.2 port 5201\n\
            [ ID] Interval           Transfer     Bitrate         Retr  Cwnd\n\
            [  5]   0.00-1.00   sec  1.09 GBytes  9.36 Gbits/sec    0   3.0 MBytes\n\
            - - - - - - - - - - - - - - - - - - - - - - - - -\n\
            [ ID] Interval           Transfer     Bitrate         Retr\n\
            [  5]   0.00-10.00  sec  10.9 GBytes  9.36 Gbits/sec    0             sender\n\
            [  5]   0.00-10.04  sec  10.9 GBytes  9.20 Gbits/sec                  receiver\n\
            [  7]   0.00-10.00  sec  10.9 GBytes  9.36 Gbits/sec    0             sender\n\
            [  7]   0.00-10.04  sec  10.9 GBytes  9.20 Gbits/sec                  receiver\n\
            [SUM]   0.00-10.00  sec  21.8 GBytes  18.7 Gbits/sec    0             sender\n\
            [SUM]   0.00-10.04  sec  21.8 GBytes  18.4 Gbits/sec                  receiver\n";
        let parsed = read(&format!("{text}\niperf Done.\n"));
        assert_eq!(values(&parsed), [("iperf3".to_owned(), 2.3)]);
        assert!(parsed.complete);
        let cut = read(text);
        assert_eq!(values(&cut), [("iperf3".to_owned(), 2.3)]);
        assert!(!cut.complete && cut.has_problem(OutputProblemKind::Truncated));
        let one = text.lines().filter(|line| !line.starts_with("[SUM]"));
        let cut = read(&one.map(|line| format!("{line}\n")).collect::<String>());
        assert!(cut.measurements.is_empty() && cut.has_problem(OutputProblemKind::Truncated));
    }

    proptest! {
        #[test]
        fn a_cut_document_gives_no_number(rate in 1e6..4e11f64, at in 0.0..1.0f64) {
            let text = document(rate, 0).to_string();
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss,
                     clippy::cast_precision_loss, reason = "a place in a short text")]
            let cut = &text[..(text.len() as f64 * at) as usize];
            let parsed = read(cut);
            prop_assert!(parsed.measurements.is_empty() && !parsed.complete);
            prop_assert!(!parsed.problems.is_empty());
            prop_assert_eq!(values(&read(&text))[0].1, rate / 8e9);
        }
    }
}
