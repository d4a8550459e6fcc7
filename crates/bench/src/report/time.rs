//! Rates over time as an SVG drawing: panels one above the other, on one axis of time.
//!
//! **Invariants**: pure; all points of a drawing are equally long, and a line's first begins at second `from`.

use std::fmt::Write as _;

use super::curve::round_up;
use super::figures::escape;
use super::html::file;

/// One drawing.
#[derive(Clone, Debug, Default)]
pub struct Plot {
    /// What it shows.
    pub title: String,
    /// When the first point begins, in seconds.
    pub from: f64,
    /// Seconds of a point.
    pub step: f64,
    /// From the top down.
    pub panels: Vec<Panel>,
    /// Spans of time that are shaded, in seconds.
    pub shaded: Vec<(f64, f64)>,
}

/// What has one scale.
#[derive(Clone, Debug, Default)]
pub struct Panel {
    /// What is drawn, with its unit.
    pub of: String,
    /// Its lines.
    pub lines: Vec<Line>,
    /// A level, dashed across all of it.
    pub level: Option<(String, f64)>,
}

/// One line.
#[derive(Clone, Debug, Default)]
pub struct Line {
    /// What it is of.
    pub name: String,
    /// A rate for each step.
    pub points: Vec<f64>,
}

const WIDTH: f64 = 800.0;
const LEFT: f64 = 48.0;
const RIGHT: f64 = 12.0;
/// Height of a panel, of which this is for its name and key.
const PANEL: f64 = 190.0;
const HEAD: f64 = 26.0;
const BOTTOM: f64 = 38.0;

impl Plot {
    fn seconds(&self) -> f64 {
        let lines = self.panels.iter().flat_map(|panel| &panel.lines);
        let points = lines.map(|line| line.points.len()).max().unwrap_or(0);
        (points as f64 * self.step).max(self.step)
    }

    fn x(&self, second: f64) -> f64 {
        let share = (second - self.from) / self.seconds();
        LEFT + (WIDTH - LEFT - RIGHT) * share.clamp(0.0, 1.0)
    }

    /// The SVG file.
    pub fn svg(&self) -> String {
        let bottom = PANEL * self.panels.len() as f64;
        let height = bottom + BOTTOM;
        let mut svg = format!("<svg viewBox=\"0 0 {WIDTH:.0} {height:.0}\" role=\"img\">");
        svg.push_str("<rect width=\"100%\" height=\"100%\" fill=\"var(--bg)\"/>");
        let mut colour = 0;
        for (panel, top) in self.panels.iter().zip((0..).map(|n| f64::from(n) * PANEL)) {
            self.draw(panel, top, &mut colour, &mut svg);
        }
        let tick = tick(self.seconds() / 15.0);
        let first = (self.from / tick).ceil() * tick;
        let ticks = (0..).map(|n| first + f64::from(n) * tick);
        for second in ticks.take_while(|second| *second <= self.from + self.seconds()) {
            // No -0.
            let label = (second * 1000.0).round() / 1000.0 + 0.0;
            let _ = write!(
                svg,
                "<text class=\"n\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"middle\">{label}</text>",
                self.x(second),
                bottom + 16.0,
            );
        }
        let _ = write!(
            svg,
            "<text class=\"n\" x=\"{:.1}\" y=\"{:.1}\" text-anchor=\"end\">seconds</text></svg>",
            WIDTH - RIGHT,
            height - 5.0
        );
        file(&self.title, &svg)
    }

    fn draw(&self, panel: &Panel, top: f64, colour: &mut usize, svg: &mut String) {
        let level = panel.level.iter().map(|(_, value)| *value);
        let points = panel.lines.iter().flat_map(|line| &line.points).copied();
        let most = round_up(level.chain(points).fold(0.0, f64::max));
        let y = |value: f64| top + HEAD + (PANEL - HEAD - 6.0) * (1.0 - value / most);
        for (begin, end) in &self.shaded {
            let (begin, end) = (self.x(*begin), self.x(*end));
            let _ = write!(
                svg,
                "<rect x=\"{begin:.1}\" y=\"{:.1}\" width=\"{:.1}\" height=\"{:.1}\" fill=\"var(--head)\"/>",
                y(most),
                end - begin,
                y(0.0) - y(most)
            );
        }
        let right = WIDTH - RIGHT;
        for quarter in 0..=4 {
            let value = most * f64::from(quarter) / 4.0;
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--line)\"/>\
                 <text class=\"n\" x=\"{1}\" y=\"{2:.1}\" text-anchor=\"end\">{3}</text>",
                y(value),
                LEFT - 5.0,
                y(value) + 4.0,
                (value * 100.0).round() / 100.0
            );
        }
        let mut key = format!("<tspan>{}</tspan>", escape(&panel.of));
        for line in &panel.lines {
            *colour += 1;
            let path = line.points.iter().zip(0..).map(|(value, step)| {
                let middle = self.from + (f64::from(step) + 0.5) * self.step;
                format!("{:.1},{:.1}", self.x(middle), y(*value))
            });
            let path: Vec<String> = path.collect();
            let _ = write!(
                svg,
                "<polyline fill=\"none\" stroke=\"var(--c{colour})\" stroke-width=\"1.5\" points=\"{}\"/>",
                path.join(" ")
            );
            let _ = write!(
                key,
                "<tspan dx=\"18\" style=\"fill:var(--c{colour})\">&#9644; {}</tspan>",
                escape(&line.name)
            );
        }
        if let Some((name, value)) = &panel.level {
            let _ = write!(
                svg,
                "<line x1=\"{LEFT}\" x2=\"{right}\" y1=\"{0:.1}\" y2=\"{0:.1}\" stroke=\"var(--bad)\" stroke-dasharray=\"6 4\"/>",
                y(*value)
            );
            let _ = write!(
                key,
                "<tspan dx=\"18\" style=\"fill:var(--bad)\">- - {}</tspan>",
                escape(name)
            );
        }
        let _ = write!(
            svg,
            "<text x=\"{LEFT}\" y=\"{:.1}\">{key}</text>",
            top + 17.0
        );
    }
}

/// The next of 1, 2, 5 times a power of ten.
fn tick(least: f64) -> f64 {
    let power = 10f64.powf(least.log10().floor());
    let steps = [1.0, 2.0, 5.0].into_iter();
    steps
        .map(|step| step * power)
        .find(|step| *step >= least)
        .unwrap_or(10.0 * power)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn panels_share_the_axis_of_time_and_have_their_own_scale() {
        let panel = |of: &str, points: &[f64], level| Panel {
            of: of.to_string(),
            lines: vec![Line {
                name: "a < b".to_string(),
                points: points.to_vec(),
            }],
            level,
        };
        let plot = Plot {
            title: "t".to_string(),
            from: -1.0,
            step: 0.5,
            panels: vec![
                panel(
                    "upper",
                    &[0.0, 10.0, 5.0, 0.0],
                    Some(("least".to_string(), 20.0)),
                ),
                panel("lower", &[100.0; 4], None),
            ],
            shaded: vec![(0.0, 0.5)],
        };
        let svg = plot.svg();
        assert!(svg.starts_with("<svg xmlns=") && svg.ends_with("</svg>\n"));
        assert!(svg.contains("a &lt; b") && !svg.contains("a < b"));
        assert_eq!(svg.matches("<polyline").count(), 2);
        assert_eq!(svg.matches("stroke-dasharray").count(), 1);
        // Half of 740 pixels for a second; half of 20 in the middle of a panel's 158.
        assert!((plot.x(0.0) - (LEFT + 370.0)).abs() < 1e-9);
        assert!(svg.contains("points=\"140.5,184.0 325.5,105.0 "), "{svg}");
        assert!(svg.contains("points=\"140.5,216.0 "), "{svg}");
    }
}
