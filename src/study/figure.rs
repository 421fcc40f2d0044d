//! Plots the study: the share of faulty parts found against the share of the rate that a part has
//! lost, one line per noise level.

use std::collections::BTreeMap;

use super::{StudyPoint, StudyWorld};

/// Size and margins of the plot in pixels.
const SIZE: [f64; 2] = [640.0, 340.0];
const LEFT: f64 = 56.0;
const RIGHT: f64 = 150.0;
const TOP: f64 = 28.0;
const BOTTOM: f64 = 48.0;

/// Colors that are distinguishable with color vision deficiency (Okabe and Ito 2008).
const COLOURS: [&str; 5] = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00"];

/// Losses marked on the axis, as shares.
const MARKS: [(f64, &str); 5] = [
    (1.0 / 36.0, "half a link"),
    (1.0 / 18.0, "1 link"),
    (2.0 / 18.0, "2 links"),
    (0.25, "25 %"),
    (0.5, "50 %"),
];

/// Found and total faults by loss.
type DetectionCurve = BTreeMap<u64, (u64, u64)>;

/// Plots the points of racks with faults, over all numbers of simultaneous faults.
pub fn render_svg(points: &[StudyPoint]) -> String {
    let mut lines: BTreeMap<u64, DetectionCurve> = BTreeMap::new();
    let racks = points.iter().filter(|p| p.setting.world == StudyWorld::Domain);
    for point in racks.filter(|p| 0 < p.scheme.faults) {
        // The bit patterns of positive numbers have the order of the numbers.
        let line = lines.entry(point.setting.sigma.to_bits()).or_default();
        let sum = line.entry(point.setting.loss.to_bits()).or_default();
        *sum = (sum.0 + point.scheme.found, sum.1 + point.scheme.faults);
    }
    let [width, height] = SIZE;
    let losses = || lines.values().flat_map(BTreeMap::keys).map(|bits| f64::from_bits(*bits));
    let least = losses().fold(0.025, f64::min).ln();
    let most = losses().fold(0.5, f64::max).ln();
    let x = |loss: f64| LEFT + (loss.ln() - least) / (most - least) * (width - LEFT - RIGHT);
    let y = |share: f64| height - BOTTOM - share * (height - TOP - BOTTOM);
    let mut out = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" viewBox=\"0 0 {width} {height}\" font-family=\"sans-serif\" \
         font-size=\"12\">\n<rect width=\"{width}\" height=\"{height}\" fill=\"#fff\"/>\n\
         <text x=\"{LEFT}\" y=\"16\">Faulty GPUs of a rack that the final verdict blames</text>\n"
    );
    for share in [0.0, 0.25, 0.5, 0.75, 1.0] {
        out.push_str(&format!(
            "<path d=\"M{LEFT} {at:.1}H{end:.1}\" stroke=\"#ddd\"/>\
             <text x=\"{label:.1}\" y=\"{text:.1}\" text-anchor=\"end\">{percent:.0} %</text>\n",
            at = y(share),
            end = width - RIGHT,
            label = LEFT - 6.0,
            text = y(share) + 4.0,
            percent = share * 100.0
        ));
    }
    for (loss, name) in MARKS.iter().filter(|(loss, _)| least <= loss.ln() && loss.ln() <= most) {
        out.push_str(&format!(
            "<path d=\"M{at:.1} {from:.1}v5\" stroke=\"#000\"/>\
             <text x=\"{at:.1}\" y=\"{text:.1}\" text-anchor=\"middle\">{name}</text>\n",
            at = x(*loss),
            from = y(0.0),
            text = y(0.0) + 18.0
        ));
    }
    out.push_str(&format!(
        "<text x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">lost rate (logarithmic)</text>\n",
        (LEFT + width - RIGHT) / 2.0,
        height - 10.0
    ));
    for (number, (sigma, line)) in lines.iter().enumerate() {
        let colour = COLOURS[number % COLOURS.len()];
        let places: Vec<(f64, f64)> = line
            .iter()
            .map(|(loss, (found, faults))| {
                (x(f64::from_bits(*loss)), y(*found as f64 / *faults as f64))
            })
            .collect();
        let path: Vec<String> = places.iter().map(|(x, y)| format!("{x:.1} {y:.1}")).collect();
        out.push_str(&format!(
            "<path d=\"M{}\" fill=\"none\" stroke=\"{colour}\" stroke-width=\"2\"/>\n",
            path.join("L")
        ));
        for (x, y) in places {
            out.push_str(&format!(
                "<circle cx=\"{x:.1}\" cy=\"{y:.1}\" r=\"3\" fill=\"{colour}\"/>\n"
            ));
        }
        out.push_str(&format!(
            "<text x=\"{:.1}\" y=\"{:.1}\" fill=\"{colour}\">noise {} %</text>\n",
            width - RIGHT + 14.0,
            TOP + 16.0 + 18.0 * number as f64,
            f64::from_bits(*sigma) * 100.0
        ));
    }
    out.push_str("</svg>\n");
    out
}

#[cfg(test)]
mod tests {
    use super::super::{StudySetting, StudyTally};
    use super::*;

    #[test]
    fn a_line_for_each_noise_goes_through_its_points() {
        let of = |sigma, loss, found| StudyPoint {
            setting: StudySetting { world: StudyWorld::Domain, sigma, loss, faults: 1 },
            scheme: StudyTally { faults: 100, found, ..StudyTally::default() },
            baselines: [StudyTally::default(); 5],
        };
        let points = [of(0.01, 0.5, 100), of(0.01, 0.03, 40), of(0.02, 0.5, 100)];
        let svg = render_svg(&points);
        assert_eq!(svg.matches("<circle").count(), 3);
        assert_eq!(svg.matches("stroke-width=\"2\"").count(), 2);
        assert!(svg.contains("noise 1 %") && svg.contains("noise 2 %"), "{svg}");
        // All found is at the top, at the right end of the axis.
        assert!(svg.contains("cx=\"490.0\" cy=\"28.0\""), "{svg}");
        assert!(render_svg(&[]).ends_with("</svg>\n"));
    }
}
