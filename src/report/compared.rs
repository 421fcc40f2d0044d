//! What a finding's number was compared with, in words: the platform's number, the
//! median of its peers, or what the part showed before. Every form of a report has its
//! words from here, so that a ratio always says what it is of.

use super::plain::quantity;
use crate::model::verdict::Finding;
use crate::model::verdict::RatioOf;

/// Everything that a finding's number was compared with, the platform's first; each with
/// the ratio to it.
pub(super) fn all(finding: &Finding) -> Vec<(RatioOf, Option<f64>, Option<f64>)> {
    let all = [
        (RatioOf::Expected, finding.expected, finding.ratio),
        (RatioOf::Peers, finding.peers, finding.ratio_to_peers),
        (RatioOf::Own, finding.own, finding.ratio_to_own),
    ];
    let is_told = |(_, value, ratio): &(_, Option<f64>, Option<f64>)| {
        value.is_some() || ratio.is_some()
    };
    all.into_iter().filter(is_told).collect()
}

/// The same, one line each.
pub(super) fn lines(finding: &Finding) -> Vec<String> {
    all(finding).iter().map(|one| line(finding, one)).collect()
}

/// Those that are not the platform's number, as one sentence.
pub(super) fn beside(finding: &Finding) -> Option<String> {
    let all = all(finding);
    let others = all.iter().filter(|(of, ..)| *of != RatioOf::Expected);
    let lines: Vec<String> = others.map(|one| line(finding, one)).collect();
    (!lines.is_empty()).then(|| lines.join("; "))
}

fn line(finding: &Finding, (of, value, ratio): &(RatioOf, Option<f64>, Option<f64>)) -> String {
    let value = value.map(|value| format!(" {}", quantity(value, finding.unit)));
    let ratio = ratio.map(|ratio| format!(", ratio {ratio:.3} of it"));
    format!("{}{}{}", of.short(), value.unwrap_or_default(), ratio.unwrap_or_default())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::unit::Unit;
    use crate::report::fixture;

    #[test]
    fn every_number_is_told_with_what_it_is() {
        let mut finding = fixture::rack().verdicts.findings[0].clone();
        (finding.unit, finding.expected, finding.ratio) =
            (Some(Unit::GigabytesPerSecond), Some(800.0), Some(0.9));
        (finding.peers, finding.ratio_to_peers) = (Some(750.0), Some(0.96));
        (finding.own, finding.ratio_to_own) = (None, Some(0.98));
        assert_eq!(
            lines(&finding),
            [
                "expected 800.0 GB/s, ratio 0.900 of it",
                "peers' median 750.0 GB/s, ratio 0.960 of it",
                "own level before, ratio 0.980 of it",
            ]
        );
    }
}
