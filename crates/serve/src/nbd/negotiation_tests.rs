//! The server's handshake against tables of good and bad options, and against random bytes.
#![allow(clippy::unwrap_used, reason = "tests")]

use super::*;
use crate::MemVolume;
use crate::nbd::wire::{flag, put_option};

const FIXED: u32 = 3;

fn catalog() -> Catalog {
    let catalog = Catalog::default();
    assert!(catalog.publish("a/b", Rc::new(MemVolume::new(1 << 20))));
    assert!(catalog.publish("a/c", Rc::new(MemVolume::new(1 << 30))));
    assert!(!catalog.publish("", Rc::new(MemVolume::new(1))));
    assert!(!catalog.publish(&"x".repeat(256), Rc::new(MemVolume::new(1))));
    catalog
}

/// Option, type and payload.
type Reply = (u32, u32, Vec<u8>);

/// Feeds `bytes` after client flags; returns the replies as (option, kind, payload) and the end.
fn talk(flags: u32, bytes: &[u8]) -> (Vec<Reply>, &'static str, Option<Opened>) {
    let catalog = catalog();
    let mut negotiation = Negotiation::new();
    let mut input = flags.to_be_bytes().to_vec();
    input.extend_from_slice(bytes);
    let (mut at, mut out) = (0, Vec::new());
    let (end, opened) = loop {
        let (used, next) = negotiation.step(&input[at..], &catalog, &mut out);
        at += used;
        match next {
            Next::Again => {}
            Next::More => break ("more", None),
            Next::Open(opened) => break ("open", Some(opened)),
            Next::Close => break ("close", None),
        }
    };
    let mut replies = Vec::new();
    let mut reader = Reader(&out);
    while reader
        .0
        .starts_with(&wire::OPTION_REPLY_MAGIC.to_be_bytes())
    {
        reader.u64().unwrap();
        let (option, kind, length) = (
            reader.u32().unwrap(),
            reader.u32().unwrap(),
            reader.u32().unwrap(),
        );
        replies.push((
            option,
            kind,
            reader.bytes(length as usize).unwrap().to_vec(),
        ));
    }
    if !reader.is_empty() {
        replies.push((0, 0, reader.0.to_vec())); // the answer to EXPORT_NAME
    }
    (replies, end, opened)
}

fn option(code: u32, payload: &[u8]) -> Vec<u8> {
    let mut out = Vec::new();
    put_option(&mut out, code, payload);
    out
}

fn go_payload(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, name);
    out.extend_from_slice(&u16::try_from(wanted.len()).unwrap().to_be_bytes());
    wanted
        .iter()
        .for_each(|kind| out.extend_from_slice(&kind.to_be_bytes()));
    out
}

fn meta_payload(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut out = Vec::new();
    put_string(&mut out, name);
    out.extend_from_slice(&u32::try_from(queries.len()).unwrap().to_be_bytes());
    queries.iter().for_each(|query| put_string(&mut out, query));
    out
}

fn kinds(bytes: &[u8]) -> (Vec<u32>, &'static str) {
    let (replies, end, _) = talk(FIXED, bytes);
    (replies.iter().map(|reply| reply.1).collect(), end)
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn options_are_answered_as_the_table_says() {
    use option::*;
    let long = "n".repeat(4000);
    let table: Vec<(Vec<u8>, Vec<u32>, &str)> = vec![
        (
            option(LIST, &[]),
            vec![rep::SERVER, rep::SERVER, rep::ACK],
            "more",
        ),
        (option(LIST, b"x"), vec![rep::ERR_INVALID], "more"),
        (option(ABORT, &[]), vec![rep::ACK], "close"),
        (option(ABORT, b"why not"), vec![rep::ACK], "close"),
        (option(STARTTLS, &[]), vec![rep::ERR_UNSUP], "more"),
        (option(STARTTLS, b"x"), vec![rep::ERR_INVALID], "more"),
        (option(STRUCTURED_REPLY, &[]), vec![rep::ACK], "more"),
        (
            option(STRUCTURED_REPLY, b"x"),
            vec![rep::ERR_INVALID],
            "more",
        ),
        (option(11, &[]), vec![rep::ERR_UNSUP], "more"),
        (option(u32::MAX, b"anything"), vec![rep::ERR_UNSUP], "more"),
        (
            option(GO, &go_payload("a/b", &[])),
            vec![rep::INFO, rep::INFO, rep::ACK],
            "open",
        ),
        (
            option(GO, &go_payload("a/b", &[info::NAME, 9, info::BLOCK_SIZE])),
            vec![rep::INFO, rep::INFO, rep::INFO, rep::ACK],
            "open",
        ),
        (
            option(INFO, &go_payload("a/b", &[])),
            vec![rep::INFO, rep::INFO, rep::ACK],
            "more",
        ),
        (
            option(GO, &go_payload("nope", &[])),
            vec![rep::ERR_UNKNOWN],
            "more",
        ),
        (
            option(GO, &go_payload(&long, &[])),
            vec![rep::ERR_UNKNOWN],
            "more",
        ),
        (option(GO, &[]), vec![rep::ERR_INVALID], "more"),
        (option(GO, &[0xff; 7]), vec![rep::ERR_INVALID], "more"),
        (
            option(GO, &[0, 0, 0, 1, 0xff, 0, 0]),
            vec![rep::ERR_INVALID],
            "more",
        ),
        (
            option(GO, &[go_payload("a/b", &[]), vec![0]].concat()),
            vec![rep::ERR_INVALID],
            "more",
        ),
        (
            option(GO, &[0, 0, 0, 0, 0xff, 0xff]),
            vec![rep::ERR_INVALID],
            "more",
        ),
        (
            option(SET_META_CONTEXT, &meta_payload("a/b", &[])),
            vec![rep::ERR_INVALID],
            "more",
        ),
        (option(GO, &vec![0; 5000]), vec![rep::ERR_TOO_BIG], "more"),
        (option(77, &vec![0; 65536]), vec![rep::ERR_TOO_BIG], "more"),
        (option(77, &vec![0; 65537]), vec![], "close"),
        (option(EXPORT_NAME, b"nope"), vec![], "close"),
        (option(EXPORT_NAME, &vec![b'n'; 5000]), vec![], "close"),
        (option(EXPORT_NAME, &[0xff, 0xfe]), vec![], "close"),
        (b"GET / HTTP/1.1\r\n\r\n".to_vec(), vec![], "close"),
        (wire::OPTION_MAGIC.to_be_bytes().to_vec(), vec![], "more"),
    ];
    for (bytes, expected, end) in table {
        assert_eq!(
            kinds(&bytes),
            (expected, end),
            "{:?}",
            &bytes[..bytes.len().min(60)]
        );
    }
    // A length of 2^32-1 is refused from its header alone.
    let mut huge = option(option::GO, &[]);
    huge[12..16].copy_from_slice(&u32::MAX.to_be_bytes());
    assert_eq!(kinds(&huge), (vec![], "close"));
}

#[test]
fn starttls_changes_nothing_that_was_negotiated() {
    let bytes = [
        option(option::STRUCTURED_REPLY, &[]),
        option(option::STARTTLS, &[]),
        option(option::GO, &go_payload("a/b", &[])),
    ]
    .concat();
    let (_, end, opened) = talk(FIXED, &bytes);
    assert_eq!(end, "open");
    assert!(opened.unwrap().export.structured);
}

#[test]
fn meta_contexts_hold_for_the_export_they_were_asked_for() {
    let with = |name: &str, queries: &[&str], go: &str| {
        let bytes = [
            option(option::STRUCTURED_REPLY, &[]),
            option(option::SET_META_CONTEXT, &meta_payload(name, queries)),
            option(option::GO, &go_payload(go, &[])),
        ]
        .concat();
        talk(FIXED, &bytes).2.unwrap().export.allocation
    };
    assert!(with("a/b", &["base:allocation"], "a/b"));
    assert!(with("a/b", &["x:y", "base:allocation", ""], "a/b"));
    assert!(!with("a/b", &["base:"], "a/b"), "SET needs the exact name");
    assert!(!with("a/b", &[], "a/b"));
    assert!(!with("a/c", &["base:allocation"], "a/b"));
    let list = |queries: &[&str]| {
        let bytes = [
            option(option::STRUCTURED_REPLY, &[]),
            option(option::LIST_META_CONTEXT, &meta_payload("a/b", queries)),
        ]
        .concat();
        talk(FIXED, &bytes)
            .0
            .iter()
            .filter(|reply| reply.1 == rep::META_CONTEXT)
            .count()
    };
    assert_eq!((list(&[]), list(&["base:"]), list(&["qemu:"])), (1, 1, 0));
    // A count that the payload does not hold.
    let mut lie = meta_payload("a/b", &[]);
    let end = lie.len();
    lie[end - 4..].copy_from_slice(&u32::MAX.to_be_bytes());
    let bytes = [
        option(option::STRUCTURED_REPLY, &[]),
        option(option::SET_META_CONTEXT, &lie),
    ]
    .concat();
    assert_eq!(kinds(&bytes).0, [rep::ACK, rep::ERR_INVALID]);
}

#[test]
fn old_clients_use_export_name_only() {
    let (replies, end, _) = talk(0, &option(option::EXPORT_NAME, b"a/b"));
    assert_eq!((replies[0].2.len(), end), (134, "open"));
    let (replies, _, _) = talk(2, &option(option::EXPORT_NAME, b"a/b"));
    assert_eq!(replies[0].2.len(), 10);
    assert_eq!(replies[0].2[..8], (1u64 << 20).to_be_bytes());
    let flags = u16::from_be_bytes([replies[0].2[8], replies[0].2[9]]);
    assert_ne!(flags & flag::HAS_FLAGS, 0);
    assert_eq!(flags & flag::SEND_DF, 0, "no structured replies: no DF");
    assert_eq!(talk(0, &option(option::LIST, &[])).1, "close");
    assert_eq!(talk(4, &[]).1, "close");
}

#[test]
fn the_empty_name_means_the_only_export() {
    let catalog = catalog();
    assert!(catalog.open("").is_none());
    catalog.withdraw("a/c");
    assert_eq!(catalog.open("").unwrap().volume.info().size_bytes, 1 << 20);
    assert!(catalog.open("a/").is_none() && catalog.open("a").is_none());
    let function = |name: &str| (name == "f").then(|| Rc::new(MemVolume::new(1)) as Rc<dyn Volume>);
    assert!(function.open("f").is_some() && function.open("").is_none());
    assert!(function.names().is_empty());
}

#[test]
fn a_handshake_has_an_end() {
    let bytes = option(option::LIST, &[]).repeat(1000);
    let (replies, end, _) = talk(FIXED, &bytes);
    assert_eq!((replies.len(), end), (3 * MAX_OPTIONS as usize, "close"));
}

#[test]
fn random_bytes_never_panic_the_server() {
    let mut state = 11u64;
    let mut next = move || {
        state = state
            .wrapping_mul(6364136223846793005)
            .wrapping_add(1442695040888963407);
        state >> 40
    };
    let catalog = catalog();
    for round in 0..20_000u32 {
        let mut negotiation = Negotiation::new();
        let mut bytes = (next() as u32 & 3).to_be_bytes().to_vec();
        for _ in 0..next() % 6 {
            let junk: Vec<u8> = (0..next() % 40).map(|_| (next() % 7 * 50) as u8).collect();
            match round % 3 {
                0 => bytes.extend(junk),
                1 => bytes.extend(option((next() % 13) as u32, &junk)),
                _ => {
                    let mut header = option((next() % 13) as u32, &junk);
                    header[14] = next() as u8; // a length that may lie
                    bytes.extend(header);
                }
            }
        }
        let (mut at, mut out) = (0, Vec::new());
        for _ in 0..10_000 {
            let (used, next) = negotiation.step(&bytes[at..], &catalog, &mut out);
            at += used;
            assert!(at <= bytes.len());
            if !matches!(next, Next::Again) {
                break;
            }
        }
        assert!(out.len() < 1 << 20);
    }
}
