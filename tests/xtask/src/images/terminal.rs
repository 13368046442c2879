//! Draws a picture of a terminal from its text.

use std::fmt::Write;

pub enum TerminalLine {
    Command(String),
    Output(String),
}

/// The width of a character of the font at this size, in pixels.
const CHARACTER: f64 = 7.8;
const FONT: u32 = 13;
const LEADING: usize = 19;
const EDGE: usize = 20;

const BACKGROUND: &str = "#16181d";
const TEXT: &str = "#c9d1d9";
const PROMPT: &str = "#7ee787";
const COMMAND: &str = "#f0f6fc";

pub fn svg(lines: &[TerminalLine]) -> String {
    let text = |line: &TerminalLine| match line {
        TerminalLine::Command(text) => text.chars().count() + "$ ".len(),
        TerminalLine::Output(text) => text.chars().count(),
    };
    let longest = lines.iter().map(text).max().unwrap_or_default();
    let width = (longest as f64 * CHARACTER).ceil() as usize + 2 * EDGE;
    let height = lines.len() * LEADING + 2 * EDGE;
    let mut picture = format!(
        "<svg xmlns=\"http://www.w3.org/2000/svg\" width=\"{width}\" height=\"{height}\" viewBox=\"0 0 {width} {height}\" \
         role=\"img\" aria-label=\"A terminal with commands of kubewitness and what they print\">\n<rect \
         width=\"{width}\" height=\"{height}\" rx=\"8\" fill=\"{BACKGROUND}\"/>\n<g \
         font-family=\"ui-monospace, SFMono-Regular, Menlo, Consolas, 'DejaVu Sans Mono', monospace\" \
         font-size=\"{FONT}\" fill=\"{TEXT}\">\n"
    );
    for (row, line) in lines.iter().enumerate() {
        let y = EDGE + (row + 1) * LEADING - 5;
        // `textLength` keeps columns aligned with any font.
        let long = |text: &str| format!("{:.1}", text.chars().count() as f64 * CHARACTER);
        let drawn = match line {
            TerminalLine::Output(text) if text.trim().is_empty() => continue,
            TerminalLine::Output(text) => {
                format!("<text x=\"{EDGE}\" y=\"{y}\" textLength=\"{}\">{}</text>", long(text), escape(text))
            }
            TerminalLine::Command(text) => {
                let shown = format!("$ {text}");
                format!(
                    "<text x=\"{EDGE}\" y=\"{y}\" textLength=\"{}\" fill=\"{COMMAND}\"><tspan fill=\"{PROMPT}\">$\u{a0}</tspan>{}</text>",
                    long(&shown),
                    escape(text)
                )
            }
        };
        // Writing to a string can't fail.
        writeln!(picture, "{drawn}").ok();
    }
    picture.push_str("</g>\n</svg>\n");
    picture
}

/// Escapes text. Viewers draw several spaces as one unless they are non-breaking.
fn escape(text: &str) -> String {
    text.replace(' ', "\u{a0}").replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_on_the_terminal_is_in_the_picture() {
        let lines =
            [TerminalLine::Command("kubewitness jobs".into()), TerminalLine::Output("a <b> & c".into())];
        let picture = svg(&lines);
        assert!(picture.contains("kubewitness\u{a0}jobs</text>"), "{picture}");
        assert!(picture.contains("a\u{a0}&lt;b&gt;\u{a0}&amp;\u{a0}c</text>"));
        // The longest line decides the width: 18 characters and the margins.
        assert!(picture.starts_with("<svg") && picture.contains("width=\"181\""), "{picture}");
    }
}
