//! The page of `ashlar resilience --html`: one file, no network, sliders.
//!
//! The page carries this crate's own code compiled to WebAssembly (`page/answer.wasm`, made by
//! `page/build.sh`; a WASI program that reads questions and writes answers), so there is no second
//! implementation in another language: its script only draws.
//!
//! **Invariant**: nothing the user writes can end a script element or start a tag.

use crate::answer::{AnswerError, Question, answer};

const TEMPLATE: &str = include_str!("../page/index.html");
const WASM: &[u8] = include_bytes!("../page/answer.wasm");

/// The page, opening with the layouts of `question`.
///
/// # Errors
/// [`AnswerError`] where the question itself makes no sense.
pub fn page(question: &Question) -> Result<String, AnswerError> {
    answer(question)?;
    let text = serde_json::to_string(question).unwrap_or_default();
    let text = text.replace('<', "\\u003c");
    Ok(TEMPLATE
        .replace("{{WASM}}", &base64(WASM))
        .replace("{{QUESTION}}", &text))
}

/// Base64 with padding (RFC 4648).
fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::with_capacity(bytes.len().div_ceil(3) * 4);
    for part in bytes.chunks(3) {
        let word =
            part.iter().fold(0_u32, |word, &b| word << 8 | u32::from(b)) << (8 * (3 - part.len()));
        for digit in 0..4 {
            if digit <= part.len() {
                let value = word >> (18 - 6 * digit) & 63;
                out.push(char::from(DIGITS[value as usize]));
            } else {
                out.push('=');
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    #![allow(clippy::unwrap_used, reason = "tests")]
    use super::*;

    #[test]
    fn base64_of_the_standard() {
        for (bytes, text) in [
            ("", ""),
            ("f", "Zg=="),
            ("fo", "Zm8="),
            ("foo", "Zm9v"),
            ("foobar", "Zm9vYmFy"),
        ] {
            assert_eq!(base64(bytes.as_bytes()), text);
        }
    }

    #[test]
    fn the_page_is_whole_and_takes_no_tags_in() {
        let question = |layout: &str| -> Question {
            serde_json::from_value(serde_json::json!({ "layouts": [layout], "devices": 10 }))
                .unwrap()
        };
        let page = page(&question("raid6")).unwrap();
        assert!(page.contains("\"raid6\"") && page.contains("AGFzbQ") && !page.contains("{{"));
        assert!(
            !page.contains("http://") || page.matches("http://").count() == 1,
            "only a namespace"
        );
        assert!(super::page(&question("</script><b>")).is_err());
    }
}
