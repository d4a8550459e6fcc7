//! The server's half of the handshake, sans-IO: bytes from the client in, replies and at last the
//! chosen export out.
//!
//! ```text
//! greeting -> [client flags] -> [options]* -> Opened (transmission)
//!                                   |-> Closed (abort, or the protocol was broken)
//! ```
//!
//! Invariants:
//! - At most [`MAX_OPTION_BYTES`] of an option's payload are held; longer payloads, up to
//!   [`MAX_SKIPPED_BYTES`], are skipped and answered with TOO_BIG; beyond that the peer is dropped.
//! - `step` consumes whole items only, so feeding a stream byte by byte or at once gives the same.

use std::cell::RefCell;
use std::collections::BTreeMap;
use std::rc::Rc;

use super::wire::{self, ExportInfo, Reader, info, option, put_option_reply, put_string, rep};
use crate::Volume;

/// The longest option payload that is looked at.
const MAX_OPTION_BYTES: usize = 4096 + 512;
/// The longest option payload that is skipped rather than answered by a disconnect.
const MAX_SKIPPED_BYTES: u32 = 64 << 10;
/// Options in one handshake; real clients send fewer than ten.
const MAX_OPTIONS: u32 = 128;

/// The exports of a server: which volume a name means.
pub trait Exports {
    /// The names a client may list. Empty if the server does not tell.
    fn names(&self) -> Vec<String>;
    /// What this name means; the empty name is the default export.
    fn open(&self, name: &str) -> Option<Export>;
}

/// An export that a name was found to mean.
#[derive(Clone)]
pub struct Export {
    /// Its own name, whatever name it was asked for by: `NbdServer::disconnect` goes by this one.
    pub name: String,
    /// What it serves.
    pub volume: Rc<dyn Volume>,
}

impl std::fmt::Debug for Export {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Export({})", self.name)
    }
}

/// A resolver that is only a function lists no names.
impl<F: Fn(&str) -> Option<Rc<dyn Volume>>> Exports for F {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }
    fn open(&self, name: &str) -> Option<Export> {
        let name = name.to_owned();
        self(&name).map(|volume| Export { name, volume })
    }
}

/// Exports by exact name. The empty name means the only export where there is one.
#[derive(Default)]
pub struct Catalog {
    volumes: RefCell<BTreeMap<String, Rc<dyn Volume>>>,
}

impl std::fmt::Debug for Catalog {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_set().entries(self.volumes.borrow().keys()).finish()
    }
}

impl Catalog {
    /// Adds an export, or changes the one of this name for new connections. False if the name is
    /// empty or longer than 255 bytes: then nothing is done.
    pub fn publish(&self, name: &str, volume: Rc<dyn Volume>) -> bool {
        if name.is_empty() || name.len() > wire::MAX_EXPORT_NAME {
            return false;
        }
        self.volumes.borrow_mut().insert(name.to_owned(), volume);
        true
    }

    /// Removes an export; connections to it stay (see `NbdServer::disconnect`).
    pub fn withdraw(&self, name: &str) {
        self.volumes.borrow_mut().remove(name);
    }
}

impl Exports for Catalog {
    fn names(&self) -> Vec<String> {
        self.volumes.borrow().keys().cloned().collect()
    }
    fn open(&self, name: &str) -> Option<Export> {
        let volumes = self.volumes.borrow();
        let found = if name.is_empty() && volumes.len() == 1 {
            volumes.first_key_value()
        } else {
            volumes.get_key_value(name)
        };
        found.map(|(name, volume)| Export {
            name: name.clone(),
            volume: volume.clone(),
        })
    }
}

/// What the handshake chose.
pub(super) struct Opened {
    /// The export's own name, also where the client gave none.
    pub(super) name: String,
    pub(super) volume: Rc<dyn Volume>,
    pub(super) export: ExportInfo,
}

/// What to do after [`Negotiation::step`], once its output is sent.
pub(super) enum Next {
    /// Bytes were consumed; there may be more to do with the rest.
    Again,
    /// The item at the front is not complete.
    More,
    /// Transmission begins with the next byte.
    Open(Opened),
    /// Close the connection.
    Close,
}

enum State {
    ClientFlags,
    Options,
    /// Skipping the payload of an option that gets `reply`.
    Skipping {
        option: u32,
        reply: u32,
        left: u32,
    },
    Ended,
}

pub(super) struct Negotiation {
    state: State,
    fixed: bool,
    no_zeroes: bool,
    structured: bool,
    /// The export for which base:allocation was chosen.
    context: Option<String>,
    options: u32,
}

impl Negotiation {
    pub(super) fn new() -> Negotiation {
        Negotiation {
            state: State::ClientFlags,
            fixed: false,
            no_zeroes: false,
            structured: false,
            context: None,
            options: 0,
        }
    }

    /// What the server says first.
    pub(super) fn greeting() -> Vec<u8> {
        let mut out = Vec::with_capacity(18);
        out.extend_from_slice(&wire::NBD_MAGIC.to_be_bytes());
        out.extend_from_slice(&wire::OPTION_MAGIC.to_be_bytes());
        out.extend_from_slice(&(wire::FIXED_NEWSTYLE | wire::NO_ZEROES).to_be_bytes());
        out
    }

    /// Consumes at most one item from the front of `input`; returns how many bytes it had. Replies
    /// are appended to `out`.
    pub(super) fn step(
        &mut self,
        input: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> (usize, Next) {
        match self.state {
            State::ClientFlags => self.client_flags(input),
            State::Options => self.option(input, exports, out),
            State::Skipping {
                option,
                reply,
                left,
            } => {
                let take = input.len().min(left as usize);
                let left = left - take as u32;
                if left > 0 {
                    self.state = State::Skipping {
                        option,
                        reply,
                        left,
                    };
                    return (take, if take > 0 { Next::Again } else { Next::More });
                }
                put_option_reply(out, option, reply, &[]);
                self.state = State::Options;
                (take, Next::Again)
            }
            State::Ended => (0, Next::Close),
        }
    }

    fn client_flags(&mut self, input: &[u8]) -> (usize, Next) {
        let Some(flags) = Reader(input).u32() else {
            return (0, Next::More);
        };
        let known = u32::from(wire::FIXED_NEWSTYLE | wire::NO_ZEROES);
        if flags & !known != 0 {
            return self.close(4);
        }
        self.fixed = flags & u32::from(wire::FIXED_NEWSTYLE) != 0;
        self.no_zeroes = flags & u32::from(wire::NO_ZEROES) != 0;
        self.state = State::Options;
        (4, Next::Again)
    }

    fn close(&mut self, consumed: usize) -> (usize, Next) {
        self.state = State::Ended;
        (consumed, Next::Close)
    }

    fn option(&mut self, input: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> (usize, Next) {
        const HEADER: usize = 16;
        let mut reader = Reader(input);
        // The magic is checked as soon as it is there: a peer that speaks something else is dropped
        // without waiting for more of it.
        match reader.u64() {
            None => return (0, Next::More),
            Some(wire::OPTION_MAGIC) => {}
            Some(_) => return self.close(0),
        }
        let (Some(option), Some(length)) = (reader.u32(), reader.u32()) else {
            return (0, Next::More);
        };
        let only_export_name = !self.fixed && option != option::EXPORT_NAME;
        let too_long = length as usize > MAX_OPTION_BYTES;
        if length > MAX_SKIPPED_BYTES
            || only_export_name
            || self.options >= MAX_OPTIONS
            || (too_long && option == option::EXPORT_NAME)
        {
            return self.close(HEADER);
        }
        if too_long {
            self.options += 1;
            self.state = State::Skipping {
                option,
                reply: rep::ERR_TOO_BIG,
                left: length,
            };
            return (HEADER, Next::Again);
        }
        let Some(payload) = reader.bytes(length as usize) else {
            return (0, Next::More);
        };
        self.options += 1;
        let next = self.whole_option(option, payload, exports, out);
        if matches!(next, Next::Open(_) | Next::Close) {
            self.state = State::Ended;
        }
        (HEADER + payload.len(), next)
    }

    fn whole_option(
        &mut self,
        option: u32,
        payload: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Next {
        match option {
            option::EXPORT_NAME => return self.export_name(payload, exports, out),
            option::ABORT => {
                put_option_reply(out, option, rep::ACK, &[]);
                return Next::Close;
            }
            option::GO | option::INFO => {
                match self.go(option, payload, exports, out) {
                    Ok(opened) if option == option::GO => return Next::Open(opened),
                    Ok(_) => {}
                    Err(error) => put_option_reply(out, option, error, &[]),
                }
                return Next::Again;
            }
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                let answer = self.meta_context(option, payload, exports, out);
                put_option_reply(out, option, answer, &[]);
                return Next::Again;
            }
            _ => {}
        }
        let answer = match option {
            option::LIST if payload.is_empty() => {
                for name in exports.names() {
                    let mut entry = Vec::new();
                    put_string(&mut entry, &name);
                    put_option_reply(out, option, rep::SERVER, &entry);
                }
                rep::ACK
            }
            option::STRUCTURED_REPLY if payload.is_empty() => {
                self.structured = true;
                rep::ACK
            }
            option::LIST | option::STRUCTURED_REPLY => rep::ERR_INVALID,
            option::STARTTLS if !payload.is_empty() => rep::ERR_INVALID,
            _ => rep::ERR_UNSUP,
        };
        put_option_reply(out, option, answer, &[]);
        Next::Again
    }

    fn opened(&self, asked: &str, found: Export) -> Opened {
        let allocation = self.structured && self.context.as_deref() == Some(asked);
        let export = ExportInfo::of(&found.volume.info(), self.structured, allocation);
        Opened {
            name: found.name,
            volume: found.volume,
            export,
        }
    }

    /// The old option: it has no error reply, an unknown name is answered by closing.
    fn export_name(&self, payload: &[u8], exports: &dyn Exports, out: &mut Vec<u8>) -> Next {
        let found = std::str::from_utf8(payload)
            .ok()
            .filter(|name| name.len() <= wire::MAX_NAME)
            .and_then(|name| Some((name, exports.open(name)?)));
        let Some((name, found)) = found else {
            return Next::Close;
        };
        let opened = self.opened(name, found);
        out.extend_from_slice(&opened.export.size_bytes.to_be_bytes());
        out.extend_from_slice(&opened.export.flags.to_be_bytes());
        if !self.no_zeroes {
            out.extend_from_slice(&[0; 124]);
        }
        Next::Open(opened)
    }

    fn go(
        &self,
        option: u32,
        payload: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> Result<Opened, u32> {
        let (name, wanted) = parse_go(payload).ok_or(rep::ERR_INVALID)?;
        let found = exports.open(name).ok_or(rep::ERR_UNKNOWN)?;
        let opened = self.opened(name, found);
        let export = &opened.export;
        let mut entry = Vec::with_capacity(16);
        entry.extend_from_slice(&info::EXPORT.to_be_bytes());
        entry.extend_from_slice(&export.size_bytes.to_be_bytes());
        entry.extend_from_slice(&export.flags.to_be_bytes());
        put_option_reply(out, option, rep::INFO, &entry);
        entry.clear();
        entry.extend_from_slice(&info::BLOCK_SIZE.to_be_bytes());
        entry.extend_from_slice(&export.minimum_bytes.to_be_bytes());
        entry.extend_from_slice(&export.preferred_bytes.to_be_bytes());
        entry.extend_from_slice(&export.maximum_bytes.to_be_bytes());
        put_option_reply(out, option, rep::INFO, &entry);
        if wanted
            .chunks_exact(2)
            .any(|kind| kind == info::NAME.to_be_bytes())
        {
            entry.clear();
            entry.extend_from_slice(&info::NAME.to_be_bytes());
            entry.extend_from_slice(opened.name.as_bytes());
            put_option_reply(out, option, rep::INFO, &entry);
        }
        put_option_reply(out, option, rep::ACK, &[]);
        Ok(opened)
    }

    /// Appends the contexts that match; returns the closing reply's type.
    fn meta_context(
        &mut self,
        option: u32,
        payload: &[u8],
        exports: &dyn Exports,
        out: &mut Vec<u8>,
    ) -> u32 {
        let set = option == option::SET_META_CONTEXT;
        if set {
            self.context = None; // a new choice replaces the old one, also when it fails
        }
        let Some((name, queries)) = parse_meta(payload) else {
            return rep::ERR_INVALID;
        };
        if !self.structured {
            return rep::ERR_INVALID;
        }
        if exports.open(name).is_none() {
            return rep::ERR_UNKNOWN;
        }
        let matches = queries
            .iter()
            .any(|query| *query == wire::BASE_ALLOCATION || (!set && *query == "base:"));
        if matches || (!set && queries.is_empty()) {
            let id = if set { wire::BASE_ALLOCATION_ID } else { 0 };
            let mut entry = Vec::with_capacity(32);
            entry.extend_from_slice(&id.to_be_bytes());
            entry.extend_from_slice(wire::BASE_ALLOCATION.as_bytes());
            put_option_reply(out, option, rep::META_CONTEXT, &entry);
            if set {
                self.context = Some(name.to_owned());
            }
        }
        rep::ACK
    }
}

/// The name and the list of wanted information, two bytes each.
fn parse_go(payload: &[u8]) -> Option<(&str, &[u8])> {
    let mut input = Reader(payload);
    let name = input.string()?;
    let count = usize::from(input.u16()?);
    let wanted = input.bytes(count * 2)?;
    input.is_empty().then_some((name, wanted))
}

fn parse_meta(payload: &[u8]) -> Option<(&str, Vec<&str>)> {
    let mut input = Reader(payload);
    let name = input.string()?;
    let count = input.u32()?;
    let mut queries = Vec::new(); // grows with what is there, not with what is claimed
    for _ in 0..count {
        queries.push(input.string()?);
    }
    input.is_empty().then_some((name, queries))
}

#[cfg(test)]
#[path = "negotiation_tests.rs"]
mod tests;
