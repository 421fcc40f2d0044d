//! The colour scale of every matrix: bands of the ratio to the expected value.
//!
//! Bands instead of a gradient, so that a legend can be read exactly. Their lightness only rises as
//! the ratio falls, so the order survives colour blindness and a grey printer; the tests below
//! compute that.

#[derive(Debug, PartialEq)]
pub(super) struct ColourBand {
    /// The lowest ratio of the band.
    pub(super) from: f64,
    /// Its fill: red, green, blue.
    pub(super) colour: (u8, u8, u8),
    pub(super) glyph: char,
}

/// From the highest ratios to the lowest. Edges: effects under 2 % never trigger an action, so 0.98
/// and up is neutral; 17 of 18 links are 0.944 and 16 are 0.889, one of 12 is 0.917, and each loss
/// falls inside a band, not on an edge.
pub(super) const BANDS: [ColourBand; 9] = [
    ColourBand { from: 1.05, colour: (0x12, 0x1c, 0x4e), glyph: '+' },
    ColourBand { from: 0.98, colour: (0x2b, 0x47, 0x8f), glyph: '·' },
    ColourBand { from: 0.96, colour: (0x6f, 0x55, 0xab), glyph: '░' },
    ColourBand { from: 0.93, colour: (0xb3, 0x5a, 0x9c), glyph: '▒' },
    ColourBand { from: 0.85, colour: (0xe2, 0x6d, 0x6b), glyph: '▒' },
    ColourBand { from: 0.70, colour: (0xf3, 0x8f, 0x3c), glyph: '▓' },
    ColourBand { from: 0.50, colour: (0xf9, 0xb4, 0x2e), glyph: '▓' },
    ColourBand { from: 0.25, colour: (0xfb, 0xd8, 0x4f), glyph: '█' },
    ColourBand { from: f64::NEG_INFINITY, colour: (0xfd, 0xf5, 0xae), glyph: '█' },
];

/// From this ratio on, a cell is as expected.
pub(super) const MIN_EXPECTED_RATIO: f64 = 0.98;

/// The glyphs of a terminal with their meaning.
pub(super) const GLYPHS: [(char, &str); 8] = [
    ('+', "1.05 and up"),
    ('·', "0.98 and up"),
    ('░', "0.96 and up"),
    ('▒', "0.85 and up"),
    ('▓', "0.50 and up"),
    ('█', "below 0.50"),
    ('×', "failed, no number"),
    ('?', "not measured"),
];

/// The band of a ratio; `None` for NaN.
pub(super) fn find_band(ratio: f64) -> Option<&'static ColourBand> {
    if ratio.is_nan() { None } else { BANDS.iter().find(|band| band.from <= ratio) }
}

/// Whether dark text is more legible than white on this colour.
pub(super) fn takes_dark_text(colour: (u8, u8, u8)) -> bool {
    // WCAG 2: contrast against black exceeds contrast against white above
    // this relative luminance, sqrt(1.05 * 0.05) - 0.05.
    0.179 < luminance(colour)
}

/// Relative luminance, as WCAG 2 defines it.
fn luminance((r, g, b): (u8, u8, u8)) -> f64 {
    0.2126 * linear(r) + 0.7152 * linear(g) + 0.0722 * linear(b)
}

fn linear(channel: u8) -> f64 {
    let c = f64::from(channel) / 255.0;
    if c <= 0.04045 { c / 12.92 } else { ((c + 0.055) / 1.055).powf(2.4) }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Linear RGB as seen without one type of cone. Machado, Oliveira and Fernandes, "A
    /// Physiologically-based Model for Simulation of Color Vision Deficiency", 2009, severity 1.0.
    const SEEN: [(&str, [[f64; 3]; 3]); 4] = [
        ("all cones", [[1.0, 0.0, 0.0], [0.0, 1.0, 0.0], [0.0, 0.0, 1.0]]),
        (
            "protanopia",
            [
                [0.152_286, 1.052_583, -0.204_868],
                [0.114_503, 0.786_281, 0.099_216],
                [-0.003_882, -0.048_116, 1.051_998],
            ],
        ),
        (
            "deuteranopia",
            [
                [0.367_322, 0.860_646, -0.227_968],
                [0.280_085, 0.672_501, 0.047_413],
                [-0.011_820, 0.042_940, 0.968_881],
            ],
        ),
        (
            "tritanopia",
            [
                [1.255_528, -0.076_749, -0.178_779],
                [-0.078_411, 0.930_809, 0.147_602],
                [0.004_733, 0.691_367, 0.303_900],
            ],
        ),
    ];

    /// CIE L*a*b* (D65) of a colour seen through a matrix.
    fn lab((r, g, b): (u8, u8, u8), seen: &[[f64; 3]; 3]) -> [f64; 3] {
        let rgb = [linear(r), linear(g), linear(b)];
        let through = |m: &[f64; 3], v: &[f64; 3]| m[0] * v[0] + m[1] * v[1] + m[2] * v[2];
        let rgb = [0, 1, 2].map(|i| through(&seen[i], &rgb).clamp(0.0, 1.0));
        let xyz = [
            through(&[0.4124, 0.3576, 0.1805], &rgb) / 0.9505,
            through(&[0.2126, 0.7152, 0.0722], &rgb),
            through(&[0.0193, 0.1192, 0.9505], &rgb) / 1.089,
        ];
        let f = xyz.map(|t| if 0.008_856 < t { t.cbrt() } else { 7.787 * t + 16.0 / 116.0 });
        [116.0 * f[1] - 16.0, 500.0 * (f[0] - f[1]), 200.0 * (f[1] - f[2])]
    }

    #[test]
    fn every_eye_sees_the_bands_rise_in_lightness_and_apart() {
        for (vision, seen) in &SEEN {
            for pair in BANDS.windows(2) {
                let (a, b) = (lab(pair[0].colour, seen), lab(pair[1].colour, seen));
                let far = a.iter().zip(b).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
                assert!(a[0] + 3.0 < b[0], "{vision}: lightness {} then {}", a[0], b[0]);
                // A difference of 2.3 is just noticeable (CIE 1976).
                assert!(9.0 < far, "{vision}: {:?} and {:?} are {far} apart", pair[0], pair[1]);
            }
        }
    }

    #[test]
    fn one_lost_link_stands_out_from_healthy_for_every_eye() {
        for (vision, seen) in &SEEN {
            let healthy = lab(BANDS[1].colour, seen);
            let lost = lab(find_band(17.0 / 18.0).expect("a ratio").colour, seen);
            let far = healthy.iter().zip(lost).map(|(x, y)| (x - y).powi(2)).sum::<f64>().sqrt();
            assert!(20.0 < far, "{vision}: {far}");
        }
    }

    #[test]
    fn lost_links_fall_inside_a_band_and_healthy_stays_calm() {
        assert_eq!(find_band(1.0).map(|b| b.glyph), Some('·'));
        assert_eq!(find_band(0.9801).map(|b| b.glyph), Some('·'));
        assert_eq!(find_band(17.0 / 18.0).map(|b| b.from), Some(0.93));
        assert_eq!(find_band(16.0 / 18.0).map(|b| b.from), Some(0.85));
        assert_eq!(find_band(0.0).map(|b| b.glyph), Some('█'));
        assert_eq!(find_band(f64::NAN), None);
    }

    #[test]
    fn text_on_every_band_has_enough_contrast() {
        for band in &BANDS {
            let l = luminance(band.colour);
            let text = if takes_dark_text(band.colour) { 0.0 } else { 1.0_f64 };
            let contrast = (l.max(text) + 0.05) / (l.min(text) + 0.05);
            assert!(4.5 <= contrast, "{band:?}: {contrast}");
        }
    }
}
