//! Plots and the page: what is drawn is there, what cannot be drawn is one line, and the page's
//! WebAssembly was built from the present code.
#![allow(clippy::unwrap_used, reason = "tests")]
#![cfg(all(feature = "plots", feature = "page"))]

use std::path::{Path, PathBuf};

use ashlar_model::{Answer, PlotError, Question, Scale, answer, svg, write_plot};

fn ask(layouts: &[&str], failures: Option<(u32, u32)>) -> Answer {
    let question = serde_json::json!({ "layouts": layouts, "devices": 100, "failures": failures });
    let question: Question = serde_json::from_value(question).unwrap();
    answer(&question).unwrap()
}

fn scratch(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("ashlar-model-{}-{name}", std::process::id()))
}

#[test]
fn svg_shows_every_layout() {
    let asked = ask(&["raid60:10", "80:20", "97:3"], None);
    for scale in [Scale::Linear, Scale::Logarithmic] {
        let text = svg(&asked, scale).unwrap();
        assert!(text.starts_with("<svg") && text.trim_end().ends_with("</svg>"));
        for label in [
            "raid60:10, 100 drives, 80.0 % data",
            "80:20,",
            "97:3,",
            "Drives failed",
        ] {
            assert!(text.contains(label), "{label}");
        }
        assert!(text.matches("<polyline").count() >= 3);
        assert!(!text.contains("NaN") && !text.contains("inf"));
        assert_eq!(
            text,
            svg(&asked, scale).unwrap(),
            "the same bytes every time"
        );
    }
}

#[test]
fn files_by_ending() {
    let asked = ask(&["raid60:10", "2*raid60:10"], Some((0, 30)));
    let png = scratch("a.PNG");
    write_plot(&asked, Scale::Logarithmic, &png).unwrap();
    let bytes = std::fs::read(&png).unwrap();
    std::fs::remove_file(&png).unwrap();
    assert!(bytes.starts_with(b"\x89PNG\r\n\x1a\n") && bytes.len() > 10_000);
    assert_eq!(bytes[16..24], [0, 0, 3, 192, 0, 0, 2, 88], "960 by 600");
    let plain = scratch("a.svg");
    write_plot(&asked, Scale::Linear, &plain).unwrap();
    assert!(std::fs::read_to_string(&plain).unwrap().contains("<svg"));
    std::fs::remove_file(&plain).unwrap();
    assert!(matches!(
        write_plot(&asked, Scale::Linear, Path::new("a.gif")),
        Err(PlotError::Ending)
    ));
    let nowhere = scratch("none").join("a.png");
    assert!(matches!(
        write_plot(&asked, Scale::Linear, &nowhere),
        Err(PlotError::Write(_))
    ));
    let one = ask(&["raid60:10"], Some((3, 3)));
    assert!(matches!(svg(&one, Scale::Linear), Err(PlotError::Empty)));
}

/// POSIX cksum: CRC-32 of the bytes and their length, polynomial 0x04c11db7, inverted.
fn cksum(bytes: &[u8]) -> u32 {
    let mut length = Vec::new();
    let mut rest = bytes.len();
    while rest > 0 {
        length.push(rest as u8);
        rest >>= 8;
    }
    !bytes.iter().chain(&length).fold(0_u32, |crc, &byte| {
        (0..8).fold(crc ^ u32::from(byte) << 24, |crc, _| {
            if crc >> 31 == 1 {
                crc << 1 ^ 0x04c1_1db7
            } else {
                crc << 1
            }
        })
    })
}

#[test]
fn the_pages_webassembly_is_of_this_code() {
    assert_eq!(cksum(b"123456789"), 930_766_865);
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    let mut files: Vec<PathBuf> = std::fs::read_dir(here.join("../layout/src"))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "rs"))
        .collect();
    files.sort();
    for name in [
        "answer",
        "assumptions",
        "chain",
        "declustered",
        "exact",
        "life",
        "ln",
        "montecarlo",
        "random",
        "system",
        "bin/answer",
    ] {
        files.push(here.join(format!("src/{name}.rs")));
    }
    let mut code = Vec::new();
    for file in files {
        for line in std::fs::read_to_string(file).unwrap().lines() {
            if !line.trim_start_matches(' ').starts_with("//") {
                code.extend(line.bytes().filter(|b| !b" \t\n".contains(b)));
            }
        }
    }
    let expect = std::fs::read_to_string(here.join("page/answer.sources")).unwrap();
    assert_eq!(
        format!("{} {}", cksum(&code), code.len()),
        expect.trim(),
        "the code has changed since page/answer.wasm was built: run crates/model/page/build.sh"
    );
}
